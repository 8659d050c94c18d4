/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layers.c - the modules with parameters: Conv2d, Linear, BatchNorm2d. Names, shapes and initial distributions are
 * PyTorch's, the random numbers weft's (tensor/random.h): the layer's seed, and a stream for each parameter.
 *
 *   Conv2d       weight [O, C / groups, KH, KW] and bias [O], uniform;
 *   Linear       weight [O, I] and bias [O], uniform;
 *   BatchNorm2d  weight [C] 1, bias [C] 0, buffers running_mean [C] 0, running_var [C] 1, num_batches_tracked 0;
 */
#include "base/alloc.h"
#include "base/text/sized.h"
#include "nn/nn.h"

#include "tensor/cell.h"
#include "tensor/copy.h"
#include "tensor/elementwise.h"
#include "tensor/random.h"

#include <math.h>
#include <stdlib.h>

/*
 * Uniform in +-1 / sqrt(fan_in), as PyTorch initializes biases, and weights: its kaiming_uniform with a = sqrt(5)
 * has these bounds.
 */
static weft_tensor *uniform(weft_shape shape, int64_t fan_in, uint64_t seed, uint64_t stream)
{
    weft_tensor *tensor = wfi_tensor_empty(shape, WEFT_DTYPE_FLOAT32, NULL);
    double bound = fan_in > 0 ? 1 / sqrt((double)fan_in) : 0;
    if (tensor && wfi_random_uniform(tensor, (wfi_random){seed, stream}, -bound, bound) == WEFT_OK)
        return tensor;
    weft_tensor_unref(tensor);
    return NULL;
}

/* ---- Conv2d: state is a weft_conv2d_options ---- */

static weft_tensor *conv2d_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    const wfi_named *own = &self->parameters;
    return weft_conv2d(tape, x, own->tensors[0], own->count > 1 ? own->tensors[1] : NULL, self->state);
}

static const weft_module_type conv2d_type = {.name = "Conv2d", .forward = conv2d_forward, .drop = free};

/* Whether the sizes are positive, and the groups divide the channels. */
static bool is_conv2d(const weft_conv2d_layer *layer, int64_t groups)
{
    return layer->in_channels > 0 && layer->out_channels > 0 && layer->kernel[0] > 0 && layer->kernel[1] > 0 &&
           groups > 0 && layer->in_channels % groups == 0 && layer->out_channels % groups == 0;
}

weft_module *wfi_nn_conv2d_create_sized(const weft_conv2d_layer *layer, size_t size, weft_error **error)
{
    weft_conv2d_layer own;
    if (!layer)
        return wfi_module_refuse(error, "Conv2d", "layer is NULL");
    layer = WFI_SIZED(layer, size, &own);
    if (!layer || !WFI_ROOM_IS_ZERO(&layer->how))
        return wfi_module_newer(error, "Conv2d", "weft_conv2d_layer");
    int64_t groups = layer->how.groups == 0 ? 1 : layer->how.groups;
    if (!is_conv2d(layer, groups))
        return wfi_module_refuse(error, "Conv2d",
                                 "in_channels %lld, out_channels %lld, kernel %lld x %lld, groups %lld: all must be "
                                 "positive, and groups must divide both numbers of channels",
                                 (long long)layer->in_channels, (long long)layer->out_channels,
                                 (long long)layer->kernel[0], (long long)layer->kernel[1], (long long)groups);
    const weft_conv2d_options *o = &layer->how;
    for (int i = 0; i < 2; i++)
        if (o->stride[i] < 0 || o->padding[i] < 0 || o->dilation[i] < 0)
            return wfi_module_refuse(error, "Conv2d",
                                     "stride %lld, padding %lld, dilation %lld of dimension %d: none can be negative",
                                     (long long)o->stride[i], (long long)o->padding[i], (long long)o->dilation[i], i);
    weft_shape shape = WEFT_SHAPE(layer->out_channels, layer->in_channels / groups, layer->kernel[0], layer->kernel[1]);
    int64_t numel;
    if (!wfi_shape_numel(&shape, &numel))
        return wfi_module_refuse(error, "Conv2d",
                                 "in_channels %lld, out_channels %lld, kernel %lld x %lld, groups %lld: the weight is "
                                 "larger than memory can be",
                                 (long long)layer->in_channels, (long long)layer->out_channels,
                                 (long long)layer->kernel[0], (long long)layer->kernel[1], (long long)groups);
    weft_conv2d_options *how = malloc(sizeof(*how));
    if (!how)
        return wfi_module_no_memory(error, "Conv2d");
    *how = layer->how;
    weft_module *module = wfi_module_create(&conv2d_type, how, error);
    if (!module)
        return NULL;
    int64_t fan_in = numel / layer->out_channels;
    weft_module_add_parameter(module, "weight", uniform(shape, fan_in, layer->seed, 0));
    if (!layer->no_bias)
        weft_module_add_parameter(module, "bias", uniform(WEFT_SHAPE(layer->out_channels), fan_in, layer->seed, 1));
    return wfi_module_finish(module, error);
}

