/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c - take_along_dim, index_select and scatter_add: an index picks elements or slices along one dimension. */
#include "autograd/autograd.h"
#include "tensor/copy.h"

/* saved: index; shapes[0]: x's; dims[0] */
static weft_status gather_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, node->state->shapes[0], dy, &dx[0]);
    return status == WEFT_OK ? wfi_gather_backward(dy, node->state->dims[0], node->saved[0], dx[0]) : status;
}

/* saved: index; shapes[0]: x's; dims[0] */
static weft_status index_select_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, node->state->shapes[0], dy, &dx[0]);
    return status == WEFT_OK ? wfi_index_select_backward(dy, node->state->dims[0], node->saved[0], dx[0]) : status;
}

/* saved: index; dims[0]. x's gradient is y's, the source's what lies where it was added. */
static weft_status scatter_add_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    if (node->inputs[0].node)
        dx[0] = weft_tensor_ref(dy);
    if (!node->inputs[1].node)
        return WEFT_OK;
    weft_status status = wfi_grad_like(true, node->saved[0]->shape, dy, &dx[1]);
    return status == WEFT_OK ? wfi_gather(dy, node->state->dims[0], node->saved[0], dx[1]) : status;
}

static const wfi_node_type gather_type = {.name = "take_along_dim", .backward = gather_backward};
static const wfi_node_type index_select_type = {.name = "index_select", .backward = index_select_backward};
static const wfi_node_type scatter_add_type = {.name = "scatter_add", .backward = scatter_add_backward};

static void check_index(wfi_op *op, int dim, const weft_tensor *index)
{
    const weft_shape *x = &op->in[0]->shape;
    char text[WFI_SHAPE_TEXT];
    if (index->dtype != WEFT_DTYPE_INT64)
        wfi_op_fail(op, WEFT_ERR_TYPE, "the index must be int64, not %s", weft_dtype_name(index->dtype));
    else if (!wfi_gather_fits(x, dim, &index->shape))
        wfi_op_fail(op, WEFT_ERR_SHAPE,
                    "the index %s must have as many dimensions, and be no larger but along dimension %d",
                    wfi_shape_text(&index->shape, text), dim);
}

/* The index contiguous, on the tape, its elements inside of `dim`. NULL: failed. */
static weft_tensor *pack_index(wfi_op *op, int dim, weft_tensor *index)
{
    weft_tensor *packed = wfi_op_ok(op) && wfi_op_is_here(op, index, "the index")
                              ? weft_tape_take(op->tape, wfi_tensor_contiguous(index, NULL))
                              : NULL;
    if (!packed) {
        if (wfi_op_ok(op))
            wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
        return NULL;
    }
    return wfi_op_checked(op, WFI_CHECK_INDEX, packed, op->in[0]->shape.dims[dim]);
}

static void keep(wfi_op *op, int dim, weft_tensor *index)
{
    wfi_op_save(op, 0, index);
    if (!op->node)
        return;
    op->node->state->shapes[0] = op->given[0]->shape;
    op->node->state->dims[0] = dim;
}

weft_tensor *weft_take_along_dim(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index)
{
    WFI_CHECK_HANDLE(tape, x, index);
    wfi_op op;
    if (!wfi_op_needs(tape, &gather_type, x, "x") || !wfi_op_needs(tape, &gather_type, index, "the index") ||
        !wfi_op_begin(&op, tape, &gather_type, WFI_OP_ANY_DTYPE, &x, 1))
        return NULL;
    if (wfi_op_dim(&op, &dim))
        check_index(&op, dim, index);
    weft_tensor *packed = pack_index(&op, dim, index);
    weft_tensor *y = !packed ? NULL : wfi_op_output(&op, index->shape);
    if (y)
        wfi_op_check(&op, wfi_gather(op.in[0], dim, packed, y));
    keep(&op, dim, packed);
    return wfi_op_end(&op);
}

weft_tensor *weft_index_select(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index)
{
    WFI_CHECK_HANDLE(tape, x, index);
    wfi_op op;
    if (!wfi_op_needs(tape, &index_select_type, x, "x") ||
        !wfi_op_needs(tape, &index_select_type, index, "the index") ||
        !wfi_op_begin(&op, tape, &index_select_type, WFI_OP_ANY_DTYPE, &x, 1))
        return NULL;
    char text[WFI_SHAPE_TEXT];
    wfi_op_dim(&op, &dim);
    if (wfi_op_ok(&op) && index->dtype != WEFT_DTYPE_INT64)
        wfi_op_fail(&op, WEFT_ERR_TYPE, "the index must be int64, not %s", weft_dtype_name(index->dtype));
    if (wfi_op_ok(&op) && index->shape.ndim != 1)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "the index must have one dimension, not %s",
                    wfi_shape_text(&index->shape, text));
    weft_tensor *packed = pack_index(&op, dim, index);
    weft_shape shape = x->shape;
    if (packed)
        shape.dims[dim] = packed->numel;
    weft_tensor *y = !packed ? NULL : wfi_op_output(&op, shape);
    if (y)
        wfi_op_check(&op, wfi_index_select(op.in[0], dim, packed, y));
    keep(&op, dim, packed);
    return wfi_op_end(&op);
}

weft_tensor *weft_scatter_add(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index, weft_tensor *source)
{
    WFI_CHECK_HANDLE(tape, x, index, source);
    wfi_op op;
    const wfi_node_type *type = &scatter_add_type;
    if (!wfi_op_needs(tape, type, x, "x") || !wfi_op_needs(tape, type, index, "the index") ||
        !wfi_op_needs(tape, type, source, "the source") ||
        !wfi_op_begin(&op, tape, type, 0, (weft_tensor *[]){x, source}, 2))
        return NULL;
    char text[WFI_SHAPE_TEXT], index_text[WFI_SHAPE_TEXT];
    if (wfi_op_dim(&op, &dim))
        check_index(&op, dim, index);
    if (wfi_op_ok(&op) && !wfi_shape_equal(&index->shape, &source->shape))
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "the source is %s, and the index %s: they must be of one shape",
                    wfi_shape_text(&source->shape, text), wfi_shape_text(&index->shape, index_text));
    weft_tensor *packed = pack_index(&op, dim, index);
    weft_tensor *y = !packed ? NULL : wfi_op_output(&op, x->shape);
    if (y && wfi_op_check(&op, wfi_copy(op.in[0], y)))
        wfi_op_check(&op, wfi_scatter_add(op.in[1], dim, packed, y));
    keep(&op, dim, packed);
    return wfi_op_end(&op);
}
