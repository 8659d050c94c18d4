/* SPDX-License-Identifier: Apache-2.0 */
/* dlpack.c - lends tensors to other libraries, and makes tensors over memory that they lend. */
#include <weft/dlpack.h>

#include "base/alloc.h"
#include "base/text/refuse.h"
#include "tensor/copy.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The layout that DLPack prescribes. */
static_assert(offsetof(weft_dlpack_tensor, shape) == 24 && sizeof(weft_dlpack_tensor) == 48, "DLTensor");
static_assert(offsetof(weft_dlpack, flags) == 24 && sizeof(weft_dlpack) == 80, "DLManagedTensorVersioned");
static_assert(offsetof(weft_dlpack_unversioned, deleter) == 56 && sizeof(weft_dlpack_unversioned) == 64,
              "DLManagedTensor");

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2, DEVICE_CUDA_HOST = 3 };
enum { CODE_INT = 0, CODE_UNSIGNED = 1, CODE_FLOAT = 2, CODE_BFLOAT = 4, CODE_COMPLEX = 5, CODE_BOOL = 6 };

static const weft_dlpack_dtype dtypes[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {CODE_FLOAT, 32, 1},     [WEFT_DTYPE_FLOAT64] = {CODE_FLOAT, 64, 1},
    [WEFT_DTYPE_INT64] = {CODE_INT, 64, 1},         [WEFT_DTYPE_INT32] = {CODE_INT, 32, 1},
    [WEFT_DTYPE_UINT8] = {CODE_UNSIGNED, 8, 1},     [WEFT_DTYPE_BOOL] = {CODE_BOOL, 8, 1},
    [WEFT_DTYPE_FLOAT16] = {CODE_FLOAT, 16, 1},     [WEFT_DTYPE_BFLOAT16] = {CODE_BFLOAT, 16, 1},
    [WEFT_DTYPE_INT8] = {CODE_INT, 8, 1},           [WEFT_DTYPE_INT16] = {CODE_INT, 16, 1},
    [WEFT_DTYPE_COMPLEX64] = {CODE_COMPLEX, 64, 1}, [WEFT_DTYPE_COMPLEX128] = {CODE_COMPLEX, 128, 1},
};

/* ---- Lending ---- */

/* A lent tensor, with the memory of its lists. Its receiver gets one of the two structs. */
typedef struct lent {
    union {
        weft_dlpack managed;
        weft_dlpack_unversioned unversioned;
    };
    wfi_storage *storage; /* one reference */
    int64_t shape[WEFT_MAX_DIMS], strides[WEFT_MAX_DIMS];
} lent;

static void end_lent(lent *l)
{
    wfi_storage_unref(l->storage);
    free(l);
}

static void end_managed(weft_dlpack *self)
{
    end_lent(self->manager);
}

static void end_unversioned(weft_dlpack_unversioned *self)
{
    end_lent(self->manager);
}

static weft_dlpack_device device_of(const wfi_storage *storage)
{
    static const int32_t types[] = {
        [WFI_MEMORY_HOST] = DEVICE_CPU, [WFI_MEMORY_PINNED] = DEVICE_CUDA_HOST, [WFI_MEMORY_CUDA] = DEVICE_CUDA};
    return (weft_dlpack_device){types[wfi_storage_kind(storage)], wfi_storage_device(storage)};
}

static weft_dlpack_tensor describe(lent *l, const weft_tensor *tensor)
{
    memcpy(l->shape, tensor->shape.dims, sizeof(l->shape));
    memcpy(l->strides, tensor->strides, sizeof(l->strides));
    return (weft_dlpack_tensor){.data = tensor->numel > 0 ? wfi_tensor_address(tensor) : NULL,
                                .device = device_of(tensor->storage),
                                .ndim = tensor->shape.ndim,
                                .dtype = dtypes[tensor->dtype],
                                .shape = l->shape,
                                .strides = l->strides};
}

static weft_status check_lending(const char *function, const weft_tensor *tensor, uint64_t flags, const void *out,
                                 weft_error **error)
{
    if (!tensor || !out)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "%s: %s is NULL", function, !tensor ? "tensor" : "out");
    if (flags & ~WEFT_DLPACK_READ_ONLY)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "%s: the flags are %#llx: only 0 and %#llx are possible",
                             function, (unsigned long long)flags, (unsigned long long)WEFT_DLPACK_READ_ONLY);
    return WEFT_OK;
}

