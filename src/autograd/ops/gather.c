/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c - gather: elements picked along one dimension by an index. */
#include "autograd/autograd.h"

/* saved: index; shapes[0]: x's; dims[0] */
static weft_status gather_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_new(true, node->state->shapes[0], dy->dtype, &dx[0]);
    return status == WEFT_OK ? wfi_gather_backward(dy, node->state->dims[0], node->saved[0], dx[0]) : status;
}

static const wfi_node_type gather_type = {.name = "gather", .backward = gather_backward};

static void check_index(wfi_op *op, int dim, const weft_tensor *index)
{
    const weft_shape *x = &op->in[0]->shape;
    char text[WFI_SHAPE_TEXT];
    if (index->dtype != WEFT_INT64)
        wfi_op_fail(op, WEFT_ERR_TYPE, "the index must be int64, not %s", weft_dtype_name(index->dtype));
    else if (!wfi_gather_fits(x, dim, &index->shape))
        wfi_op_fail(op, WEFT_ERR_SHAPE,
                    "the index %s must have as many dimensions, and be no larger but along dimension %d",
                    wfi_shape_text(&index->shape, text), dim);
}

static void run_gather(wfi_op *op, int dim, weft_tensor *index, weft_tensor *y)
{
    weft_tensor *packed = weft_tape_take(op->tape, weft_tensor_contiguous(index));
    if (packed == NULL) {
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
        return;
    }
    int64_t size = op->in[0]->shape.dims[dim], outside = wfi_index_outside(packed, size);
    if (outside >= 0)
        wfi_op_fail(op, WEFT_ERR_INVALID, "element %lld of the index is %lld, not in [0, %lld)", (long long)outside,
                    (long long)weft_tensor_get_i64(packed, outside), (long long)size);
    else
        wfi_op_check(op, wfi_gather(op->in[0], dim, packed, y));
    wfi_op_save(op, 0, packed);
}

weft_tensor *weft_gather(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index)
{
    wfi_op op;
    if (!wfi_op_needs(tape, &gather_type, x, "x") || !wfi_op_needs(tape, &gather_type, index, "the index") ||
        !wfi_op_begin(&op, tape, &gather_type, WFI_OP_ANY_DTYPE, &x, 1))
        return NULL;
    if (wfi_op_dim(&op, &dim))
        check_index(&op, dim, index);
    weft_tensor *y = wfi_op_output(&op, index->shape);
    if (y != NULL)
        run_gather(&op, dim, index, y);
    if (op.node != NULL) {
        op.node->state->shapes[0] = x->shape;
        op.node->state->dims[0] = dim;
    }
    return wfi_op_end(&op);
}
