/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c - creates tensors over storages, counts their references, and returns their properties. */
#include "base/alloc.h"
#include "tensor/cell.h"

#include "base/error.h"
#include "base/parker.h"
#include "base/text/refuse.h"
#include "tensor/print.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes over the reference of `storage`, also on failure. */
static weft_status assemble(wfi_storage *storage, weft_shape shape, const int64_t *strides, int64_t offset,
                            weft_dtype dtype, weft_tensor **out)
{
    static _Atomic uint64_t last_id;
    weft_tensor *tensor = wfi_calloc(1, sizeof(*tensor));
    if (!tensor) {
        wfi_storage_unref(storage);
        return WEFT_ERR_MEMORY;
    }
    WFI_HANDLE_INIT(tensor);
    atomic_init(&tensor->refs, 1);
    tensor->dtype = dtype;
    tensor->shape = shape;
    for (int d = shape.ndim; d < WEFT_MAX_DIMS; d++)
        tensor->shape.dims[d] = 0;
    memcpy(tensor->strides, strides, (size_t)shape.ndim * sizeof(strides[0]));
    tensor->offset = offset;
    (void)wfi_shape_numel(&shape, &tensor->numel); /* the callers have checked */
    tensor->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
    tensor->storage = storage;
    *out = tensor;
    return WEFT_OK;
}

static weft_status check_geometry(const weft_shape *shape, weft_dtype dtype, int64_t *numel, size_t *bytes)
{
    if (!wfi_dtype_is_valid(dtype))
        return WEFT_ERR_TYPE;
    weft_status status = wfi_shape_check(shape, numel);
    if (status != WEFT_OK)
        return status;
    if (__builtin_mul_overflow((size_t)*numel, weft_dtype_size(dtype), bytes) || *bytes > PTRDIFF_MAX)
        return WEFT_ERR_TOO_LARGE;
    return WEFT_OK;
}

weft_status wfi_tensor_check(const weft_shape *shape, weft_dtype dtype)
{
    int64_t numel;
    size_t bytes;
    return check_geometry(shape, dtype, &numel, &bytes);
}

weft_status wfi_tensor_create(weft_shape shape, weft_dtype dtype, wfi_memory_kind kind, int device, weft_tensor **out)
{
    int64_t numel, strides[WEFT_MAX_DIMS];
    size_t bytes;
    weft_status status = check_geometry(&shape, dtype, &numel, &bytes);
    if (status != WEFT_OK)
        return status;
    wfi_storage *storage;
    status = wfi_storage_create(kind, device, bytes, &storage);
    if (status != WEFT_OK)
        return status;
    wfi_shape_strides(&shape, strides);
    return assemble(storage, shape, strides, 0, dtype, out);
}

