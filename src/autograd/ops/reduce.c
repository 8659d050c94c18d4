/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - sum, mean, argmax. */
#include "autograd/autograd.h"

/* shapes[0]: x's; mask: the reduced dimensions */
static weft_status reduce_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    const wfi_node_state *state = node->state;
    weft_status status = wfi_grad_like(true, state->shapes[0], dy, &dx[0]);
    return status == WEFT_OK ? wfi_sum_backward(dy, state->mask, state->factor, dx[0]) : status;
}

static const wfi_node_type sum_type = {.name = "sum", .backward = reduce_backward};
static const wfi_node_type mean_type = {.name = "mean", .backward = reduce_backward};
static const wfi_node_type argmax_type = {.name = "argmax"};

static weft_tensor *reduce(wfi_op *op, uint32_t mask, bool keep, bool mean)
{
    weft_tensor *x = op->in[0];
    weft_tensor *y = wfi_op_output(op, wfi_reduce_shape(&x->shape, mask, keep));
    if (y)
        wfi_op_check(op, mean ? wfi_mean(x, mask, y) : wfi_sum(x, mask, y));
    if (op->node && y) {
        op->node->state->shapes[0] = x->shape;
        op->node->state->mask = mask;
        op->node->state->factor = mean && x->numel > 0 ? (double)y->numel / (double)x->numel : 1;
    }
    return wfi_op_end(op);
}

static weft_tensor *reduce_all(weft_tape *tape, const wfi_node_type *type, weft_tensor *x)
{
    wfi_op op;
    return wfi_op_begin(&op, tape, type, 0, &x, 1) ? reduce(&op, WFI_ALL_DIMS, false, type == &mean_type) : NULL;
}

static weft_tensor *reduce_dim(weft_tape *tape, const wfi_node_type *type, weft_tensor *x, int dim, bool keep)
{
    wfi_op op;
    if (!wfi_op_begin(&op, tape, type, 0, &x, 1))
        return NULL;
    if (!wfi_op_dim(&op, &dim))
        return wfi_op_end(&op);
    return reduce(&op, UINT32_C(1) << dim, keep, type == &mean_type);
}

weft_tensor *weft_sum(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    return reduce_all(tape, &sum_type, x);
}

weft_tensor *weft_mean(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    return reduce_all(tape, &mean_type, x);
}

weft_tensor *weft_sum_dim(weft_tape *tape, weft_tensor *x, int dim, bool keep)
{
    WFI_CHECK_HANDLE(tape, x);
    return reduce_dim(tape, &sum_type, x, dim, keep);
}

weft_tensor *weft_mean_dim(weft_tape *tape, weft_tensor *x, int dim, bool keep)
{
    WFI_CHECK_HANDLE(tape, x);
    return reduce_dim(tape, &mean_type, x, dim, keep);
}

weft_tensor *weft_argmax(weft_tape *tape, weft_tensor *x, int dim)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!wfi_op_begin(&op, tape, &argmax_type, WFI_OP_ANY_DTYPE, &x, 1))
        return NULL;
    if (!wfi_op_dim(&op, &dim))
        return wfi_op_end(&op);
    if (x->shape.dims[dim] == 0)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "dimension %d is empty", dim);
    weft_tensor *y = wfi_op_output_as(&op, wfi_reduce_shape(&x->shape, UINT32_C(1) << dim, false), WEFT_DTYPE_INT64);
    if (y)
        wfi_op_check(&op, wfi_argmax(op.in[0], dim, y));
    return wfi_op_end(&op);
}
