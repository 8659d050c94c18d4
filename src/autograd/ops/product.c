/* SPDX-License-Identifier: Apache-2.0 */
/* product.c - matmul and linear. */
#include "autograd/autograd.h"

/* saved: a [M, K], b [K, L]; dy [M, L]. da = dy b^T, db = a^T dy */
static weft_status matmul_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    const weft_shape *shapes = node->state->shapes;
    weft_status status = wfi_grad_like(node->inputs[0].node != NULL, shapes[0], dy, &dx[0]);
    if (status == WEFT_OK && dx[0])
        status = wfi_matmul(dy, false, node->saved[1], true, dx[0]);
    if (status == WEFT_OK)
        status = wfi_grad_like(node->inputs[1].node != NULL, shapes[1], dy, &dx[1]);
    if (status == WEFT_OK && dx[1])
        status = wfi_matmul(node->saved[0], true, dy, false, dx[1]);
    return status;
}

static const wfi_node_type matmul_type = {.name = "matmul", .backward = matmul_backward};

weft_tensor *weft_matmul(weft_tape *tape, weft_tensor *a, weft_tensor *b)
{
    WFI_CHECK_HANDLE(tape, a, b);
    wfi_op op;
    if (!wfi_op_needs(tape, &matmul_type, a, "the first operand") ||
        !wfi_op_needs(tape, &matmul_type, b, "the second operand") ||
        !wfi_op_begin(&op, tape, &matmul_type, 0, (weft_tensor *[]){a, b}, 2))
        return NULL;
    if (a->shape.ndim != 2 || b->shape.ndim != 2)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "wants two matrices");
    else if (a->shape.dims[1] != b->shape.dims[0])
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "%lld columns of the first do not fit %lld rows of the second",
                    (long long)a->shape.dims[1], (long long)b->shape.dims[0]);
    weft_tensor *y = wfi_op_output(&op, WEFT_SHAPE(a->shape.dims[0], b->shape.dims[1]));
    if (y)
        wfi_op_check(&op, wfi_matmul(op.in[0], false, op.in[1], false, y));
    if (op.node) {
        op.node->state->shapes[0] = a->shape;
        op.node->state->shapes[1] = b->shape;
        wfi_op_save(&op, 0, op.in[0]);
        wfi_op_save(&op, 1, op.in[1]);
    }
    return wfi_op_end(&op);
}

/* A [..., K] tensor as the matrix [rows, K]: itself if it is one, else a view; with a reference. */
static weft_tensor *as_matrix(weft_tensor *x)
{
    int64_t rows = 1; /* not numel / K: K may be 0 */
    for (int d = 0; d < x->shape.ndim - 1; d++)
        rows *= x->shape.dims[d];
    return x->shape.ndim == 2 ? weft_tensor_ref(x)
                              : wfi_tensor_reshape(x, WEFT_SHAPE(rows, x->shape.dims[x->shape.ndim - 1]), NULL);
}

/* saved: x, weight */
static weft_status linear_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_tensor *x = as_matrix(node->saved[0]), *rows = as_matrix(dy), *into = NULL;
    weft_status status = !x || !rows ? WEFT_ERR_MEMORY : WEFT_OK;
    if (status == WEFT_OK)
        status = wfi_grad_like(node->inputs[0].node != NULL, node->saved[0]->shape, dy, &dx[0]);
    if (status == WEFT_OK)
        status = wfi_grad_like(node->inputs[1].node != NULL, node->saved[1]->shape, dy, &dx[1]);
    if (status == WEFT_OK)
        status = wfi_grad_like(node->inputs[2].node != NULL, WEFT_SHAPE(rows->shape.dims[1]), dy, &dx[2]);
    if (status == WEFT_OK && dx[0] && !(into = as_matrix(dx[0])))
        status = WEFT_ERR_MEMORY;
    if (status == WEFT_OK)
        status = wfi_linear_backward(rows, x, node->saved[1], into, dx[1], dx[2]);
    weft_tensor_unref(into);
    weft_tensor_unref(rows);
    weft_tensor_unref(x);
    return status;
}

static const wfi_node_type linear_type = {.name = "linear", .backward = linear_backward};

static void check_linear(wfi_op *op, const weft_shape *x, const weft_shape *weight, const weft_tensor *bias)
{
    if (x->ndim < 1 || weight->ndim != 2)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants x [..., I] and weight [O, I]");
    else if (x->dims[x->ndim - 1] != weight->dims[1])
        wfi_op_fail(op, WEFT_ERR_SHAPE, "x has %lld features, the weight wants %lld", (long long)x->dims[x->ndim - 1],
                    (long long)weight->dims[1]);
    else if (bias && (bias->shape.ndim != 1 || bias->shape.dims[0] != weight->dims[0]))
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants a bias of %lld elements", (long long)weight->dims[0]);
}

static weft_status run_linear(wfi_op *op, weft_tensor *y)
{
    weft_tensor *x = as_matrix(op->in[0]), *rows = as_matrix(y);
    weft_status status = WEFT_ERR_MEMORY;
    if (x && rows)
        status = wfi_linear(x, op->in[1], op->in[2], rows);
    weft_tensor_unref(rows);
    weft_tensor_unref(x);
    return status;
}

weft_tensor *weft_linear(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias)
{
    WFI_CHECK_HANDLE(tape, x, weight, bias);
    wfi_op op;
    if (!wfi_op_needs(tape, &linear_type, x, "x") || !wfi_op_needs(tape, &linear_type, weight, "the weight") ||
        !wfi_op_begin(&op, tape, &linear_type, 0, (weft_tensor *[]){x, weight, bias}, 3))
        return NULL;
    check_linear(&op, &x->shape, &weight->shape, bias);
    weft_shape shape = x->shape;
    if (wfi_op_ok(&op))
        shape.dims[shape.ndim - 1] = weight->shape.dims[0];
    weft_tensor *y = wfi_op_output(&op, shape);
    if (y)
        wfi_op_check(&op, run_linear(&op, y));
    wfi_op_save(&op, 0, op.in[0]);
    wfi_op_save(&op, 1, op.in[1]);
    return wfi_op_end(&op);
}
