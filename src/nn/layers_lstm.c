/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layers_lstm.c - the module LSTM; its state is a weft_lstm_options. As in PyTorch, the parameters of layer k are
 * weight_ih_lk [4H, I], weight_hh_lk [4H, H], bias_ih_lk and bias_hh_lk [4H], with the gates in the order i, f, g, o.
 * From layer 1 on, I is H.
 */
#include "base/alloc.h"
#include "base/text/sized.h"
#include "nn/nn.h"

#include "tensor/random.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Runs from the states h and c (NULL: zeros). *h_n, *c_n: the last states; NULL: not wanted. */
static weft_tensor *run(weft_tape *tape, weft_module *self, weft_tensor *x, weft_tensor *h, weft_tensor *c,
                        weft_tensor **h_n, weft_tensor **c_n)
{
    weft_lstm_options how = *(const weft_lstm_options *)self->state;
    how.train = weft_module_trains_on(self, tape);
    weft_tensors weights = {self->parameters.tensors, self->parameters.count};
    return weft_lstm(tape, x, h, c, weights, &how, h_n, c_n);
}

static weft_tensor *lstm_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return run(tape, self, x, NULL, NULL, NULL, NULL);
}

static weft_status lstm_call(weft_tape *tape, weft_module *self, weft_args inputs, weft_values *results)
{
    weft_tensor *x = weft_args_tensor(inputs, 0), *h = weft_args_tensor(inputs, 1), *c = weft_args_tensor(inputs, 2);
    weft_tensor *h_n, *c_n;
    bool alone = inputs.count == 1 && x, all = inputs.count == 3 && x && h && c;
    if (!alone && !all) {
        weft_tape_fail(tape, WEFT_ERR_INVALID, "LSTM: takes a tensor x, or three, x, h and c; not these %zu values",
                       inputs.count);
        return WEFT_OK;
    }
    weft_tensor *y = run(tape, self, x, h, c, &h_n, &c_n);
    if (!y)
        return WEFT_OK; /* the tape has failed */
    weft_status status = weft_values_add(results, weft_of_tensor(y));
    if (status == WEFT_OK)
        status = weft_values_add(results, weft_of_tensor(h_n));
    return status == WEFT_OK ? weft_values_add(results, weft_of_tensor(c_n)) : status;
}

static const weft_module_type lstm_type = {.name = "LSTM", .forward = lstm_forward, .call = lstm_call, .drop = free};

static weft_tensor *uniform(weft_shape shape, double bound, wfi_random random)
{
    weft_tensor *tensor = wfi_tensor_empty(shape, WEFT_DTYPE_FLOAT32, NULL);
    if (tensor && wfi_random_uniform(tensor, random, -bound, bound) == WEFT_OK)
        return tensor;
    weft_tensor_unref(tensor);
    return NULL;
}

/* Adds the parameters of one layer, uniform in +-1 / sqrt(H) as in PyTorch, biases too. */
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

/* Whether the sizes of the weights fit int64. */
static bool fits(const weft_lstm_layer *layer)
{
    int64_t numel, largest = INT64_MAX / 4;
    return layer->hidden_features <= largest &&
           wfi_shape_numel(&WEFT_SHAPE(4 * layer->hidden_features, layer->in_features), &numel) &&
           wfi_shape_numel(&WEFT_SHAPE(4 * layer->hidden_features, layer->hidden_features), &numel);
}

weft_module *wfi_nn_lstm_create_sized(const weft_lstm_layer *layer, size_t size, weft_error **error)
{
    weft_lstm_layer own;
    if (!layer)
        return wfi_module_refuse(error, "LSTM", "layer is NULL");
    layer = WFI_SIZED(layer, size, &own);
    if (!layer)
        return wfi_module_newer(error, "LSTM", "weft_lstm_layer");
    if (layer->in_features < 1 || layer->hidden_features < 1 || layer->layers < 0)
        return wfi_module_refuse(
            error, "LSTM",
            "in_features %lld, hidden_features %lld, layers %lld: features must be positive, layers "
            "not negative",
            (long long)layer->in_features, (long long)layer->hidden_features, (long long)layer->layers);
    if (!(layer->dropout >= 0 && layer->dropout < 1))
        return wfi_module_refuse(error, "LSTM", "dropout is %g: it must be in [0, 1)", layer->dropout);
    if (!fits(layer))
        return wfi_module_refuse(error, "LSTM", "in_features %lld, hidden_features %lld: larger than memory can be",
                                 (long long)layer->in_features, (long long)layer->hidden_features);
    weft_lstm_options *how = wfi_calloc(1, sizeof(*how));
    if (!how)
        return wfi_module_no_memory(error, "LSTM");
    *how = (weft_lstm_options){.batch_first = layer->batch_first, .no_bias = layer->no_bias, .dropout = layer->dropout};
    weft_module *module = wfi_module_create(&lstm_type, how, error);
    if (!module)
        return NULL;
    int64_t count = layer->layers == 0 ? 1 : layer->layers;
    for (int64_t number = 0; number < count && weft_module_status(module) == WEFT_OK; number++)
        add_layer(module, layer, number);
    return wfi_module_finish(module, error);
}