/* *out has a reference to the storage, and no struct yet: *described belongs into it. */
static weft_status lend(const char *function, weft_tensor *tensor, lent **out, weft_dlpack_tensor *described,
                        weft_error **error)
{
    lent *l = wfi_calloc(1, sizeof(*l));
    if (!l)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "%s: no memory for a struct of %zu bytes", function, sizeof(*l));
    weft_tensor *now = wfi_tensor_read(tensor);
    *described = describe(l, now);
    weft_status status = wfi_storage_lend(now->storage); /* the receiver may write to it */
    if (status == WEFT_OK)
        l->storage = wfi_storage_ref(now->storage);
    weft_tensor_unref(now);
    if (status == WEFT_OK) {
        *out = l;
        return WEFT_OK;
    }
    free(l);
    return wfi_refuse_to(error, status, "%s: cuda:%d has failed: %s", function, described->device.id,
                         weft_status_text(status));
}

weft_status weft_tensor_to_dlpack(weft_tensor *tensor, uint64_t flags, weft_dlpack **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    lent *l = NULL;
    weft_dlpack_tensor described;
    weft_status status = check_lending("weft_tensor_to_dlpack", tensor, flags, out, error);
    if (status == WEFT_OK)
        status = lend("weft_tensor_to_dlpack", tensor, &l, &described, error);
    if (status != WEFT_OK)
        return status;
    l->managed = (weft_dlpack){.version = {WEFT_DLPACK_MAJOR, WEFT_DLPACK_MINOR},
                               .manager = l,
                               .deleter = end_managed,
                               .flags = flags | (tensor->cell ? WEFT_DLPACK_READ_ONLY : 0),
                               .tensor = described};
    *out = &l->managed;
    return WEFT_OK;
}

weft_status weft_tensor_to_dlpack_unversioned(weft_tensor *tensor, uint64_t flags, weft_dlpack_unversioned **out,
                                              weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    static const char name[] = "weft_tensor_to_dlpack_unversioned";
    lent *l = NULL;
    weft_dlpack_tensor described;
    weft_status status = check_lending(name, tensor, flags, out, error);
    if (status == WEFT_OK && tensor->cell && flags == 0)
        status = wfi_refuse_to(error, WEFT_ERR_UNSUPPORTED,
                               "%s: a parameter or buffer of a module must not be written to, and this struct cannot "
                               "say so: lend a copy, or pass WEFT_DLPACK_READ_ONLY if the receiver only reads",
                               name);
    if (status == WEFT_OK)
        status = lend(name, tensor, &l, &described, error);
    if (status != WEFT_OK)
        return status;
    l->unversioned = (weft_dlpack_unversioned){.tensor = described, .manager = l, .deleter = end_unversioned};
    *out = &l->unversioned;
    return WEFT_OK;
}

/* ---- Borrowing ---- */

/* A struct of another library, of either kind. */
typedef struct borrowed {
    const char *function; /* for messages */
    const weft_dlpack_tensor *tensor;
    weft_drop_fn end;
    void *managed; /* the argument of `end` */
} borrowed;

static void end_borrowed(void *arg)
{
    weft_dlpack *managed = arg;
    if (managed->deleter)
        managed->deleter(managed);
}

static void end_borrowed_unversioned(void *arg)
{
    weft_dlpack_unversioned *managed = arg;
    if (managed->deleter)
        managed->deleter(managed);
}

static bool find_dtype(weft_dlpack_dtype wanted, weft_dtype *out)
{
    for (int i = 0; i < WFI_DTYPES; i++)
        if (dtypes[i].code == wanted.code && dtypes[i].bits == wanted.bits && dtypes[i].lanes == wanted.lanes) {
            *out = (weft_dtype)i;
            return true;
        }
    return false;
}

static weft_status find_kind(const char *function, weft_dlpack_device device, wfi_memory_kind *out, weft_error **error)
{
    /* Page-locked memory counts as host memory here: only its owner has to free it as what it is. */
    *out = device.type == DEVICE_CUDA ? WFI_MEMORY_CUDA : WFI_MEMORY_HOST;
    if (device.type == DEVICE_CUDA)
        return weft_device_check((weft_device){WEFT_DEVICE_CUDA, device.id}, error);
    if (device.type == DEVICE_CPU || device.type == DEVICE_CUDA_HOST)
        return WEFT_OK;
    return wfi_refuse_to(error, WEFT_ERR_UNSUPPORTED,
                         "%s: device type %d: only 1 (CPU), 2 (CUDA) and 3 (page-locked) work", function, device.type);
}

