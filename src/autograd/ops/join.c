/* SPDX-License-Identifier: Apache-2.0 */
/* join.c - stack and concat: a list of tensors side by side along one dimension, new or old. */
#include "autograd/autograd.h"
#include "tensor/copy.h"

/* Where input i lies in `y` along `dim`, as a view. starts [inputs + 1], on the CPU; NULL: they are stacked. NULL: no
 * memory. */
static weft_tensor *place_of(weft_tensor *y, int dim, const weft_tensor *starts, size_t i)
{
    if (!starts)
        return wfi_tensor_select(y, dim, (int64_t)i, NULL);
    const int64_t *start = wfi_tensor_address(starts);
    return wfi_tensor_narrow(y, dim, start[i], start[i + 1] - start[i], NULL);
}

/* saved: starts; dims[0]. Each gradient is dy's part: a view where that is contiguous. */
static weft_status join_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    for (size_t i = 0; i < node->input_count; i++) {
        if (!node->inputs[i].node)
            continue;
        weft_tensor *part = place_of(dy, node->state->dims[0], node->saved[0], i);
        dx[i] = !part ? NULL : wfi_tensor_contiguous(part, NULL);
        weft_tensor_unref(part);
        if (!dx[i])
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

static const wfi_node_type stack_type = {.name = "stack", .backward = join_backward};
static const wfi_node_type concat_type = {.name = "concat", .backward = join_backward};

static weft_tensor *join(wfi_op *op, weft_shape shape, int dim, weft_tensor *starts)
{
    weft_tensor *y = wfi_op_output(op, shape);
    for (size_t i = 0; i < op->given_count && wfi_op_ok(op); i++) {
        weft_tensor *place = place_of(y, dim, starts, i);
        wfi_op_check(op, !place ? WEFT_ERR_MEMORY : wfi_copy(op->list[i], place));
        weft_tensor_unref(place);
    }
    if (op->node)
        op->node->state->dims[0] = dim;
    wfi_op_save(op, 0, starts);
    return wfi_op_end(op);
}

static void fail_of_shapes(wfi_op *op, size_t which)
{
    char first[WFI_SHAPE_TEXT], other[WFI_SHAPE_TEXT];
    wfi_op_fail(op, WEFT_ERR_SHAPE, "operand %zu is %s and does not fit the first, %s", which,
                wfi_shape_text(&op->given[which]->shape, other), wfi_shape_text(&op->given[0]->shape, first));
}

weft_tensor *weft_stack(weft_tape *tape, weft_tensors xs, int dim)
{
    WFI_CHECK_HANDLE(tape);
    wfi_op op;
    if (!wfi_op_begin_list(&op, tape, &stack_type, xs, 1))
        return NULL;
    weft_shape shape = xs.items[0]->shape;
    for (size_t i = 1; i < xs.count && wfi_op_ok(&op); i++)
        if (!weft_tensor_same_shape(xs.items[0], xs.items[i]))
            fail_of_shapes(&op, i);
    if (shape.ndim == WEFT_MAX_DIMS)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "a dimension more than %d", WEFT_MAX_DIMS);
    else if (!wfi_dim_wrap(shape.ndim + 1, &dim))
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "there is no dimension %d in the result", dim);
    if (!wfi_op_ok(&op))
        return wfi_op_end(&op);
    for (int d = shape.ndim++; d > dim; d--)
        shape.dims[d] = shape.dims[d - 1];
    shape.dims[dim] = (int64_t)xs.count;
    return join(&op, shape, dim, NULL);
}

static bool fits_but_for(const weft_shape *a, const weft_shape *b, int dim)
{
    for (int d = 0; d < a->ndim && a->ndim == b->ndim; d++)
        if (d != dim && a->dims[d] != b->dims[d])
            return false;
    return a->ndim == b->ndim;
}

/* starts[i]: where the operand begins along `dim`; the last: how long the result is. */
static void set_starts(wfi_op *op, int dim, int64_t *starts)
{
    starts[0] = 0;
    for (size_t i = 0; i < op->given_count && wfi_op_ok(op); i++) {
        const weft_shape *shape = &op->given[i]->shape;
        if (!fits_but_for(&op->given[0]->shape, shape, dim))
            fail_of_shapes(op, i);
        else if (__builtin_add_overflow(starts[i], shape->dims[dim], &starts[i + 1]))
            wfi_op_fail(op, WEFT_ERR_SHAPE, "too many elements along dimension %d", dim);
    }
}

weft_tensor *weft_concat(weft_tape *tape, weft_tensors xs, int dim)
{
    WFI_CHECK_HANDLE(tape);
    wfi_op op;
    if (!wfi_op_begin_list(&op, tape, &concat_type, xs, 1))
        return NULL;
    wfi_op_dim(&op, &dim);
    weft_shape shape = xs.items[0]->shape;
    weft_tensor *starts =
        weft_tape_take(tape, wfi_tensor_empty(WEFT_SHAPE((int64_t)xs.count + 1), WEFT_DTYPE_INT64, NULL));
    if (!starts && wfi_op_ok(&op))
        wfi_op_fail(&op, WEFT_ERR_MEMORY, "out of memory");
    if (starts)
        set_starts(&op, dim, wfi_tensor_address(starts));
    if (!starts || !wfi_op_ok(&op))
        return wfi_op_end(&op);
    shape.dims[dim] = ((const int64_t *)wfi_tensor_address(starts))[xs.count];
    return join(&op, shape, dim, starts);
}
