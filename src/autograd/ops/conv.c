/* SPDX-License-Identifier: Apache-2.0 */
/* conv.c - conv2d. tensor/cpu/product/conv.c leads to the kernels of each device. */
#include "autograd/autograd.h"

/* saved: x, weight */
static weft_status conv2d_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    const weft_tensor *x = node->saved[0], *weight = node->saved[1];
    const wfi_conv2d *how = &node->state->conv;
    weft_status status = wfi_grad_like(node->inputs[0].node != NULL, x->shape, dy, &dx[0]);
    if (status == WEFT_OK && dx[0])
        status = wfi_conv2d_backward_data(dy, weight, how, dx[0]);
    if (status != WEFT_OK || (!node->inputs[1].node && !node->inputs[2].node))
        return status;
    /* The kernel makes both or the weight's alone. */
    weft_tensor *dweight = NULL;
    status = wfi_grad_like(true, weight->shape, dy, &dweight);
    if (status == WEFT_OK)
        status = wfi_grad_like(node->inputs[2].node != NULL, WEFT_SHAPE(dy->shape.dims[1]), dy, &dx[2]);
    if (status == WEFT_OK)
        status = wfi_conv2d_backward_weight(dy, x, how, dweight, dx[2]);
    if (status == WEFT_OK && node->inputs[1].node)
        dx[1] = weft_tensor_ref(dweight);
    weft_tensor_unref(dweight);
    return status;
}

static const wfi_node_type conv2d_type = {.name = "conv2d", .backward = conv2d_backward};

static int64_t or_default(int64_t value, int64_t otherwise)
{
    return value == 0 ? otherwise : value;
}

static wfi_conv2d how_from(const weft_conv2d_options *options)
{
    wfi_conv2d how = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    for (int i = 0; i < 2; i++) {
        how.stride[i] = or_default(options->stride[i], 1);
        how.padding[i] = options->padding[i];
        how.dilation[i] = or_default(options->dilation[i], 1);
    }
    how.groups = or_default(options->groups, 1);
    return how;
}

static bool is_large(const char *what, const int64_t sizes[2], wfi_op *op)
{
    if (sizes[0] <= INT32_MAX && sizes[1] <= INT32_MAX)
        return false;
    wfi_op_fail(op, WEFT_ERR_TOO_LARGE, "%s %lld x %lld: at most %d each", what, (long long)sizes[0],
                (long long)sizes[1], INT32_MAX);
    return true;
}

/* Says what the kernel would only refuse. */
static void check_conv2d(wfi_op *op, const wfi_conv2d *how)
{
    const weft_shape *x = &op->in[0]->shape, *weight = &op->in[1]->shape;
    const weft_tensor *bias = op->in[2];
    if (x->ndim != 4 || weight->ndim != 4)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants x [N, C, H, W] and weight [O, C, KH, KW]");
    else if (how->stride[0] < 1 || how->stride[1] < 1 || how->dilation[0] < 1 || how->dilation[1] < 1 ||
             how->padding[0] < 0 || how->padding[1] < 0 || how->groups < 1)
        wfi_op_fail(op, WEFT_ERR_INVALID, "stride, dilation and groups must be positive, padding not negative");
    else if (is_large("padding", how->padding, op) || is_large("stride", how->stride, op) ||
             is_large("dilation", how->dilation, op))
        return;
    else if (x->dims[1] % how->groups != 0 || weight->dims[0] % how->groups != 0)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "the channels do not divide into %lld groups", (long long)how->groups);
    else if (x->dims[1] / how->groups != weight->dims[1])
        wfi_op_fail(op, WEFT_ERR_SHAPE, "x has %lld channels a group, the weight wants %lld",
                    (long long)(x->dims[1] / how->groups), (long long)weight->dims[1]);
    else if (bias && (bias->shape.ndim != 1 || bias->shape.dims[0] != weight->dims[0]))
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants a bias of %lld elements", (long long)weight->dims[0]);
}

weft_tensor *weft_conv2d_sized(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                               const weft_conv2d_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape, x, weight, bias);
    wfi_op op;
    weft_shape shape = {0, {0}};
    weft_conv2d_options own;
    options = WFI_SIZED(options, size, &own);
    if (!wfi_op_knows(tape, &conv2d_type, options && WFI_ROOM_IS_ZERO(options)))
        return NULL;
    wfi_conv2d how = how_from(options);
    if (!wfi_op_needs(tape, &conv2d_type, x, "x") || !wfi_op_needs(tape, &conv2d_type, weight, "the weight") ||
        !wfi_op_begin(&op, tape, &conv2d_type, 0, (weft_tensor *[]){x, weight, bias}, 3))
        return NULL;
    check_conv2d(&op, &how);
    if (wfi_op_ok(&op) && wfi_conv2d_shape(&x->shape, &weight->shape, &how, &shape) != WEFT_OK)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "the kernel does not fit into the padded input");
    weft_tensor *y = wfi_op_output(&op, shape);
    if (y)
        wfi_op_check(&op, wfi_conv2d_forward(op.in[0], op.in[1], op.in[2], &how, y));
    if (op.node)
        op.node->state->conv = how;
    wfi_op_save(&op, 0, op.in[0]);
    wfi_op_save(&op, 1, op.in[1]);
    return wfi_op_end(&op);
}