/* Whether weft has tensors of that dtype and rank. */
static weft_status check_described(const borrowed *b, weft_dtype *dtype, weft_error **error)
{
    const weft_dlpack_tensor *t = b->tensor;
    if (!find_dtype(t->dtype, dtype))
        return wfi_refuse_to(error, WEFT_ERR_TYPE, "%s: no dtype has code %d, %d bits and %d lanes", b->function,
                             t->dtype.code, t->dtype.bits, t->dtype.lanes);
    if (t->ndim < 0 || t->ndim > WEFT_MAX_DIMS)
        return wfi_refuse_to(error, WEFT_ERR_SHAPE, "%s: %d dimensions: 0 to %d are possible", b->function, t->ndim,
                             WEFT_MAX_DIMS);
    if (t->ndim > 0 && !t->shape)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "%s: the shape is NULL, and the tensor has %d dimensions",
                             b->function, t->ndim);
    return WEFT_OK;
}

/* A tensor over the memory; takes over the struct. */
static weft_status wrap(const borrowed *b, weft_tensor **out, weft_error **error)
{
    const weft_dlpack_tensor *t = b->tensor;
    wfi_wrapping how = {.drop = b->end, .arg = b->managed, .shape.ndim = t->ndim, .device = t->device.id};
    weft_status status = find_kind(b->function, t->device, &how.kind, error);
    if (status == WEFT_OK)
        status = check_described(b, &how.dtype, error);
    if (status != WEFT_OK) {
        b->end(b->managed);
        return status;
    }
    for (int d = 0; d < t->ndim; d++)
        how.shape.dims[d] = t->shape[d];
    how.strides = t->ndim > 0 ? t->strides : NULL;
    how.data = t->data ? (char *)t->data + t->byte_offset : NULL;
    char why[WFI_WHY_TEXT];
    status = wfi_tensor_wrap(&how, out, why);
    return status == WEFT_OK ? WEFT_OK : wfi_refuse_to(error, status, "%s: %s", b->function, why);
}

/* Replaces the tensor by a copy on its device. */
static weft_status copy_there(weft_tensor **tensor, weft_error **error)
{
    weft_tensor *copy = wfi_tensor_empty_like(*tensor, (*tensor)->shape, (*tensor)->dtype);
    weft_status status = copy ? wfi_copy(*tensor, copy) : WEFT_ERR_MEMORY;
    if (status == WEFT_OK)
        status = wfi_storage_wait_idle(copy->storage); /* the deleter may free the memory of the original at once */
    char text[WFI_WANTED_TEXT];
    wfi_tensor_wanted(&(*tensor)->shape, (*tensor)->dtype, text);
    weft_tensor_unref(*tensor);
    *tensor = copy;
    if (status == WEFT_OK)
        return WEFT_OK;
    weft_tensor_unref(copy);
    return wfi_refuse_to(error, status, "weft_tensor_from_dlpack: %s in read-only memory was not copied: %s", text,
                         weft_status_text(status));
}

weft_status weft_tensor_from_dlpack(weft_dlpack *managed, uint64_t flags, weft_tensor **out, weft_error **error)
{
    if (!managed)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "weft_tensor_from_dlpack: managed is NULL");
    weft_status status = WEFT_OK;
    if (managed->version.major != WEFT_DLPACK_MAJOR)
        status = wfi_refuse_to(error, WEFT_ERR_UNSUPPORTED,
                               "weft_tensor_from_dlpack: the struct is of DLPack %u.%u: %d.x is supported",
                               managed->version.major, managed->version.minor, WEFT_DLPACK_MAJOR);
    else if (!out || flags & ~WEFT_DLPACK_READ_ONLY)
        status = !out ? wfi_refuse_to(error, WEFT_ERR_INVALID, "weft_tensor_from_dlpack: out is NULL")
                      : wfi_refuse_to(error, WEFT_ERR_INVALID,
                                      "weft_tensor_from_dlpack: the flags are %#llx: only 0 and %#llx are possible",
                                      (unsigned long long)flags, (unsigned long long)WEFT_DLPACK_READ_ONLY);
    if (status != WEFT_OK) {
        end_borrowed(managed);
        return status;
    }
    bool copies = managed->flags & WEFT_DLPACK_READ_ONLY && !(flags & WEFT_DLPACK_READ_ONLY);
    weft_tensor *tensor;
    status = wrap(&(borrowed){"weft_tensor_from_dlpack", &managed->tensor, end_borrowed, managed}, &tensor, error);
    if (status == WEFT_OK && copies)
        status = copy_there(&tensor, error);
    if (status == WEFT_OK)
        *out = tensor;
    return status;
}

weft_status weft_tensor_from_dlpack_unversioned(weft_dlpack_unversioned *managed, weft_tensor **out, weft_error **error)
{
    static const char name[] = "weft_tensor_from_dlpack_unversioned";
    if (!managed || !out) {
        if (managed)
            end_borrowed_unversioned(managed);
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "%s: %s is NULL", name, !managed ? "managed" : "out");
    }
    return wrap(&(borrowed){name, &managed->tensor, end_borrowed_unversioned, managed}, out, error);
}
