/* SPDX-License-Identifier: Apache-2.0 */
/* dropout.c - dropout and dropout2d: a product with a random mask of 0 and 1 / (1 - p). */
#include "autograd/autograd.h"

/* saved: mask, of x's shape or [N, C, 1, ...] */
static weft_status dropout_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_over(dy, &dx[0]);
    return status == WEFT_OK ? wfi_binary(WFI_MUL, dy, node->saved[0], dx[0]) : status;
}

static const wfi_node_type dropout_type = {.name = "dropout", .backward = dropout_backward};
static const wfi_node_type dropout2d_type = {.name = "dropout2d", .backward = dropout_backward};

static weft_tensor *apply(wfi_op *op, weft_shape mask_shape, double p)
{
    weft_tensor *x = op->in[0];
    weft_tensor *y = wfi_op_output(op, x->shape), *mask = wfi_op_extra(op, mask_shape, x->dtype);
    if (y && mask && wfi_op_check(op, wfi_random_mask(mask, wfi_tape_random(op->tape), 1 - p, 1 / (1 - p))))
        wfi_op_check(op, wfi_binary(WFI_MUL, x, mask, y));
    wfi_op_save(op, 0, mask);
    return wfi_op_end(op);
}

static bool is_rate(weft_tape *tape, const wfi_node_type *type, double p)
{
    if (p >= 0 && p < 1)
        return true;
    wfi_tape_fail(tape, WEFT_ERR_INVALID, type->name, "%s: the rate %g is not in [0, 1)", type->name, p);
    return false;
}

weft_tensor *weft_dropout(weft_tape *tape, weft_tensor *x, double p, bool train)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!wfi_op_needs(tape, &dropout_type, x, "x") || !is_rate(tape, &dropout_type, p))
        return NULL;
    if (!train || p == 0)
        return x;
    if (!wfi_op_begin(&op, tape, &dropout_type, 0, &x, 1))
        return NULL;
    return apply(&op, x->shape, p);
}

weft_tensor *weft_dropout2d(weft_tape *tape, weft_tensor *x, double p, bool train)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!wfi_op_needs(tape, &dropout2d_type, x, "x") || !is_rate(tape, &dropout2d_type, p))
        return NULL;
    if (!train || p == 0)
        return x;
    if (!wfi_op_begin(&op, tape, &dropout2d_type, 0, &x, 1))
        return NULL;
    weft_shape planes = x->shape;
    if (planes.ndim < 2)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "wants x [N, C, ...]");
    for (int i = 2; i < planes.ndim; i++)
        planes.dims[i] = 1;
    return apply(&op, planes, p);
}
