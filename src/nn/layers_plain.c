/* SPDX-License-Identifier: Apache-2.0 */
/* layers_plain.c - the modules without parameters, and Sequential. */
#include "nn/nn.h"

#include "base/text/sized.h"

#include <stdlib.h>
#include <string.h>

/* A module whose state is a copy of `size` bytes. */
static weft_module *create_with(const weft_module_type *type, const void *state, size_t size, weft_error **error)
{
    void *copy = malloc(size);
    if (!copy)
        return wfi_module_no_memory(error, type->name);
    memcpy(copy, state, size);
    return wfi_module_create(type, copy, error);
}

static weft_tensor *relu_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    (void)self;
    return weft_relu(tape, x);
}

static const weft_module_type relu_type = {.name = "ReLU", .forward = relu_forward};

weft_module *wfi_nn_relu_create(weft_error **error)
{
    return wfi_module_create(&relu_type, NULL, error);
}

static weft_tensor *sigmoid_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    (void)self;
    return weft_sigmoid(tape, x);
}

static const weft_module_type sigmoid_type = {.name = "Sigmoid", .forward = sigmoid_forward};

weft_module *wfi_nn_sigmoid_create(weft_error **error)
{
    return wfi_module_create(&sigmoid_type, NULL, error);
}

static weft_tensor *tanh_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    (void)self;
    return weft_tanh(tape, x);
}

static const weft_module_type tanh_type = {.name = "Tanh", .forward = tanh_forward};

weft_module *wfi_nn_tanh_create(weft_error **error)
{
    return wfi_module_create(&tanh_type, NULL, error);
}

static weft_tensor *max_pool2d_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return weft_max_pool2d(tape, x, self->state);
}

static const weft_module_type max_pool2d_type = {.name = "MaxPool2d", .forward = max_pool2d_forward, .drop = free};

weft_module *wfi_nn_max_pool2d_create_sized(const weft_max_pool2d_options *options, size_t size, weft_error **error)
{
    weft_max_pool2d_options own;
    if (!options)
        return wfi_module_refuse(error, "MaxPool2d", "options is NULL");
    options = WFI_SIZED(options, size, &own);
    if (!options)
        return wfi_module_newer(error, "MaxPool2d", "weft_max_pool2d_options");
    if (options->kernel[0] < 1 || options->kernel[1] < 1)
        return wfi_module_refuse(error, "MaxPool2d", "the kernel is %lld x %lld: both must be positive",
                                 (long long)options->kernel[0], (long long)options->kernel[1]);
    return create_with(&max_pool2d_type, options, sizeof(*options), error);
}

static weft_tensor *adaptive_avg_pool2d_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    const int64_t *size = self->state;
    return weft_adaptive_avg_pool2d(tape, x, size[0], size[1]);
}

static const weft_module_type adaptive_avg_pool2d_type = {
    .name = "AdaptiveAvgPool2d", .forward = adaptive_avg_pool2d_forward, .drop = free};

weft_module *wfi_nn_adaptive_avg_pool2d_create(int64_t height, int64_t width, weft_error **error)
{
    if (height < 1 || width < 1)
        return wfi_module_refuse(error, "AdaptiveAvgPool2d", "height %lld, width %lld: both must be positive",
                                 (long long)height, (long long)width);
    return create_with(&adaptive_avg_pool2d_type, (int64_t[]){height, width}, 2 * sizeof(int64_t), error);
}

static weft_tensor *dropout_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return weft_dropout(tape, x, *(double *)self->state, weft_module_trains_on(self, tape));
}

static weft_tensor *dropout2d_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return weft_dropout2d(tape, x, *(double *)self->state, weft_module_trains_on(self, tape));
}

static const weft_module_type dropout_type = {.name = "Dropout", .forward = dropout_forward, .drop = free};
static const weft_module_type dropout2d_type = {.name = "Dropout2d", .forward = dropout2d_forward, .drop = free};

static weft_module *create_dropout(const weft_module_type *type, double p, weft_error **error)
{
    if (!(p >= 0 && p < 1))
        return wfi_module_refuse(error, type->name, "p is %g: it must be in [0, 1)", p);
    return create_with(type, &p, sizeof(p), error);
}

weft_module *wfi_nn_dropout_create(double p, weft_error **error)
{
    return create_dropout(&dropout_type, p, error);
}

weft_module *wfi_nn_dropout2d_create(double p, weft_error **error)
{
    return create_dropout(&dropout2d_type, p, error);
}

static weft_tensor *flatten_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return weft_flatten(tape, x, *(int *)self->state);
}

static const weft_module_type flatten_type = {.name = "Flatten", .forward = flatten_forward, .drop = free};

weft_module *wfi_nn_flatten_create(int from_dim, weft_error **error)
{
    return create_with(&flatten_type, &from_dim, sizeof(from_dim), error);
}

static weft_tensor *softmax_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return weft_softmax(tape, x, *(int *)self->state);
}

static const weft_module_type softmax_type = {.name = "Softmax", .forward = softmax_forward, .drop = free};

weft_module *wfi_nn_softmax_create(int dim, weft_error **error)
{
    return create_with(&softmax_type, &dim, sizeof(dim), error);
}

static weft_tensor *log_softmax_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return weft_log_softmax(tape, x, *(int *)self->state);
}

static const weft_module_type log_softmax_type = {.name = "LogSoftmax", .forward = log_softmax_forward, .drop = free};

weft_module *wfi_nn_log_softmax_create(int dim, weft_error **error)
{
    return create_with(&log_softmax_type, &dim, sizeof(dim), error);
}

static weft_tensor *sequential_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    for (size_t i = 0; i < self->child_count; i++)
        x = weft_module_forward(tape, self->children[i], x);
    return x;
}

/* All results of a module are the inputs of the next one. */
static weft_status sequential_call(weft_tape *tape, weft_module *self, weft_args inputs, weft_values *results)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < self->child_count; i++)
        inputs = weft_module_call(tape, self->children[i], inputs);
    for (size_t i = 0; i < inputs.count && status == WEFT_OK; i++)
        status = weft_values_add(results, inputs.items[i]);
    return status;
}

static const weft_module_type sequential_type = {
    .name = "Sequential", .forward = sequential_forward, .call = sequential_call};

/* Takes over the modules, also on failure. A NULL among them: its constructor failed, and gave the reason. */
weft_module *wfi_nn_sequential_create(weft_module *const *modules, size_t count, weft_error **error)
{
    if (!modules && count > 0)
        return wfi_module_refuse(error, sequential_type.name, "the list of %zu modules is NULL", count);
    size_t there = 0;
    while (there < count && modules[there])
        there++;
    for (size_t i = 0; i < count && there < count; i++)
        weft_module_unref(modules[i]);
    if (there < count)
        return wfi_module_refuse(error, sequential_type.name, "module %zu of %zu is NULL", there, count);
    weft_module *sequential = wfi_module_create(&sequential_type, NULL, error);
    char name[24];
    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "%zu", i);
        weft_module_add_child(sequential, name, modules[i]);
    }
    return wfi_module_finish(sequential, error);
}
