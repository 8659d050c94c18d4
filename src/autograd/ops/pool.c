/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - max_pool2d and adaptive_avg_pool2d. */
#include "autograd/autograd.h"

/* saved: indices */
static weft_status max_pool2d_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, node->state->shapes[0], dy, &dx[0]);
    return status == WEFT_OK ? wfi_max_pool2d_backward(dy, node->saved[0], dx[0]) : status;
}

static weft_status adaptive_avg_pool2d_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, node->state->shapes[0], dy, &dx[0]);
    return status == WEFT_OK ? wfi_adaptive_avg_pool2d_backward(dy, dx[0]) : status;
}

static const wfi_node_type max_pool2d_type = {.name = "max_pool2d", .backward = max_pool2d_backward};
static const wfi_node_type adaptive_avg_pool2d_type = {.name = "adaptive_avg_pool2d",
                                                       .backward = adaptive_avg_pool2d_backward};

static wfi_pool2d how_from(const weft_max_pool2d_options *options)
{
    wfi_pool2d how = {{0}, {0}, {0}};
    for (int i = 0; i < 2; i++) {
        how.kernel[i] = options->kernel[i];
        how.stride[i] = options->stride[i] == 0 ? options->kernel[i] : options->stride[i];
        how.padding[i] = options->padding[i];
    }
    return how;
}

static void check_pool(wfi_op *op, const wfi_pool2d *how)
{
    if (op->in[0]->shape.ndim != 4)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants x [N, C, H, W]");
    else if (how->kernel[0] > INT32_MAX || how->kernel[1] > INT32_MAX)
        wfi_op_fail(op, WEFT_ERR_TOO_LARGE, "kernel %lld x %lld: at most %d each", (long long)how->kernel[0],
                    (long long)how->kernel[1], INT32_MAX);
    for (int i = 0; i < 2; i++)
        if (how->kernel[i] < 1 || how->stride[i] < 1 || how->padding[i] < 0 || how->padding[i] > how->kernel[i] / 2)
            wfi_op_fail(op, WEFT_ERR_INVALID,
                        "kernel and stride must be positive, padding at most half the kernel and not negative");
}

weft_tensor *weft_max_pool2d_sized(weft_tape *tape, weft_tensor *x, const weft_max_pool2d_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    weft_shape shape = {0, {0}};
    weft_max_pool2d_options own;
    options = WFI_SIZED(options, size, &own);
    if (!wfi_op_knows(tape, &max_pool2d_type, options != NULL))
        return NULL;
    wfi_pool2d how = how_from(options);
    if (!wfi_op_begin(&op, tape, &max_pool2d_type, 0, &x, 1))
        return NULL;
    check_pool(&op, &how);
    if (wfi_op_ok(&op) && wfi_pool2d_shape(&x->shape, &how, &shape) != WEFT_OK)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "the kernel does not fit into the padded input");
    weft_tensor *y = wfi_op_output(&op, shape), *indices = wfi_op_extra(&op, shape, WEFT_DTYPE_INT32);
    if (y && indices)
        wfi_op_check(&op, wfi_max_pool2d(op.in[0], &how, y, indices));
    if (op.node)
        op.node->state->shapes[0] = x->shape;
    wfi_op_save(&op, 0, indices);
    return wfi_op_end(&op);
}

weft_tensor *weft_adaptive_avg_pool2d(weft_tape *tape, weft_tensor *x, int64_t height, int64_t width)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    weft_shape shape = {0, {0}};
    if (!wfi_op_begin(&op, tape, &adaptive_avg_pool2d_type, 0, &x, 1))
        return NULL;
    if (x->shape.ndim != 4)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "wants x [N, C, H, W]");
    else if (height < 1 || width < 1)
        wfi_op_fail(&op, WEFT_ERR_INVALID, "the output's height and width must be positive");
    else if (x->shape.dims[2] < 1 || x->shape.dims[3] < 1)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "there is nothing to average");
    else
        shape = WEFT_SHAPE(x->shape.dims[0], x->shape.dims[1], height, width);
    weft_tensor *y = wfi_op_output(&op, shape);
    if (y)
        wfi_op_check(&op, wfi_adaptive_avg_pool2d(op.in[0], y));
    if (op.node)
        op.node->state->shapes[0] = x->shape;
    return wfi_op_end(&op);
}
