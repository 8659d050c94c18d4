/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c - copies, conversions and fills: checked, and handed to the kernels of their device and dtype. */
#include "tensor/copy.h"

#include "tensor/kernels.h"
#include "tensor/parallel.h"

#include <assert.h>
#include <string.h>

/* The kernel that converts the dtype of `like` to `to`, on the device of `like`. NULL: there is none. */
bool wfi_convert_one(weft_dtype from, const void *x, weft_dtype to, void *y)
{
    wfi_strided walk = {.operands = 2, .ndim = 1, .dims = {1}, .data = {(char *)x, y}};
    wfi_walk_kernel run = from == to ? wfi_copy_cpu[from].same : wfi_copy_cpu[from].to[to];
    return run && run(&walk) == WEFT_OK;
}

typedef struct copy_args {
    char *to;
    const char *from;
} copy_args;

static void copy_piece(void *arg, int64_t begin, int64_t end)
{
    copy_args *copy = arg;
    memcpy(copy->to + begin, copy->from + begin, (size_t)(end - begin));
}

/* Copies to another device if the bytes cannot be copied as they are. The elements are packed and converted on the
 * device of `x`. They are spread on the device of `y`, if `y` is not contiguous. */
static weft_status copy_across(const weft_tensor *x, weft_tensor *y)
{
    weft_status status = weft_device_check(weft_tensor_device(x), NULL);
    if (status == WEFT_OK)
        status = weft_device_check(weft_tensor_device(y), NULL);
    if (status != WEFT_OK)
        return status;
    weft_tensor *packed = wfi_tensor_empty_like(x, x->shape, y->dtype);
    weft_tensor *arrived =
        weft_tensor_is_contiguous(y) ? weft_tensor_ref(y) : wfi_tensor_empty_like(y, y->shape, y->dtype);
    status = !packed || !arrived ? WEFT_ERR_MEMORY : wfi_expand(x, packed);
    if (status == WEFT_OK)
        status = wfi_memory_copy(arrived->storage, (size_t)arrived->offset * weft_dtype_size(y->dtype), packed->storage,
                                 0, weft_tensor_nbytes(packed));
    if (status == WEFT_OK && arrived != y)
        status = wfi_expand(arrived, y);
    weft_tensor_unref(packed);
    weft_tensor_unref(arrived);
    return status;
}

weft_status wfi_copy(const weft_tensor *x, weft_tensor *y)
{
    assert(!x->cell && !y->cell);
    if (!weft_tensor_same_shape(x, y))
        return WEFT_ERR_SHAPE;
    bool plain = x->dtype == y->dtype && weft_tensor_is_contiguous(x) && weft_tensor_is_contiguous(y);
    weft_device from = weft_tensor_device(x), to = weft_tensor_device(y);
    bool device = from.kind != WEFT_DEVICE_CPU || to.kind != WEFT_DEVICE_CPU;
    size_t size = weft_dtype_size(x->dtype);
    if (plain && device)
        return wfi_memory_copy(y->storage, (size_t)y->offset * size, x->storage, (size_t)x->offset * size,
                               weft_tensor_nbytes(x));
    if (plain && x->storage != y->storage) {
        copy_args copy = {wfi_tensor_address(y), wfi_tensor_address(x)};
        wfi_parallel((int64_t)weft_tensor_nbytes(x), (int64_t)1 << 20, copy_piece, &copy);
        return WEFT_OK;
    }
    return wfi_device_equal(from, to) ? wfi_expand(x, y) : copy_across(x, y);
}

weft_status wfi_expand(const weft_tensor *x, weft_tensor *y)
{
    wfi_strided walk;
    weft_status status = wfi_strided_init(&walk, &y->shape, 2, (const weft_tensor *[]){x, y});
    const wfi_copy_kernels *kernels = wfi_copy_kernels_of(x);
    wfi_walk_kernel run = x->dtype == y->dtype ? kernels->same : kernels->to[y->dtype];
    if (status == WEFT_OK)
        status = run ? run(&walk) : wfi_no_kernel(x);
    return status;
}

/* Converts `value` to one element of y's dtype, and copies that to all elements. */
weft_status wfi_fill(weft_tensor *y, double value)
{
    uint64_t element[2] = {0, 0}; /* has room for an element of the largest dtype */
    /* This cannot fail: float64 converts to every dtype that is not complex. */
    (void)wfi_convert_one(WEFT_DTYPE_FLOAT64, &value, wfi_dtype_real(y->dtype), element);
    wfi_strided walk;
    weft_status status = wfi_strided_init(&walk, &y->shape, 1, (const weft_tensor *[]){y});
    const wfi_copy_kernels *kernels = wfi_copy_kernels_of(y);
    if (status == WEFT_OK)
        status = kernels->fill ? kernels->fill(&walk, element) : wfi_no_kernel(y);
    return status;
}