/* Whether every element that the geometry reaches lies in the storage. */
static bool range_fits(const wfi_storage *storage, const weft_shape *shape, const int64_t *strides, int64_t offset,
                       weft_dtype dtype)
{
    int64_t capacity = (int64_t)(wfi_storage_size(storage) / weft_dtype_size(dtype));
    int64_t numel, last = offset;
    if (!wfi_shape_numel(shape, &numel) || offset < 0 || offset > capacity)
        return false;
    if (numel == 0)
        return true;
    for (int d = 0; d < shape->ndim; d++) {
        int64_t reach;
        if (strides[d] < 0 || __builtin_mul_overflow(strides[d], shape->dims[d] - 1, &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return false;
    }
    return last < capacity;
}

weft_status wfi_tensor_over(wfi_storage *storage, int64_t offset, weft_shape shape, weft_dtype dtype, weft_tensor **out)
{
    int64_t numel, strides[WEFT_MAX_DIMS];
    size_t bytes;
    weft_status status = check_geometry(&shape, dtype, &numel, &bytes);
    if (status != WEFT_OK)
        return status;
    wfi_shape_strides(&shape, strides);
    if (!range_fits(storage, &shape, strides, offset, dtype))
        return WEFT_ERR_INVALID;
    return assemble(wfi_storage_ref(storage), shape, strides, offset, dtype, out);
}

weft_status wfi_tensor_view(const weft_tensor *tensor, weft_shape shape, const int64_t *strides, int64_t offset,
                            weft_tensor **out)
{
    weft_tensor *of = wfi_tensor_read(tensor); /* a cell's offset is 0 */
    offset += of != tensor ? of->offset : 0;
    assert(range_fits(of->storage, &shape, strides, offset, of->dtype));
    weft_status status = assemble(wfi_storage_ref(of->storage), shape, strides, offset, of->dtype, out);
    weft_tensor_unref(of);
    return status;
}

const char *wfi_tensor_wanted(const weft_shape *shape, weft_dtype dtype, char text[WFI_WANTED_TEXT])
{
    char sizes[WFI_SHAPE_TEXT];
    if (wfi_dtype_is_valid(dtype))
        snprintf(text, WFI_WANTED_TEXT, "%s %s", weft_dtype_name(dtype), wfi_shape_text(shape, sizes));
    else
        snprintf(text, WFI_WANTED_TEXT, "%s of dtype %d", wfi_shape_text(shape, sizes), (int)dtype);
    return text;
}

const char *wfi_tensor_fault(const weft_shape *shape, weft_dtype dtype, weft_status status,
                             char text[WFI_NO_TENSOR_TEXT])
{
    int64_t numel;
    size_t bytes;
    if (!wfi_dtype_is_valid(dtype))
        return "there is no such dtype";
    if (shape->ndim < 0 || shape->ndim > WEFT_MAX_DIMS) {
        snprintf(text, WFI_NO_TENSOR_TEXT, "%d dimensions: 0 to %d are possible", shape->ndim, WEFT_MAX_DIMS);
        return text;
    }
    for (int d = 0; d < shape->ndim; d++)
        if (shape->dims[d] < 0) {
            snprintf(text, WFI_NO_TENSOR_TEXT, "its size %d is %lld", d, (long long)shape->dims[d]);
            return text;
        }
    if (status == WEFT_ERR_TOO_LARGE)
        return "it would have 2^63 bytes or more";
    if (status != WEFT_ERR_MEMORY || check_geometry(shape, dtype, &numel, &bytes))
        return weft_status_text(status);
    snprintf(text, WFI_NO_TENSOR_TEXT, "no memory for %zu bytes", bytes);
    return text;
}

weft_tensor *wfi_tensor_empty(weft_shape shape, weft_dtype dtype, weft_error **why)
{
    weft_tensor *tensor = NULL;
    char text[WFI_WANTED_TEXT], fault[WFI_NO_TENSOR_TEXT];
    weft_status status = wfi_tensor_create(shape, dtype, WFI_MEMORY_HOST, 0, &tensor);
    if (status != WEFT_OK)
        (void)wfi_error_fail(why, status, "no new tensor %s: %s", wfi_tensor_wanted(&shape, dtype, text),
                             wfi_tensor_fault(&shape, dtype, status, fault));
    return tensor;
}

/* From the first element to the end of the last, in bytes. WEFT_ERR_INVALID: a negative stride. */
static weft_status reach_of(const weft_shape *shape, const int64_t *strides, weft_dtype dtype, size_t *bytes)
{
    int64_t numel, last = 0, reach, end;
    (void)wfi_shape_numel(shape, &numel); /* the caller has checked */
    for (int d = 0; d < shape->ndim; d++) {
        if (strides[d] < 0)
            return WEFT_ERR_INVALID;
        int64_t steps = numel > 0 ? shape->dims[d] - 1 : 0;
        if (__builtin_mul_overflow(strides[d], steps, &reach) || __builtin_add_overflow(last, reach, &last))
            return WEFT_ERR_TOO_LARGE;
    }
    if (__builtin_add_overflow(last, numel > 0, &last) ||
        __builtin_mul_overflow(last, (int64_t)weft_dtype_size(dtype), &end))
        return WEFT_ERR_TOO_LARGE;
    *bytes = (size_t)end;
    return WEFT_OK;
}

static weft_status refuse_stride(const wfi_wrapping *how, char why[WFI_WHY_TEXT])
{
    int d = 0;
    while (d < how->shape.ndim - 1 && how->strides[d] >= 0)
        d++;
    snprintf(why, WFI_WHY_TEXT, "a stride is negative: %lld of dimension %d; copy the tensor first",
             (long long)how->strides[d], d);
    return WEFT_ERR_INVALID;
}

/* Whether the memory can be wrapped; if not, `why` is the reason. */
static weft_status check_wrapping(const wfi_wrapping *how, size_t *bytes, char why[WFI_WHY_TEXT])
{
    int64_t numel;
    char shape[WFI_WANTED_TEXT];
    size_t align;
    weft_status status = check_geometry(&how->shape, how->dtype, &numel, bytes);
    if (status == WEFT_OK && how->strides) {
        status = reach_of(&how->shape, how->strides, how->dtype, bytes);
        if (status == WEFT_ERR_INVALID)
            return refuse_stride(how, why);
    }
    wfi_tensor_wanted(&how->shape, how->dtype, shape);
    if (status != WEFT_OK) {
        char fault[WFI_NO_TENSOR_TEXT];
        snprintf(why, WFI_WHY_TEXT, "%s: %s", shape, wfi_tensor_fault(&how->shape, how->dtype, status, fault));
        return status;
    }
    align = wfi_dtype_align(how->dtype);
    if ((uintptr_t)how->data % align != 0)
        snprintf(why, WFI_WHY_TEXT, "the address %p is not aligned for the dtype: %s needs a multiple of %zu",
                 how->data, weft_dtype_name(how->dtype), align);
    else if (!how->data && *bytes != 0)
        snprintf(why, WFI_WHY_TEXT, "the address is NULL, and %s has %zu bytes", shape, *bytes);
    else
        return WEFT_OK;
    return WEFT_ERR_INVALID;
}

weft_status wfi_tensor_wrap(const wfi_wrapping *how, weft_tensor **out, char why[WFI_WHY_TEXT])
{
    int64_t row_major[WEFT_MAX_DIMS];
    size_t bytes = 0;
    wfi_storage *storage;
    weft_status status = check_wrapping(how, &bytes, why);
    if (status != WEFT_OK) {
        if (how->drop)
            how->drop(how->arg);
        return status;
    }
    status = wfi_storage_wrap(how->kind, how->device, how->data, bytes, how->drop, how->arg, &storage);
    if (status == WEFT_OK) {
        wfi_shape_strides(&how->shape, row_major);
        status = assemble(storage, how->shape, how->strides ? how->strides : row_major, 0, how->dtype, out);
    }
    snprintf(why, WFI_WHY_TEXT, "%s", weft_status_text(status));
    return status;
}

weft_status weft_tensor_wrap(weft_shape shape, weft_dtype dtype, void *data, const int64_t *strides, weft_drop_fn drop,
                             void *arg, weft_tensor **out, weft_error **error)
{
    const wfi_wrapping how = {
        .shape = shape, .dtype = dtype, .data = data, .strides = strides, .drop = drop, .arg = arg};
    weft_tensor *tensor = NULL;
    char why[WFI_WHY_TEXT], text[WFI_WANTED_TEXT];
    weft_status status = wfi_tensor_wrap(&how, &tensor, why);
    if (status == WEFT_OK)
        return WFI_GIVE("weft_tensor_wrap", tensor, NULL, weft_tensor_unref, out, error);
    return wfi_refuse_to(error, status, "weft_tensor_wrap: memory not wrapped as %s: %s",
                         wfi_tensor_wanted(&shape, dtype, text), why);
}

/* ---- Reading and freeing cells ---- */

static wfi_cell *lock_shared(wfi_cell *cell)
{
    pthread_rwlock_rdlock(&cell->lock);
    return cell;
}

weft_tensor *wfi_cell_read(wfi_cell *cell)
{
    weft_tensor *now = weft_tensor_ref(lock_shared(cell)->now);
    pthread_rwlock_unlock(&cell->lock);
    return now;
}

wfi_storage *wfi_cell_storage(wfi_cell *cell)
{
    wfi_storage *storage = lock_shared(cell)->now->storage;
    pthread_rwlock_unlock(&cell->lock);
    return storage;
}

void *wfi_cell_address(wfi_cell *cell)
{
    void *address = wfi_tensor_address(lock_shared(cell)->now);
    pthread_rwlock_unlock(&cell->lock);
    return address;
}

wfi_memory_kind wfi_cell_kind(const wfi_cell *cell)
{
    return cell->kind;
}

static void end_cell(wfi_cell *cell)
{
    weft_tensor_unref(cell->now);
    weft_tensor_unref(cell->spare);
    pthread_rwlock_destroy(&cell->lock);
    wfi_mutex_fini(&cell->writing);
    free(cell);
}

/* ---- Counting ---- */

weft_tensor *weft_tensor_ref(weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    if (!tensor)
        return NULL;
    uint32_t before = atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
    assert(before > 0 && before < UINT32_MAX);
    (void)before;
    return tensor;
}

void weft_tensor_unref(weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    if (!tensor)
        return;
    uint32_t before = atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel);
    if (!WFI_HANDLE_IS_LAST(tensor, before))
        return;
    if (tensor->grad_node_drop)
        tensor->grad_node_drop(tensor->grad_node);
    wfi_storage_unref(tensor->storage);
    if (tensor->cell)
        end_cell(tensor->cell);
    wfi_handle_free(tensor);
}

weft_dtype weft_tensor_dtype(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor ? tensor->dtype : WEFT_DTYPE_FLOAT32;
}

int weft_tensor_ndim(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor ? tensor->shape.ndim : 0;
}

int64_t weft_tensor_size(const weft_tensor *tensor, int dim)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor && wfi_dim_wrap(tensor->shape.ndim, &dim) ? tensor->shape.dims[dim] : 0;
}

