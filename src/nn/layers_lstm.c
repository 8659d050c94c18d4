/* SPDX-License-Identifier: Apache-2.0 */
/* layers_lstm.c - the module LSTM; its state is a weft_lstm_options. */
#include "base/alloc.h"
#include "nn/nn.h"

#include "tensor/random.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static weft_tensor *lstm_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    weft_lstm_options how = *(const weft_lstm_options *)self->state;
    how.train = weft_module_trains_on(self, tape);
    weft_tensors weights = {self->parameters.tensors, self->parameters.count};
    return weft_lstm(tape, x, NULL, NULL, weights, &how, NULL, NULL);
}

static const weft_module_type lstm_type = {.name = "LSTM", .forward = lstm_forward, .drop = free};

static weft_tensor *uniform(weft_shape shape, double bound, wfi_random random)
{
    weft_tensor *tensor = weft_tensor_empty(shape, WEFT_FLOAT32);
    if (tensor != NULL && wfi_random_uniform(tensor, random, -bound, bound) == WEFT_OK)
        return tensor;
    weft_tensor_unref(tensor);
    return NULL;
}

/* U(-1 / sqrt(H), 1 / sqrt(H)), biases too. */
static void add_layer(weft_module *module, const weft_lstm_layer *layer, int64_t number)
{
    static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    int64_t hidden = layer->hidden_features, input = number == 0 ? layer->in_features : hidden;
    const weft_shape shapes[] = {WEFT_SHAPE(4 * hidden, input), WEFT_SHAPE(4 * hidden, hidden), WEFT_SHAPE(4 * hidden),
                                 WEFT_SHAPE(4 * hidden)};
    double bound = 1 / sqrt((double)hidden);
    char name[64];
    for (int64_t i = 0; i < (layer->no_bias ? 2 : 4); i++) {
        snprintf(name, sizeof(name), "%s_l%lld", names[i], (long long)number);
        wfi_random random = {layer->seed, (uint64_t)(4 * number + i)};
        weft_module_add_parameter(module, name, uniform(shapes[i], bound, random));
    }
}

static bool fits(const weft_lstm_layer *layer)
{
    int64_t numel, largest = INT64_MAX / 4;
    return layer->hidden_features <= largest &&
           wfi_shape_numel(&WEFT_SHAPE(4 * layer->hidden_features, layer->in_features), &numel) &&
           wfi_shape_numel(&WEFT_SHAPE(4 * layer->hidden_features, layer->hidden_features), &numel);
}

weft_module *weft_lstm_create(const weft_lstm_layer *layer)
{
    if (layer == NULL || layer->in_features < 1 || layer->hidden_features < 1 || layer->layers < 0)
        return wfi_module_refuse("LSTM", "features and layers must be positive");
    if (!(layer->dropout >= 0 && layer->dropout < 1))
        return wfi_module_refuse("LSTM", "dropout must be in [0, 1)");
    if (!fits(layer))
        return wfi_module_refuse("LSTM", "too large");
    weft_lstm_options *how = wfi_calloc(1, sizeof(*how));
    if (how == NULL)
        return wfi_module_refuse("LSTM", "no memory");
    *how = (weft_lstm_options){.batch_first = layer->batch_first, .no_bias = layer->no_bias, .dropout = layer->dropout};
    weft_module *module = weft_module_create(&lstm_type, how);
    if (module == NULL)
        return NULL;
    int64_t count = layer->layers == 0 ? 1 : layer->layers;
    for (int64_t number = 0; number < count && weft_module_status(module) == WEFT_OK; number++)
        add_layer(module, layer, number);
    return wfi_module_finish(module);
}
