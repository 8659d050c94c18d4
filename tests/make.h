/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make.h - constructors in a form that nests, as in tensors.h: linear_create(in, out, no_bias, seed, error) is the
 * module of weft_linear_create, or NULL if that fails. The constructors of modules without parameters take no
 * `error`.
 */
#ifndef TESTS_MAKE_H
#define TESTS_MAKE_H

#include "tensors.h"

#include <weft/hooks.h>
#include <weft/nn.h>
#include <weft/optim.h>
#include <weft/sim.h>
#include <weft/stream.h>

#define MADE(type, name, function, parameters, ...)                                                                    \
    static inline type *name parameters                                                                                \
    {                                                                                                                  \
        type *made = NULL;                                                                                             \
        return function(__VA_ARGS__) ? NULL : made;                                                                    \
    }
MADE(weft_module, module_create, weft_module_create, (const weft_module_type *type, void *state, weft_error **error),
     type, state, &made, error)
MADE(weft_module, conv2d_create, weft_conv2d_create, (const weft_conv2d_layer *layer, weft_error **error), layer, &made,
     error)
MADE(weft_module, linear_create, weft_linear_create,
     (int64_t in_features, int64_t out_features, bool no_bias, uint64_t seed, weft_error **error), in_features,
     out_features, no_bias, seed, &made, error)
MADE(weft_module, batch_norm2d_create, weft_batch_norm2d_create,
     (int64_t channels, double momentum, double eps, weft_error **error), channels, momentum, eps, &made, error)
MADE(weft_module, embedding_create, weft_embedding_create, (const weft_embedding_layer *layer, weft_error **error),
     layer, &made, error)
MADE(weft_module, embedding_bag_create, weft_embedding_bag_create,
     (const weft_embedding_bag_layer *layer, weft_error **error), layer, &made, error)
MADE(weft_module, lstm_create, weft_lstm_create, (const weft_lstm_layer *layer, weft_error **error), layer, &made,
     error)
MADE(weft_module, relu_create, weft_relu_create, (void), &made, NULL)
MADE(weft_module, sigmoid_create, weft_sigmoid_create, (void), &made, NULL)
MADE(weft_module, tanh_create, weft_tanh_create, (void), &made, NULL)
MADE(weft_module, max_pool2d_create, weft_max_pool2d_create,
     (const weft_max_pool2d_options *options, weft_error **error), options, &made, error)
MADE(weft_module, adaptive_avg_pool2d_create, weft_adaptive_avg_pool2d_create,
     (int64_t height, int64_t width, weft_error **error), height, width, &made, error)
MADE(weft_module, dropout_create, weft_dropout_create, (double p, weft_error **error), p, &made, error)
MADE(weft_module, dropout2d_create, weft_dropout2d_create, (double p, weft_error **error), p, &made, error)
MADE(weft_module, flatten_create, weft_flatten_create, (int from_dim), from_dim, &made, NULL)
MADE(weft_module, softmax_create, weft_softmax_create, (int dim), dim, &made, NULL)
MADE(weft_module, log_softmax_create, weft_log_softmax_create, (int dim), dim, &made, NULL)
MADE(weft_module, sequential_create, weft_sequential_create,
     (weft_module *const *modules, size_t count, weft_error **error), modules, count, &made, error)
MADE(weft_module, on_device_create, weft_on_device_create, (weft_module * of, weft_device device, weft_error **error),
     of, device, &made, error)
MADE(weft_module, resnet50_create, weft_resnet50_create, (int64_t classes, uint64_t seed, weft_error **error), classes,
     seed, &made, error)
MADE(weft_module, resnet50_stage_create, weft_resnet50_stage_create,
     (weft_resnet_part from, weft_resnet_part to, int64_t classes, uint64_t seed, weft_error **error), from, to,
     classes, seed, &made, error)
MADE(weft_module, bottleneck_create, weft_bottleneck_create,
     (int64_t in_channels, int64_t planes, int64_t stride, uint64_t seed, weft_error **error), in_channels, planes,
     stride, seed, &made, error)
MADE(weft_module, mnist_convnet_create, weft_mnist_convnet_create, (uint64_t seed), seed, &made, NULL)
MADE(weft_stream, stream_create, weft_stream_create, (weft_device device, weft_error **error), device, &made, error)
MADE(weft_stream, stream_wrap, weft_stream_wrap, (weft_device device, void *cuda_stream, weft_error **error), device,
     cuda_stream, &made, error)
MADE(weft_optimizer, optimizer_create, weft_optimizer_create,
     (weft_tensors of, const weft_optimizer_spec *spec, weft_error **error), of, spec, &made, error)
MADE(weft_hooks, hooks_create, weft_hooks_create, (void), &made, NULL)
MADE(weft_sim, sim_open, weft_sim_open, (const weft_sim_options *options), options, &made, NULL)
#undef MADE

#endif
