/* SPDX-License-Identifier: Apache-2.0 */
/* layers_embedding.c - the modules Embedding and EmbeddingBag: a table of rows, weight [V, D]. */
#include "base/alloc.h"
#include "base/text/sized.h"
#include "nn/nn.h"

#include "tensor/copy.h"
#include "tensor/random.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* The weight: N(0, 1) as in PyTorch, and 0 in the row `padding` (-1: none). NULL: no memory. */
static weft_tensor *table(int64_t rows, int64_t width, int64_t padding, uint64_t seed)
{
    weft_tensor *weight = wfi_tensor_empty(WEFT_SHAPE(rows, width), WEFT_DTYPE_FLOAT32, NULL);
    weft_tensor *zero = padding < 0 ? NULL : wfi_tensor_select(weight, 0, padding, NULL);
    bool made = weight && wfi_random_normal(weight, (wfi_random){seed, 0}, 0, 1) == WEFT_OK;
    if (made && (padding < 0 || zero)) {
        if (zero)
            wfi_fill(zero, 0);
        weft_tensor_unref(zero);
        return weight;
    }
    weft_tensor_unref(zero);
    weft_tensor_unref(weight);
    return NULL;
}

/* A row of the table, counted from the end if below 0; -1: none is wanted. False: there is no such row. */
static bool padding_of(bool padding, int64_t row, int64_t rows, int64_t *out)
{
    *out = !padding ? -1 : row < 0 ? row + rows : row;
    return !padding || (row >= -rows && row < rows);
}

/* `how` is copied into the module's state. */
static weft_module *create(const weft_module_type *type, int64_t rows, int64_t width, int64_t padding, uint64_t seed,
                           const void *how, size_t size, weft_error **error)
{
    int64_t numel;
    if (!wfi_shape_numel(&WEFT_SHAPE(rows, width), &numel))
        return wfi_module_refuse(error, type->name, "rows %lld, width %lld: larger than memory can be", (long long)rows,
                                 (long long)width);
    void *state = wfi_calloc(1, size);
    if (!state)
        return wfi_module_no_memory(error, type->name);
    memcpy(state, how, size);
    weft_module *module = wfi_module_create(type, state, error);
    if (!module)
        return NULL;
    weft_module_add_parameter(module, "weight", table(rows, width, padding, seed));
    return wfi_module_finish(module, error);
}

/* ---- Embedding: state is a weft_embedding_options ---- */

static weft_tensor *embedding_forward(weft_tape *tape, weft_module *self, weft_tensor *index)
{
    return weft_embedding(tape, self->parameters.tensors[0], index, self->state);
}

static const weft_module_type embedding_type = {.name = "Embedding", .forward = embedding_forward, .drop = free};

weft_module *wfi_nn_embedding_create_sized(const weft_embedding_layer *layer, size_t size, weft_error **error)
{
    int64_t padding;
    weft_embedding_layer own;
    if (!layer)
        return wfi_module_refuse(error, "Embedding", "layer is NULL");
    layer = WFI_SIZED(layer, size, &own);
    if (!layer || !WFI_ROOM_IS_ZERO(&layer->how))
        return wfi_module_newer(error, "Embedding", "weft_embedding_layer");
    if (layer->rows < 1 || layer->width < 1)
        return wfi_module_refuse(error, "Embedding", "rows %lld, width %lld: both must be positive",
                                 (long long)layer->rows, (long long)layer->width);
    if (!padding_of(layer->how.padding, layer->how.padding_row, layer->rows, &padding))
        return wfi_module_refuse(error, "Embedding", "padding_row is %lld: the table has rows 0 to %lld",
                                 (long long)layer->how.padding_row, (long long)layer->rows - 1);
    return create(&embedding_type, layer->rows, layer->width, padding, layer->seed, &layer->how, sizeof(layer->how),
                  error);
}

/* ---- EmbeddingBag: state is a weft_embedding_bag_options ---- */

static weft_tensor *embedding_bag_forward(weft_tape *tape, weft_module *self, weft_tensor *index)
{
    return weft_embedding_bag(tape, self->parameters.tensors[0], index, NULL, NULL, self->state);
}

static bool is_tensor_or_null(weft_args values, size_t index)
{
    return index >= values.count || values.items[index].type == WEFT_TYPE_NULL || weft_args_tensor(values, index);
}

static weft_status embedding_bag_call(weft_tape *tape, weft_module *self, weft_args inputs, weft_values *results)
{
    weft_tensor *index = weft_args_tensor(inputs, 0);
    if (!index || inputs.count > 3 || !is_tensor_or_null(inputs, 1) || !is_tensor_or_null(inputs, 2)) {
        weft_tape_fail(
            tape, WEFT_ERR_INVALID,
            "EmbeddingBag: takes tensors index, offsets (or null), sample weights (or null); not these %zu values",
            inputs.count);
        return WEFT_OK;
    }
    weft_tensor *y = weft_embedding_bag(tape, self->parameters.tensors[0], index, weft_args_tensor(inputs, 1),
                                        weft_args_tensor(inputs, 2), self->state);
    return !y ? WEFT_OK : weft_values_add(results, weft_of_tensor(y));
}

static const weft_module_type embedding_bag_type = {
    .name = "EmbeddingBag", .forward = embedding_bag_forward, .call = embedding_bag_call, .drop = free};

weft_module *wfi_nn_embedding_bag_create_sized(const weft_embedding_bag_layer *layer, size_t size, weft_error **error)
{
    int64_t padding;
    weft_embedding_bag_layer own;
    if (!layer)
        return wfi_module_refuse(error, "EmbeddingBag", "layer is NULL");
    layer = WFI_SIZED(layer, size, &own);
    if (!layer || !WFI_ROOM_IS_ZERO(&layer->how))
        return wfi_module_newer(error, "EmbeddingBag", "weft_embedding_bag_layer");
    if (layer->rows < 1 || layer->width < 1)
        return wfi_module_refuse(error, "EmbeddingBag", "rows %lld, width %lld: both must be positive",
                                 (long long)layer->rows, (long long)layer->width);
    if ((unsigned)layer->how.mode > WEFT_BAG_MAX || (layer->how.sparse && layer->how.mode == WEFT_BAG_MAX))
        return wfi_module_refuse(error, "EmbeddingBag", "mode is %d: 0 to %d, and not WEFT_BAG_MAX if `sparse` is set",
                                 (int)layer->how.mode, (int)WEFT_BAG_MAX);
    if (!padding_of(layer->how.padding, layer->how.padding_row, layer->rows, &padding))
        return wfi_module_refuse(error, "EmbeddingBag", "padding_row is %lld: the table has rows 0 to %lld",
                                 (long long)layer->how.padding_row, (long long)layer->rows - 1);
    return create(&embedding_bag_type, layer->rows, layer->width, padding, layer->seed, &layer->how, sizeof(layer->how),
                  error);
}
