/* SPDX-License-Identifier: Apache-2.0 */
/* embedding.c - embedding and embedding_bag: rows of a table picked by their numbers. */
#include "autograd/autograd.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/embedding.h"

/* The packed index; NULL: failed. Kept by the tape. */
static weft_tensor *pack_numbers(wfi_op *op, weft_tensor *numbers, const char *name)
{
    if (!wfi_op_ok(op))
        return NULL;
    if (numbers->dtype != WEFT_DTYPE_INT64) {
        wfi_op_fail(op, WEFT_ERR_TYPE, "%s must be int64, not %s", name, weft_dtype_name(numbers->dtype));
        return NULL;
    }
    if (!wfi_op_is_here(op, numbers, name))
        return NULL;
    weft_tensor *packed = weft_tape_take(op->tape, wfi_tensor_contiguous(numbers, NULL));
    if (!packed)
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
    return packed;
}

static bool check_table(wfi_op *op)
{
    if (op->in[0]->shape.ndim != 2)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants a weight [V, D]");
    return wfi_op_ok(op);
}

/* The row that is padding, >= 0; -1: none. */
static int64_t padding_row(wfi_op *op, bool padding, int64_t row)
{
    int64_t rows = op->in[0]->shape.dims[0];
    if (!padding)
        return -1;
    if (row < -rows || row >= rows)
        wfi_op_fail(op, WEFT_ERR_INVALID, "the padding's row %lld is not in [-%lld, %lld)", (long long)row,
                    (long long)rows, (long long)rows);
    return row < 0 ? row + rows : row;
}

/* ---- embedding. saved: index; shapes[0]: the weight's; start: the padding's row ---- */

static weft_status embedding_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, node->state->shapes[0], dy, &dx[0]);
    return status == WEFT_OK ? wfi_embedding_backward(dy, node->saved[0], node->state->start, dx[0]) : status;
}

/* New tensors for n rows of `width`, on the device of dy. WEFT_ERR_MEMORY. */
static weft_status new_rows(int64_t n, int64_t width, const weft_tensor *dy, weft_tensor **rows, weft_tensor **values)
{
    *rows = wfi_tensor_empty_like(dy, WEFT_SHAPE(n), WEFT_DTYPE_INT64);
    *values = wfi_tensor_empty_like(dy, WEFT_SHAPE(n, width), dy->dtype);
    return *rows && *values ? WEFT_OK : WEFT_ERR_MEMORY;
}

/* For a backward_rows function that has failed: no rows. */
static weft_status end_rows(weft_status status, weft_tensor **rows, weft_tensor **values)
{
    if (status == WEFT_OK)
        return WEFT_OK;
    weft_tensor_unref(*rows);
    weft_tensor_unref(*values);
    *rows = *values = NULL;
    return status;
}

/* All rows of dy, as they are. The index is copied: the program may change it before a step uses the gradient. */
static weft_status all_rows(weft_tensor *dy, weft_tensor *index, int64_t width, weft_tensor **rows,
                            weft_tensor **values)
{
    weft_tensor *copy = wfi_tensor_clone(index, NULL);
    *rows = wfi_tensor_reshape(copy, WEFT_SHAPE(index->numel), NULL);
    *values = wfi_tensor_reshape(dy, WEFT_SHAPE(index->numel, width), NULL);
    weft_tensor_unref(copy);
    return *rows && *values ? WEFT_OK : WEFT_ERR_MEMORY;
}

static weft_status embedding_backward_rows(const wfi_node *node, weft_tensor *dy, weft_tensor **rows,
                                           weft_tensor **values)
{
    weft_tensor *index = node->saved[0];
    int64_t padding = node->state->start, width = node->state->shapes[0].dims[1];
    if (!node->state->sparse)
        return WEFT_OK;
    int64_t n = wfi_index_rows(index, padding);
    if (n == index->numel && (padding < 0 || weft_tensor_device(index).kind == WEFT_DEVICE_CPU))
        return end_rows(all_rows(dy, index, width, rows, values), rows, values);
    weft_status status = new_rows(n, width, dy, rows, values);
    if (status == WEFT_OK)
        status = wfi_embedding_backward_rows(dy, index, padding, *rows, *values);
    return end_rows(status, rows, values);
}

static const wfi_node_type embedding_type = {
    .name = "embedding", .backward = embedding_backward, .backward_rows = embedding_backward_rows};

static weft_shape with_width(weft_shape shape, int64_t width)
{
    shape.dims[shape.ndim++] = width;
    return shape;
}