int64_t weft_tensor_stride(const weft_tensor *tensor, int dim)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor && wfi_dim_wrap(tensor->shape.ndim, &dim) ? tensor->strides[dim] : 0;
}

weft_shape weft_tensor_shape(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor ? tensor->shape : WEFT_SCALAR;
}

int64_t weft_tensor_numel(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor ? tensor->numel : 0;
}

size_t weft_tensor_nbytes(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor ? (size_t)tensor->numel * weft_dtype_size(tensor->dtype) : 0;
}

bool weft_tensor_is_contiguous(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    int64_t step = 1;
    if (!tensor)
        return false;
    for (int d = tensor->shape.ndim - 1; d >= 0 && tensor->numel > 0; d--) {
        if (tensor->shape.dims[d] == 1)
            continue; /* its stride is never used */
        if (tensor->strides[d] != step)
            return false;
        step *= tensor->shape.dims[d];
    }
    return true;
}

bool weft_tensor_same_shape(const weft_tensor *a, const weft_tensor *b)
{
    WFI_CHECK_HANDLE(a, b);
    return a && b && wfi_shape_equal(&a->shape, &b->shape);
}

void *weft_tensor_data(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return !tensor || wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA ? NULL : wfi_tensor_address(tensor);
}

void weft_tensor_wrote(weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    if (!tensor)
        return;
    weft_tensor *now = wfi_tensor_read(tensor);
    wfi_storage_wrote(now->storage);
    weft_tensor_unref(now);
}

weft_status weft_tensor_wait_unread(const weft_tensor *tensor, int64_t wait_ms)
{
    WFI_CHECK_HANDLE(tensor);
    if (!tensor || wait_ms < WEFT_FOREVER)
        return !tensor ? wfi_refuse_null("weft_tensor_wait_unread", "tensor")
                       : wfi_refuse_wait("weft_tensor_wait_unread", wait_ms);
    weft_tensor *now = wfi_tensor_read(tensor);
    bool unread = wfi_storage_wait_unread(now->storage, wfi_deadline(wfi_park_clock(), wait_ms));
    weft_tensor_unref(now);
    return unread ? WEFT_OK : WEFT_ERR_TIMEOUT;
}

void weft_tensor_set_requires_grad(weft_tensor *tensor, bool requires_grad)
{
    WFI_CHECK_HANDLE(tensor);
    if (tensor)
        atomic_store_explicit(&tensor->requires_grad, requires_grad, memory_order_relaxed);
}

bool weft_tensor_requires_grad(const weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tensor);
    return tensor && atomic_load_explicit(&tensor->requires_grad, memory_order_relaxed);
}
