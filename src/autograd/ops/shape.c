/* SPDX-License-Identifier: Apache-2.0 */
/* shape.c - views of other shapes, clone and detach. */
#include "autograd/autograd.h"
#include "tensor/copy.h"

/* shapes[0]: x's */
static weft_status reshape_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    dx[0] = wfi_tensor_reshape(dy, node->state->shapes[0], NULL);
    return !dx[0] ? WEFT_ERR_MEMORY : WEFT_OK;
}

static weft_status transpose_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_tensor *view = wfi_tensor_transpose(dy, node->state->dims[0], node->state->dims[1], NULL);
    dx[0] = !view ? NULL : wfi_tensor_contiguous(view, NULL);
    weft_tensor_unref(view);
    return !dx[0] ? WEFT_ERR_MEMORY : WEFT_OK;
}

/* dy goes to its place among zeros. dims[1]: whether the dimension was dropped */
static weft_status narrow_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    const wfi_node_state *state = node->state;
    dx[0] = wfi_tensor_full_like(dy, state->shapes[0], dy->dtype, 0);
    if (!dx[0])
        return WEFT_ERR_MEMORY;
    weft_tensor *place = state->dims[1] ? wfi_tensor_select(dx[0], state->dims[0], state->start, NULL)
                                        : wfi_tensor_narrow(dx[0], state->dims[0], state->start,
                                                            node->results[0].shape.dims[state->dims[0]], NULL);
    if (!place)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_copy(dy, place);
    weft_tensor_unref(place);
    return status;
}

static weft_status clone_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    (void)node;
    dx[0] = weft_tensor_ref(dy);
    return WEFT_OK;
}

static const wfi_node_type flatten_type = {.name = "flatten", .backward = reshape_backward};
static const wfi_node_type reshape_type = {.name = "reshape", .backward = reshape_backward};
static const wfi_node_type transpose_type = {.name = "transpose", .backward = transpose_backward};
static const wfi_node_type narrow_type = {.name = "narrow", .backward = narrow_backward};
static const wfi_node_type select_type = {.name = "select", .backward = narrow_backward};
static const wfi_node_type clone_type = {.name = "clone", .backward = clone_backward};
static const wfi_node_type detach_type = {.name = "detach"};

static bool begin_view(wfi_op *op, weft_tape *tape, const wfi_node_type *type, unsigned flags, weft_tensor *x)
{
    if (!wfi_op_begin(op, tape, type, flags | WFI_OP_ANY_DTYPE, &x, 1))
        return false;
    if (op->node)
        op->node->state->shapes[0] = x->shape;
    return true;
}

static weft_tensor *reshape(wfi_op *op, weft_shape shape)
{
    if (wfi_op_ok(op) && wfi_shape_infer(op->in[0]->numel, &shape) != WEFT_OK) {
        char text[WFI_SHAPE_TEXT];
        wfi_op_fail(op, WEFT_ERR_SHAPE, "%lld elements do not fit %s", (long long)op->in[0]->numel,
                    wfi_shape_text(&shape, text));
    }
    if (wfi_op_ok(op))
        wfi_op_give(op, wfi_tensor_reshape(op->in[0], shape, NULL));
    return wfi_op_end(op);
}

weft_tensor *weft_flatten(weft_tape *tape, weft_tensor *x, int from_dim)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    weft_shape shape = {1, {1}};
    if (!begin_view(&op, tape, &flatten_type, 0, x))
        return NULL;
    if (x->shape.ndim > 0 && wfi_op_dim(&op, &from_dim)) {
        shape = x->shape;
        shape.ndim = from_dim + 1;
        for (int i = from_dim + 1; i < x->shape.ndim; i++)
            shape.dims[from_dim] *= x->shape.dims[i];
    }
    return reshape(&op, shape);
}

weft_tensor *weft_reshape(weft_tape *tape, weft_tensor *x, weft_shape shape)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    return begin_view(&op, tape, &reshape_type, 0, x) ? reshape(&op, shape) : NULL;
}

weft_tensor *weft_transpose(weft_tape *tape, weft_tensor *x, int dim0, int dim1)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!begin_view(&op, tape, &transpose_type, WFI_OP_ANY_STRIDES, x))
        return NULL;
    if (wfi_op_dim(&op, &dim0) && wfi_op_dim(&op, &dim1))
        wfi_op_give(&op, wfi_tensor_transpose(x, dim0, dim1, NULL));
    if (op.node) {
        op.node->state->dims[0] = dim0;
        op.node->state->dims[1] = dim1;
    }
    return wfi_op_end(&op);
}

static void remember_place(wfi_op *op, int dim, bool dropped, int64_t start)
{
    if (!op->node)
        return;
    op->node->state->dims[0] = dim;
    op->node->state->dims[1] = dropped;
    op->node->state->start = start;
}

weft_tensor *weft_narrow(weft_tape *tape, weft_tensor *x, int dim, int64_t start, int64_t length)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!begin_view(&op, tape, &narrow_type, WFI_OP_ANY_STRIDES, x))
        return NULL;
    if (wfi_op_dim(&op, &dim)) {
        int64_t size = x->shape.dims[dim];
        if (start < 0 || length < 0 || start > size || length > size - start)
            wfi_op_fail(&op, WEFT_ERR_SHAPE, "%lld elements from %lld on do not lie in dimension %d", (long long)length,
                        (long long)start, dim);
        else
            wfi_op_give(&op, wfi_tensor_narrow(x, dim, start, length, NULL));
    }
    remember_place(&op, dim, false, start);
    return wfi_op_end(&op);
}

weft_tensor *weft_select(weft_tape *tape, weft_tensor *x, int dim, int64_t index)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!begin_view(&op, tape, &select_type, WFI_OP_ANY_STRIDES, x))
        return NULL;
    if (wfi_op_dim(&op, &dim)) {
        if (index < 0 || index >= x->shape.dims[dim])
            wfi_op_fail(&op, WEFT_ERR_SHAPE, "index %lld does not lie in dimension %d", (long long)index, dim);
        else
            wfi_op_give(&op, wfi_tensor_select(x, dim, index, NULL));
    }
    remember_place(&op, dim, true, index);
    return wfi_op_end(&op);
}

weft_tensor *weft_clone(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!begin_view(&op, tape, &clone_type, WFI_OP_ANY_STRIDES, x))
        return NULL;
    wfi_op_give(&op, wfi_tensor_clone(x, NULL));
    return wfi_op_end(&op);
}

weft_tensor *weft_detach(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    weft_tensor *view = NULL;
    if (!begin_view(&op, tape, &detach_type, WFI_OP_ANY_STRIDES, x))
        return NULL;
    if (wfi_op_check(&op, wfi_tensor_view(x, x->shape, x->strides, x->offset, &view)))
        wfi_op_give(&op, view);
    return wfi_op_end(&op);
}