static void run_embedding(wfi_op *op, weft_tensor *index, const weft_embedding_options *options)
{
    weft_tensor *packed = check_table(op) ? pack_numbers(op, index, "the index") : NULL;
    packed = !packed ? NULL : wfi_op_checked(op, WFI_CHECK_INDEX, packed, op->in[0]->shape.dims[0]);
    if (!packed)
        return;
    if (packed->shape.ndim == WEFT_MAX_DIMS) {
        wfi_op_fail(op, WEFT_ERR_SHAPE, "the index has %d dimensions, one too many", packed->shape.ndim);
        return;
    }
    int64_t padding = padding_row(op, options->padding, options->padding_row);
    weft_tensor *y = wfi_op_output(op, with_width(packed->shape, op->in[0]->shape.dims[1]));
    if (y)
        wfi_op_check(op, wfi_embedding(op->in[0], packed, y));
    wfi_op_save(op, 0, packed);
    if (op->node) {
        op->node->state->shapes[0] = op->in[0]->shape;
        op->node->state->start = padding;
        op->node->state->sparse = options->sparse;
    }
}

weft_tensor *weft_embedding_sized(weft_tape *tape, weft_tensor *weight, weft_tensor *index,
                                  const weft_embedding_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape, weight, index);
    wfi_op op;
    weft_embedding_options own;
    options = WFI_SIZED(options, size, &own);
    if (!wfi_op_knows(tape, &embedding_type, options && WFI_ROOM_IS_ZERO(options)) ||
        !wfi_op_needs(tape, &embedding_type, weight, "the weight") ||
        !wfi_op_needs(tape, &embedding_type, index, "the index") ||
        !wfi_op_begin(&op, tape, &embedding_type, WFI_OP_HOLD_FIRST, &weight, 1))
        return NULL;
    run_embedding(&op, index, options);
    return wfi_op_end(&op);
}

/* ---- embedding_bag. saved: as below; shapes[0]: the weight's; dims[0]: mode; start: the padding's row ---- */

enum { INDEX, OFFSETS, SCALE_OR_PICKED, WEIGHT };

static wfi_bags bags_of(const wfi_node *node)
{
    wfi_bag_mode mode = (wfi_bag_mode)node->state->dims[0];
    return (wfi_bags){.index = node->saved[INDEX],
                      .offsets = node->saved[OFFSETS],
                      .scale = mode == WFI_BAG_MAX ? NULL : node->saved[SCALE_OR_PICKED],
                      .mode = mode,
                      .padding = node->state->start};
}

static weft_status embedding_bag_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    wfi_bags bags = bags_of(node);
    weft_status status = wfi_grad_like(node->inputs[0].node != NULL, node->state->shapes[0], dy, &dx[0]);
    if (status == WEFT_OK && dx[0])
        status = wfi_bag_backward(dy, &bags, node->saved[SCALE_OR_PICKED], dx[0]);
    if (status == WEFT_OK && bags.scale && node->inputs[1].node) {
        status = wfi_grad_like(true, bags.scale->shape, dy, &dx[1]);
        if (status == WEFT_OK)
            status = wfi_bag_backward_scale(dy, &bags, node->saved[WEIGHT], dx[1]);
    }
    return status;
}

static weft_status embedding_bag_backward_rows(const wfi_node *node, weft_tensor *dy, weft_tensor **rows,
                                               weft_tensor **values)
{
    wfi_bags bags = bags_of(node);
    if (!node->state->sparse || node->inputs[1].node)
        return WEFT_OK;
    int64_t n = wfi_index_rows(bags.index, bags.padding);
    weft_status status = new_rows(n, node->state->shapes[0].dims[1], dy, rows, values);
    if (status == WEFT_OK)
        status = wfi_bag_backward_rows(dy, &bags, *rows, *values);
    return end_rows(status, rows, values);
}

static const wfi_node_type embedding_bag_type = {
    .name = "embedding_bag", .backward = embedding_bag_backward, .backward_rows = embedding_bag_backward_rows};

