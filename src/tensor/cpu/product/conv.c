/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv.c - convolutions and their gradients on any device: checks of the operands. The kernels are in the table of the
 * device: on the CPU conv_onednn.c for float32 and conv_gemm.c for the rest, on a GPU tensor/cuda/product/conv.c.
 */
#include "tensor/cpu/product/gemm.h"

#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/product/product.h"

#include <limits.h>

static bool valid_options(const wfi_conv2d *how)
{
    for (int d = 0; d < 2; d++) {
        if (how->stride[d] < 1 || how->stride[d] > INT_MAX || how->padding[d] < 0 || how->padding[d] > INT_MAX ||
            how->dilation[d] < 1 || how->dilation[d] > INT_MAX)
            return false;
    }
    return how->groups >= 1;
}

weft_status wfi_conv2d_shape(const weft_shape *x, const weft_shape *weight, const wfi_conv2d *how, weft_shape *y)
{
    if (!valid_options(how))
        return WEFT_ERR_INVALID;
    if (x->ndim != 4 || weight->ndim != 4 || x->dims[1] % how->groups != 0 || weight->dims[0] % how->groups != 0 ||
        x->dims[1] / how->groups != weight->dims[1])
        return WEFT_ERR_SHAPE;
    weft_shape shape = {4, {x->dims[0], weight->dims[0]}};
    for (int d = 2; d < 4; d++) {
        if (weight->dims[d] < 1 || weight->dims[d] > INT_MAX || x->dims[d] > INT_MAX)
            return WEFT_ERR_SHAPE;
        int64_t reach = how->dilation[d - 2] * (weight->dims[d] - 1) + 1;
        int64_t room = x->dims[d] + 2 * how->padding[d - 2] - reach;
        if (room < 0)
            return WEFT_ERR_SHAPE;
        shape.dims[d] = room / how->stride[d - 2] + 1;
    }
    *y = shape;
    return WEFT_OK;
}

static weft_status sizes_init(wfi_conv_sizes *sizes, const weft_tensor *x, const weft_tensor *weight,
                              const weft_tensor *bias, const wfi_conv2d *how, const weft_tensor *y)
{
    weft_shape shape;
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(x, weight, bias, y);
    if (status == WEFT_OK)
        status = wfi_conv2d_shape(&x->shape, &weight->shape, how, &shape);
    if (status != WEFT_OK)
        return status;
    if (!wfi_shape_equal(&shape, &y->shape) || !wfi_tensor_is_vector(bias, weight->shape.dims[0]))
        return WEFT_ERR_SHAPE;
    *sizes = (wfi_conv_sizes){.batch = x->shape.dims[0],
                              .groups = how->groups,
                              .in = weight->shape.dims[1],
                              .out = weight->shape.dims[0] / how->groups};
    for (int d = 0; d < 2; d++) {
        sizes->image[d] = x->shape.dims[2 + d];
        sizes->kernel[d] = weight->shape.dims[2 + d];
        sizes->result[d] = y->shape.dims[2 + d];
        sizes->stride[d] = how->stride[d];
        sizes->padding[d] = how->padding[d];
        sizes->dilation[d] = how->dilation[d];
    }
    return WEFT_OK;
}

static weft_status compute(const weft_tensor *x, wfi_conv_kind kind, const wfi_conv_sizes *sizes,
                           const wfi_conv_data *data)
{
    const wfi_product_kernels *kernels = wfi_product_kernels_of(x);
    return kernels->conv ? kernels->conv(weft_tensor_device(x), kind, sizes, data) : wfi_no_kernel(x);
}

static void *address(const weft_tensor *tensor)
{
    return tensor ? wfi_tensor_address(tensor) : NULL;
}

weft_status wfi_conv2d_forward(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias,
                               const wfi_conv2d *how, weft_tensor *y)
{
    wfi_conv_sizes sizes;
    weft_status status = sizes_init(&sizes, x, weight, bias, how, y);
    if (status != WEFT_OK || y->numel == 0)
        return status;
    if (weight->numel == 0) { /* no input channels: nothing but the bias */
        weft_tensor *column = NULL;
        status =
            !bias ? wfi_fill(y, 0)
                  : wfi_tensor_over(bias->storage, bias->offset, WEFT_SHAPE(bias->numel, 1, 1), bias->dtype, &column);
        if (status == WEFT_OK && column)
            status = wfi_expand(column, y);
        weft_tensor_unref(column);
        return status;
    }
    wfi_conv_data data = {address(x), address(weight), address(bias), address(y)};
    return compute(x, WFI_CONV_FORWARD, &sizes, &data);
}

weft_status wfi_conv2d_backward_data(const weft_tensor *dy, const weft_tensor *weight, const wfi_conv2d *how,
                                     weft_tensor *dx)
{
    wfi_conv_sizes sizes;
    weft_status status = sizes_init(&sizes, dx, weight, NULL, how, dy);
    if (status != WEFT_OK)
        return status;
    if (dy->numel == 0 || weight->numel == 0)
        return wfi_fill(dx, 0);
    wfi_conv_data data = {address(dx), address(weight), NULL, address(dy)};
    return compute(dx, WFI_CONV_BACKWARD_DATA, &sizes, &data);
}

weft_status wfi_conv2d_backward_weight(const weft_tensor *dy, const weft_tensor *x, const wfi_conv2d *how,
                                       weft_tensor *dweight, weft_tensor *dbias)
{
    wfi_conv_sizes sizes;
    weft_status status = sizes_init(&sizes, x, dweight, dbias, how, dy);
    if (status != WEFT_OK)
        return status;
    if (dy->numel == 0 || x->numel == 0) {
        status = wfi_fill(dweight, 0);
        return dbias && status == WEFT_OK ? wfi_sum(dy, 1u << 0 | 1u << 2 | 1u << 3, dbias) : status;
    }
    wfi_conv_data data = {address(x), address(dweight), wfi_tensor_is_on_gpu(x) ? NULL : address(dbias), address(dy)};
    if (wfi_tensor_is_on_gpu(x) && dbias)
        status = wfi_sum(dy, 1u << 0 | 1u << 2 | 1u << 3, dbias);
    return status != WEFT_OK ? status : compute(x, WFI_CONV_BACKWARD_WEIGHT, &sizes, &data);
}
