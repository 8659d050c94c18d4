/* SPDX-License-Identifier: Apache-2.0 */
/* public.c - the constructors of weft/nn.h: they return a status, and give the program the reason of a failure. */
#include "nn/nn.h"

#include "base/text/refuse.h"

weft_status weft_mnist_convnet_create(uint64_t seed, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_mnist_convnet_create(seed, &why);
    return WFI_GIVE("weft_mnist_convnet_create", made, why, weft_module_unref, out, error);
}

weft_status weft_bottleneck_create(int64_t in_channels, int64_t planes, int64_t stride, uint64_t seed,
                                   weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_bottleneck_create(in_channels, planes, stride, seed, &why);
    return WFI_GIVE("weft_bottleneck_create", made, why, weft_module_unref, out, error);
}

weft_status weft_resnet50_stage_create(weft_resnet_part from, weft_resnet_part to, int64_t classes, uint64_t seed,
                                       weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_resnet50_stage_create(from, to, classes, seed, &why);
    return WFI_GIVE("weft_resnet50_stage_create", made, why, weft_module_unref, out, error);
}

weft_status weft_resnet50_create(int64_t classes, uint64_t seed, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_resnet50_create(classes, seed, &why);
    return WFI_GIVE("weft_resnet50_create", made, why, weft_module_unref, out, error);
}

weft_status weft_on_device_create(weft_module *child, weft_device device, weft_module **out, weft_error **error)
{
    WFI_CHECK_HANDLE(child);
    weft_error *why = NULL;
    weft_module *made = wfi_nn_on_device_create(child, device, &why);
    return WFI_GIVE("weft_on_device_create", made, why, weft_module_unref, out, error);
}

weft_status weft_embedding_create_sized(const weft_embedding_layer *layer, size_t size, weft_module **out,
                                        weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_embedding_create_sized(layer, size, &why);
    return WFI_GIVE("weft_embedding_create", made, why, weft_module_unref, out, error);
}

weft_status weft_embedding_bag_create_sized(const weft_embedding_bag_layer *layer, size_t size, weft_module **out,
                                            weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_embedding_bag_create_sized(layer, size, &why);
    return WFI_GIVE("weft_embedding_bag_create", made, why, weft_module_unref, out, error);
}

weft_status weft_lstm_create_sized(const weft_lstm_layer *layer, size_t size, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_lstm_create_sized(layer, size, &why);
    return WFI_GIVE("weft_lstm_create", made, why, weft_module_unref, out, error);
}

weft_status weft_relu_create(weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_relu_create(&why);
    return WFI_GIVE("weft_relu_create", made, why, weft_module_unref, out, error);
}

weft_status weft_sigmoid_create(weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_sigmoid_create(&why);
    return WFI_GIVE("weft_sigmoid_create", made, why, weft_module_unref, out, error);
}

weft_status weft_tanh_create(weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_tanh_create(&why);
    return WFI_GIVE("weft_tanh_create", made, why, weft_module_unref, out, error);
}

weft_status weft_max_pool2d_create_sized(const weft_max_pool2d_options *options, size_t size, weft_module **out,
                                         weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_max_pool2d_create_sized(options, size, &why);
    return WFI_GIVE("weft_max_pool2d_create", made, why, weft_module_unref, out, error);
}

weft_status weft_adaptive_avg_pool2d_create(int64_t height, int64_t width, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_adaptive_avg_pool2d_create(height, width, &why);
    return WFI_GIVE("weft_adaptive_avg_pool2d_create", made, why, weft_module_unref, out, error);
}

weft_status weft_dropout_create(double p, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_dropout_create(p, &why);
    return WFI_GIVE("weft_dropout_create", made, why, weft_module_unref, out, error);
}

weft_status weft_dropout2d_create(double p, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_dropout2d_create(p, &why);
    return WFI_GIVE("weft_dropout2d_create", made, why, weft_module_unref, out, error);
}

weft_status weft_flatten_create(int from_dim, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_flatten_create(from_dim, &why);
    return WFI_GIVE("weft_flatten_create", made, why, weft_module_unref, out, error);
}

weft_status weft_softmax_create(int dim, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_softmax_create(dim, &why);
    return WFI_GIVE("weft_softmax_create", made, why, weft_module_unref, out, error);
}

weft_status weft_log_softmax_create(int dim, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_log_softmax_create(dim, &why);
    return WFI_GIVE("weft_log_softmax_create", made, why, weft_module_unref, out, error);
}

weft_status weft_sequential_create(weft_module *const *modules, size_t count, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_sequential_create(modules, count, &why);
    return WFI_GIVE("weft_sequential_create", made, why, weft_module_unref, out, error);
}

weft_status weft_module_create_sized(const weft_module_type *given, size_t size, void *state, weft_module **out,
                                     weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_module_create_sized(given, size, state, &why);
    return WFI_GIVE("weft_module_create", made, why, weft_module_unref, out, error);
}

weft_status weft_conv2d_create_sized(const weft_conv2d_layer *layer, size_t size, weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_conv2d_create_sized(layer, size, &why);
    return WFI_GIVE("weft_conv2d_create", made, why, weft_module_unref, out, error);
}

weft_status weft_linear_create(int64_t in_features, int64_t out_features, bool no_bias, uint64_t seed,
                               weft_module **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_linear_create(in_features, out_features, no_bias, seed, &why);
    return WFI_GIVE("weft_linear_create", made, why, weft_module_unref, out, error);
}

weft_status weft_batch_norm2d_create(int64_t channels, double momentum, double eps, weft_module **out,
                                     weft_error **error)
{
    weft_error *why = NULL;
    weft_module *made = wfi_nn_batch_norm2d_create(channels, momentum, eps, &why);
    return WFI_GIVE("weft_batch_norm2d_create", made, why, weft_module_unref, out, error);
}