/* On a GPU, replaces the offsets by a safe copy. */
static void check_bags(wfi_op *op, wfi_bags *bags)
{
    const weft_tensor *index = bags->index, *offsets = bags->offsets;
    if (!index)
        return; /* the operator has failed */
    if (!offsets && index->shape.ndim != 2)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "without offsets the index must be [B, L], not of %d dimensions",
                    index->shape.ndim);
    else if (offsets && (index->shape.ndim != 1 || offsets->shape.ndim != 1))
        wfi_op_fail(op, WEFT_ERR_SHAPE, "with offsets [B] the index must be [n]; they have %d and %d dimensions",
                    offsets->shape.ndim, index->shape.ndim);
    else if (bags->scale && !weft_tensor_same_shape(bags->scale, index))
        wfi_op_fail(op, WEFT_ERR_SHAPE, "the sample weights must have the index's shape");
    else if (bags->scale && bags->mode != WFI_BAG_SUM)
        wfi_op_fail(op, WEFT_ERR_INVALID, "sample weights are for sums alone");
    else if (offsets && offsets->numel == 0 && index->numel > 0)
        wfi_op_fail(op, WEFT_ERR_INVALID, "there are %lld indices, but no bag", (long long)index->numel);
    else if (offsets)
        bags->offsets = wfi_op_checked(op, WFI_CHECK_OFFSETS, (weft_tensor *)offsets, index->numel);
}

static void save_bags(wfi_op *op, const wfi_bags *bags, weft_tensor *picked, bool sparse)
{
    wfi_op_save(op, INDEX, (weft_tensor *)bags->index);
    wfi_op_save(op, OFFSETS, (weft_tensor *)bags->offsets);
    wfi_op_save(op, SCALE_OR_PICKED, picked ? picked : op->in[1]);
    if (!op->node)
        return;
    if (op->node->inputs[1].node)
        wfi_op_save(op, WEIGHT, op->in[0]);
    op->node->state->shapes[0] = op->in[0]->shape;
    op->node->state->dims[0] = (int)bags->mode;
    op->node->state->start = bags->padding;
    op->node->state->sparse = sparse;
}

static void run_bags(wfi_op *op, weft_tensor *index, weft_tensor *offsets, const weft_embedding_bag_options *how)
{
    static const wfi_bag_mode modes[] = {
        [WEFT_BAG_MEAN] = WFI_BAG_MEAN, [WEFT_BAG_SUM] = WFI_BAG_SUM, [WEFT_BAG_MAX] = WFI_BAG_MAX};
    if (!check_table(op))
        return;
    if ((unsigned)how->mode > WEFT_BAG_MAX) {
        wfi_op_fail(op, WEFT_ERR_INVALID, "there is no mode %d", (int)how->mode);
        return;
    }
    if (how->sparse && how->mode == WEFT_BAG_MAX) {
        wfi_op_fail(op, WEFT_ERR_INVALID,
                    "the gradient of a largest element is not by rows: no sparse with WEFT_BAG_MAX");
        return;
    }
    wfi_bags bags = {.index = pack_numbers(op, index, "the index"),
                     .offsets = !offsets ? NULL : pack_numbers(op, offsets, "the list of offsets"),
                     .scale = op->in[1],
                     .mode = modes[how->mode],
                     .padding = padding_row(op, how->padding, how->padding_row)};
    if (wfi_op_ok(op))
        check_bags(op, &bags);
    if (wfi_op_ok(op))
        bags.index = wfi_op_checked(op, WFI_CHECK_INDEX, (weft_tensor *)bags.index, op->in[0]->shape.dims[0]);
    if (!wfi_op_ok(op))
        return;
    weft_shape shape = WEFT_SHAPE(wfi_bags_count(&bags), op->in[0]->shape.dims[1]);
    weft_tensor *picked = NULL, *y = wfi_op_output(op, shape);
    if (bags.mode == WFI_BAG_MAX && op->node)
        picked = wfi_op_extra(op, shape, WEFT_DTYPE_INT64);
    if (wfi_op_ok(op) && wfi_op_check(op, wfi_bag(op->in[0], &bags, y, picked)))
        save_bags(op, &bags, picked, how->sparse);
}

weft_tensor *weft_embedding_bag_sized(weft_tape *tape, weft_tensor *weight, weft_tensor *index, weft_tensor *offsets,
                                      weft_tensor *sample_weights, const weft_embedding_bag_options *options,
                                      size_t size)
{
    WFI_CHECK_HANDLE(tape, weight, index, offsets, sample_weights);
    wfi_op op;
    weft_embedding_bag_options own;
    options = WFI_SIZED(options, size, &own);
    if (!wfi_op_knows(tape, &embedding_bag_type, options && WFI_ROOM_IS_ZERO(options)) ||
        !wfi_op_needs(tape, &embedding_bag_type, weight, "the weight") ||
        !wfi_op_needs(tape, &embedding_bag_type, index, "the index") ||
        !wfi_op_begin(&op, tape, &embedding_bag_type, WFI_OP_HOLD_FIRST, (weft_tensor *[]){weight, sample_weights}, 2))
        return NULL;
    run_bags(&op, index, offsets, options);
    return wfi_op_end(&op);
}
