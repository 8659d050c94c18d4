/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c - softmax, log_softmax, and losses. */
#include "autograd/autograd.h"

/* saved: y; dims[0] */
static weft_status softmax_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, dy->shape, dy, &dx[0]);
    return status == WEFT_OK ? wfi_softmax_backward(dy, node->saved[0], node->state->dims[0], dx[0]) : status;
}

static weft_status log_softmax_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, dy->shape, dy, &dx[0]);
    return status == WEFT_OK ? wfi_logsoftmax_backward(dy, node->saved[0], node->state->dims[0], dx[0]) : status;
}

/* saved: target; shapes[0]: of the log-probabilities */
static weft_status nll_loss_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, node->state->shapes[0], dy, &dx[0]);
    return status == WEFT_OK ? wfi_nll_loss_backward(dy, node->saved[0], node->state->reduction, dx[0]) : status;
}

/* saved: x, target. The target's gradient is the negative of x's. */
static weft_status mse_loss_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_tensor *d = NULL;
    weft_status status = wfi_grad_like(true, node->saved[0]->shape, dy, &d);
    if (status == WEFT_OK)
        status = wfi_mse_loss_backward(dy, node->saved[0], node->saved[1], node->state->reduction, d);
    if (status == WEFT_OK && node->inputs[1].node) {
        status = wfi_grad_like(true, d->shape, d, &dx[1]);
        if (status == WEFT_OK)
            status = wfi_scale(d, -1, dx[1]);
    }
    if (status == WEFT_OK && node->inputs[0].node)
        dx[0] = weft_tensor_ref(d);
    weft_tensor_unref(d);
    return status;
}

static const wfi_node_type softmax_type = {.name = "softmax", .backward = softmax_backward};
static const wfi_node_type log_softmax_type = {.name = "log_softmax", .backward = log_softmax_backward};
static const wfi_node_type nll_loss_type = {.name = "nll_loss", .backward = nll_loss_backward};
static const wfi_node_type cross_entropy_type = {.name = "cross_entropy",
                                                 .backward = nll_loss_backward}; /* after a log_softmax */
static const wfi_node_type mse_loss_type = {.name = "mse_loss", .backward = mse_loss_backward};

static weft_tensor *softmax(weft_tape *tape, const wfi_node_type *type, weft_tensor *x, int dim)
{
    wfi_op op;
    if (!wfi_op_begin(&op, tape, type, 0, &x, 1))
        return NULL;
    wfi_op_dim(&op, &dim);
    weft_tensor *y = wfi_op_output(&op, x->shape);
    if (y)
        wfi_op_check(&op, type == &softmax_type ? wfi_softmax(op.in[0], dim, y) : wfi_logsoftmax(op.in[0], dim, y));
    if (op.node)
        op.node->state->dims[0] = dim;
    wfi_op_save(&op, 0, y);
    return wfi_op_end(&op);
}

weft_tensor *weft_softmax(weft_tape *tape, weft_tensor *x, int dim)
{
    WFI_CHECK_HANDLE(tape, x);
    return softmax(tape, &softmax_type, x, dim);
}

weft_tensor *weft_log_softmax(weft_tape *tape, weft_tensor *x, int dim)
{
    WFI_CHECK_HANDLE(tape, x);
    return softmax(tape, &log_softmax_type, x, dim);
}

static wfi_reduction reduction_from(wfi_op *op, weft_reduction reduction)
{
    switch (reduction) {
    case WEFT_REDUCTION_MEAN:
        return WFI_REDUCE_MEAN;
    case WEFT_REDUCTION_SUM:
        return WFI_REDUCE_SUM;
    case WEFT_REDUCTION_NONE:
        return WFI_REDUCE_NONE;
    }
    wfi_op_fail(op, WEFT_ERR_INVALID, "there is no reduction %d", (int)reduction);
    return WFI_REDUCE_MEAN;
}

/* The target's shape: that of the scores without their classes. */
static weft_shape shape_of_target(const weft_shape *x)
{
    weft_shape shape = {x->ndim - 1, {0}};
    for (int d = 0; d < shape.ndim; d++)
        shape.dims[d] = x->dims[d == 0 ? 0 : d + 1];
    return shape;
}

static void check_target(wfi_op *op, const weft_tensor *target)
{
    const weft_shape *x = &op->in[0]->shape;
    char text[WFI_SHAPE_TEXT], wanted_text[WFI_SHAPE_TEXT];
    if (target->dtype != WEFT_DTYPE_INT64) {
        wfi_op_fail(op, WEFT_ERR_TYPE, "the target must be int64, not %s", weft_dtype_name(target->dtype));
        return;
    }
    if (x->ndim < 1) {
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants scores [N, C, ...] or [C]");
        return;
    }
    weft_shape wanted = shape_of_target(x);
    if (!wfi_shape_equal(&wanted, &target->shape))
        wfi_op_fail(op, WEFT_ERR_SHAPE, "the target must be %s, not %s", wfi_shape_text(&wanted, wanted_text),
                    wfi_shape_text(&target->shape, text));
}