/* ---- Linear ---- */

static weft_tensor *linear_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    const wfi_named *own = &self->parameters;
    return weft_linear(tape, x, own->tensors[0], own->count > 1 ? own->tensors[1] : NULL);
}

static const weft_module_type linear_type = {.name = "Linear", .forward = linear_forward};

weft_module *wfi_nn_linear_create(int64_t in_features, int64_t out_features, bool no_bias, uint64_t seed,
                                  weft_error **error)
{
    if (in_features < 1 || out_features < 1)
        return wfi_module_refuse(error, "Linear", "in_features %lld, out_features %lld: both must be positive",
                                 (long long)in_features, (long long)out_features);
    weft_module *module = wfi_module_create(&linear_type, NULL, error);
    if (!module)
        return NULL;
    weft_module_add_parameter(module, "weight", uniform(WEFT_SHAPE(out_features, in_features), in_features, seed, 0));
    if (!no_bias)
        weft_module_add_parameter(module, "bias", uniform(WEFT_SHAPE(out_features), in_features, seed, 1));
    return wfi_module_finish(module, error);
}

/* ---- BatchNorm2d: state is a weft_batch_norm_options ---- */

/* to = from + 1, on a GPU. */
static weft_status add_one(const weft_tensor *from, weft_tensor *to)
{
    weft_tensor *one = wfi_tensor_full_like(to, to->shape, to->dtype, 1);
    weft_status status = !one ? WEFT_ERR_MEMORY : wfi_binary(WFI_ADD, from, one, to);
    weft_tensor_unref(one);
    return status;
}

/* num_batches_tracked += 1. Threads may train the module at once: the cell lets one write at a time. */
static void count_batch(weft_tape *tape, weft_tensor *batches)
{
    wfi_write write;
    weft_status status = wfi_cell_write_begin(&write, batches, WFI_WRITE_WHOLE, NULL);
    if (status != WEFT_OK) {
        weft_tape_fail(tape, status, "BatchNorm2d: num_batches_tracked was not counted: %s", weft_status_text(status));
        return;
    }
    if (weft_tensor_device(write.to).kind == WEFT_DEVICE_CPU)
        *(int64_t *)wfi_tensor_address(write.to) = *(const int64_t *)wfi_tensor_address(write.from) + 1;
    else
        status = add_one(write.from, write.to);
    wfi_cell_write_end(&write, status == WEFT_OK);
    if (status != WEFT_OK)
        weft_tape_fail(tape, status, "BatchNorm2d: num_batches_tracked was not counted: %s", weft_status_text(status));
}

static weft_tensor *batch_norm2d_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    weft_batch_norm_options how = *(const weft_batch_norm_options *)self->state;
    weft_tensor *const *parameters = self->parameters.tensors, *const *buffers = self->buffers.tensors;
    how.train = weft_module_trains_on(self, tape);
    weft_tensor *y = weft_batch_norm2d(tape, x, parameters[0], parameters[1], buffers[0], buffers[1], &how);
    if (y && how.train)
        count_batch(tape, buffers[2]);
    return weft_tape_status(tape) == WEFT_OK ? y : NULL;
}

static const weft_module_type batch_norm2d_type = {
    .name = "BatchNorm2d", .forward = batch_norm2d_forward, .drop = free};

weft_module *wfi_nn_batch_norm2d_create(int64_t channels, double momentum, double eps, weft_error **error)
{
    if (channels < 1 || !(momentum >= 0 && momentum <= 1) || !(eps >= 0))
        return wfi_module_refuse(
            error, "BatchNorm2d",
            "channels %lld, momentum %g, eps %g: channels must be positive, momentum in [0, 1], eps "
            "not negative",
            (long long)channels, momentum, eps);
    weft_batch_norm_options *how = wfi_calloc(1, sizeof(*how));
    if (!how)
        return wfi_module_no_memory(error, "BatchNorm2d");
    how->momentum = momentum;
    how->eps = eps;
    weft_module *module = wfi_module_create(&batch_norm2d_type, how, error);
    if (!module)
        return NULL;
    weft_shape shape = WEFT_SHAPE(channels);
    weft_module_add_parameter(module, "weight", wfi_tensor_full(shape, WEFT_DTYPE_FLOAT32, 1, NULL));
    weft_module_add_parameter(module, "bias", wfi_tensor_zeros(shape, WEFT_DTYPE_FLOAT32, NULL));
    weft_module_add_buffer(module, "running_mean", wfi_tensor_zeros(shape, WEFT_DTYPE_FLOAT32, NULL));
    weft_module_add_buffer(module, "running_var", wfi_tensor_full(shape, WEFT_DTYPE_FLOAT32, 1, NULL));
    weft_module_add_buffer(module, "num_batches_tracked", wfi_tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_INT64, NULL));
    return wfi_module_finish(module, error);
}
