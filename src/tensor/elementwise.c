/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c - checks operands and hands them to the kernels of their device and dtype. */
#include "tensor/elementwise.h"

#include "tensor/tensor.h"

weft_status wfi_broadcast_shape(const weft_shape *a, const weft_shape *b, weft_shape *out)
{
    weft_shape shape = {a->ndim > b->ndim ? a->ndim : b->ndim, {0}};
    for (int d = 1; d <= shape.ndim; d++) {
        int64_t left = d <= a->ndim ? a->dims[a->ndim - d] : 1;
        int64_t right = d <= b->ndim ? b->dims[b->ndim - d] : 1;
        if (left != right && left != 1 && right != 1)
            return WEFT_ERR_SHAPE;
        shape.dims[shape.ndim - d] = left == 1 ? right : left;
    }
    *out = shape;
    return WEFT_OK;
}

weft_status wfi_binary(wfi_binary_op op, const weft_tensor *a, const weft_tensor *b, weft_tensor *y)
{
    wfi_strided walk;
    weft_shape shape;
    if (a->dtype != b->dtype || a->dtype != y->dtype)
        return WEFT_ERR_TYPE;
    if ((unsigned)op >= WFI_BINARY_OPS)
        return WEFT_ERR_INVALID;
    if (wfi_broadcast_shape(&a->shape, &b->shape, &shape) != WEFT_OK || !wfi_shape_equal(&shape, &y->shape))
        return WEFT_ERR_SHAPE;
    weft_status status = wfi_strided_init(&walk, &shape, 3, (const weft_tensor *[]){a, b, y});
    wfi_walk_kernel run = wfi_elementwise_kernels_of(a)->binary[op];
    if (status == WEFT_OK)
        status = run ? run(&walk) : wfi_no_kernel(a);
    return status;
}

bool wfi_has_binary(const weft_tensor *tensor)
{
    return wfi_elementwise_kernels_of(tensor)->binary[WFI_ADD] != NULL;
}

weft_status wfi_add_into(const weft_tensor *x, weft_tensor *y)
{
    return weft_tensor_same_shape(x, y) ? wfi_binary(WFI_ADD, y, x, y) : WEFT_ERR_SHAPE;
}

/* `z` is NULL if the operator has one operand. */
static weft_status map(wfi_map_op op, const weft_tensor *x, const weft_tensor *z, double factor, weft_tensor *y)
{
    const weft_tensor *all[] = {x, y, z};
    weft_device device = weft_tensor_device(x);
    for (int i = 0; i < (z ? 3 : 2); i++) {
        weft_device other = weft_tensor_device(all[i]);
        if (all[i]->dtype != x->dtype)
            return WEFT_ERR_TYPE;
        if (!wfi_device_equal(other, device) || !weft_tensor_is_contiguous(all[i]))
            return WEFT_ERR_UNSUPPORTED;
        if (!weft_tensor_same_shape(x, all[i]))
            return WEFT_ERR_SHAPE;
        weft_status status = device.kind == WEFT_DEVICE_CPU ? WEFT_OK : wfi_tensor_use(all[i], all[i] == y);
        if (status != WEFT_OK)
            return status;
    }
    wfi_map_args args = {.device = device,
                         .count = x->numel,
                         .x = wfi_tensor_address(x),
                         .z = z ? wfi_tensor_address(z) : NULL,
                         .y = wfi_tensor_address(y),
                         .factor = factor};
    const wfi_elementwise_kernels *kernels = wfi_elementwise_kernels_of(x);
    return kernels->map[op] ? kernels->map[op](&args) : wfi_no_kernel(x);
}

weft_status wfi_scale(const weft_tensor *x, double factor, weft_tensor *y)
{
    return map(WFI_SCALE, x, NULL, factor, y);
}

weft_status wfi_relu(const weft_tensor *x, weft_tensor *y)
{
    return map(WFI_RELU, x, NULL, 0, y);
}

weft_status wfi_relu_backward(const weft_tensor *dy, const weft_tensor *y, weft_tensor *dx)
{
    return map(WFI_RELU_BACKWARD, dy, y, 0, dx);
}

weft_status wfi_exp(const weft_tensor *x, weft_tensor *y)
{
    return map(WFI_EXP, x, NULL, 0, y);
}

weft_status wfi_ln(const weft_tensor *x, weft_tensor *y)
{
    return map(WFI_LN, x, NULL, 0, y);
}

weft_status wfi_add_scalar(const weft_tensor *x, double value, weft_tensor *y)
{
    return map(WFI_ADD_SCALAR, x, NULL, value, y);
}

weft_status wfi_sigmoid(const weft_tensor *x, weft_tensor *y)
{
    return map(WFI_SIGMOID, x, NULL, 0, y);
}

weft_status wfi_sigmoid_backward(const weft_tensor *dy, const weft_tensor *y, weft_tensor *dx)
{
    return map(WFI_SIGMOID_BACKWARD, dy, y, 0, dx);
}

weft_status wfi_tanh(const weft_tensor *x, weft_tensor *y)
{
    return map(WFI_TANH, x, NULL, 0, y);
}

weft_status wfi_tanh_backward(const weft_tensor *dy, const weft_tensor *y, weft_tensor *dx)
{
    return map(WFI_TANH_BACKWARD, dy, y, 0, dx);
}