static void run_nll(wfi_op *op, weft_tensor *target, wfi_reduction how, weft_tensor *y)
{
    if (!wfi_op_is_here(op, target, "the target"))
        return;
    weft_tensor *packed = weft_tape_take(op->tape, wfi_tensor_contiguous(target, NULL));
    if (!packed) {
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
        return;
    }
    const weft_shape *x = &op->in[0]->shape;
    packed = wfi_op_checked(op, WFI_CHECK_TARGET, packed, x->dims[x->ndim > 1 ? 1 : 0]);
    if (packed)
        wfi_op_check(op, wfi_nll_loss(op->in[0], packed, how, y));
    wfi_op_save(op, 0, packed);
}

static weft_tensor *nll(weft_tape *tape, const wfi_node_type *type, weft_tensor *log_probabilities, weft_tensor *target,
                        weft_reduction reduction)
{
    wfi_op op;
    if (!wfi_op_needs(tape, type, log_probabilities, "the first operand") ||
        !wfi_op_needs(tape, type, target, "the target") || !wfi_op_begin(&op, tape, type, 0, &log_probabilities, 1))
        return NULL;
    wfi_reduction how = reduction_from(&op, reduction);
    check_target(&op, target);
    weft_tensor *y = wfi_op_output(&op, how == WFI_REDUCE_NONE ? target->shape : WEFT_SCALAR);
    if (y)
        run_nll(&op, target, how, y);
    if (op.node) {
        op.node->state->shapes[0] = log_probabilities->shape;
        op.node->state->reduction = how;
    }
    return wfi_op_end(&op);
}

weft_tensor *weft_nll_loss_reduced(weft_tape *tape, weft_tensor *log_probabilities, weft_tensor *target,
                                   weft_reduction reduction)
{
    WFI_CHECK_HANDLE(tape, log_probabilities, target);
    return nll(tape, &nll_loss_type, log_probabilities, target, reduction);
}

weft_tensor *weft_mse_loss_reduced(weft_tape *tape, weft_tensor *x, weft_tensor *target, weft_reduction reduction)
{
    WFI_CHECK_HANDLE(tape, x, target);
    wfi_op op;
    if (!wfi_op_needs(tape, &mse_loss_type, x, "x") || !wfi_op_needs(tape, &mse_loss_type, target, "the target") ||
        !wfi_op_begin(&op, tape, &mse_loss_type, 0, (weft_tensor *[]){x, target}, 2))
        return NULL;
    wfi_reduction how = reduction_from(&op, reduction);
    if (!wfi_shape_equal(&x->shape, &target->shape))
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "x and target must be of one shape");
    weft_tensor *y = wfi_op_output(&op, how == WFI_REDUCE_NONE ? x->shape : WEFT_SCALAR);
    if (y)
        wfi_op_check(&op, wfi_mse_loss(op.in[0], op.in[1], how, y));
    if (op.node)
        op.node->state->reduction = how;
    wfi_op_save(&op, 0, op.in[0]);
    wfi_op_save(&op, 1, op.in[1]);
    return wfi_op_end(&op);
}

weft_tensor *weft_cross_entropy_reduced(weft_tape *tape, weft_tensor *scores, weft_tensor *target,
                                        weft_reduction reduction)
{
    WFI_CHECK_HANDLE(tape, scores, target);
    if (!wfi_op_needs(tape, &cross_entropy_type, scores, "the first operand"))
        return NULL;
    return nll(tape, &cross_entropy_type, weft_log_softmax(tape, scores, weft_tensor_ndim(scores) > 1 ? 1 : 0), target,
               reduction);
}

weft_tensor *weft_nll_loss(weft_tape *tape, weft_tensor *log_probabilities, weft_tensor *target)
{
    WFI_CHECK_HANDLE(tape, log_probabilities, target);
    return weft_nll_loss_reduced(tape, log_probabilities, target, WEFT_REDUCTION_MEAN);
}

weft_tensor *weft_cross_entropy(weft_tape *tape, weft_tensor *scores, weft_tensor *target)
{
    WFI_CHECK_HANDLE(tape, scores, target);
    return weft_cross_entropy_reduced(tape, scores, target, WEFT_REDUCTION_MEAN);
}

weft_tensor *weft_mse_loss(weft_tape *tape, weft_tensor *x, weft_tensor *target)
{
    WFI_CHECK_HANDLE(tape, x, target);
    return weft_mse_loss_reduced(tape, x, target, WEFT_REDUCTION_MEAN);
}
