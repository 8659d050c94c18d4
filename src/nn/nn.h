/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nn.h - the internals of a module: its parameters and buffers, and those of its children.
 *
 * The lists are made while the module is built: first its own entries, then those of its children in order, each
 * under its full name. A module that has become a child, or whose lists were lent to a caller, is sealed: nothing can
 * be added to it.
 *
 * LOCKING. None is needed, because sealed lists do not change; `training` and `refs` are atomic. One thread builds a
 * module.
 * LIFETIME. A module holds one reference to each of its tensors and children, and drops them with its own last
 * reference.
 */
#ifndef WFI_NN_H
#define WFI_NN_H

#include "base/handle.h"

#include <weft/nn.h>

#include <stdatomic.h>
#include <stdio.h>

#define WFI_NAME_MAX 256 /* bytes of a full name, the NUL included */

typedef struct wfi_named {
    weft_tensor **tensors; /* one reference each */
    char **names;
    size_t count, own; /* the first `own` are the module's, the others its children's */
} wfi_named;

struct weft_module {
    wfi_handle handle;
    _Atomic uint32_t refs;
    atomic_bool training;
    atomic_bool is_child;     /* of another module */
    atomic_bool sealed_lists; /* its lists were lent */
    weft_module_type type;    /* a copy */
    void *state;
    weft_device device;            /* of a module of weft_on_device_create: where it computes; others do not use it */
    weft_status status;            /* the first failure of building */
    char why[160];                 /* the same, as a sentence */
    wfi_named parameters, buffers; /* each tensor once, under its first name */
    wfi_named aliases;             /* parameters and buffers under their other names; `own` is not used */
    weft_module **children;        /* one reference each */
    char **child_names;
    size_t child_count;
};

/* For constructors that fail: gives *error (if `error` is not NULL) the reason, logs it at debug, and returns NULL. */
weft_module *wfi_module_refuse(weft_error **error, const char *type, const char *format, ...) WEFT_PRINTF(3, 4);
weft_module *wfi_module_no_memory(weft_error **error, const char *type);
/* The same for a struct of a newer weft (base/text/sized.h). */
weft_module *wfi_module_newer(weft_error **error, const char *type, const char *of);
/* weft_module_to_device, with the reason in *error if `error` is not NULL. */
weft_status wfi_module_move(weft_module *module, weft_device device, weft_error **error);
/* The constructors of weft/nn.h for the library itself. NULL: it failed, with the reason in *error, or in the log. */
weft_module *wfi_nn_mnist_convnet_create(uint64_t seed, weft_error **error);
weft_module *wfi_nn_bottleneck_create(int64_t in_channels, int64_t planes, int64_t stride, uint64_t seed,
                                      weft_error **error);
weft_module *wfi_nn_resnet50_stage_create(weft_resnet_part from, weft_resnet_part to, int64_t classes, uint64_t seed,
                                          weft_error **error);
weft_module *wfi_nn_resnet50_create(int64_t classes, uint64_t seed, weft_error **error);
weft_module *wfi_nn_on_device_create(weft_module *child, weft_device device, weft_error **error);
weft_module *wfi_nn_embedding_create_sized(const weft_embedding_layer *layer, size_t size, weft_error **error);
weft_module *wfi_nn_embedding_bag_create_sized(const weft_embedding_bag_layer *layer, size_t size, weft_error **error);
weft_module *wfi_nn_lstm_create_sized(const weft_lstm_layer *layer, size_t size, weft_error **error);
weft_module *wfi_nn_relu_create(weft_error **error);
weft_module *wfi_nn_sigmoid_create(weft_error **error);
weft_module *wfi_nn_tanh_create(weft_error **error);
weft_module *wfi_nn_max_pool2d_create_sized(const weft_max_pool2d_options *options, size_t size, weft_error **error);
weft_module *wfi_nn_adaptive_avg_pool2d_create(int64_t height, int64_t width, weft_error **error);
weft_module *wfi_nn_dropout_create(double p, weft_error **error);
weft_module *wfi_nn_dropout2d_create(double p, weft_error **error);
weft_module *wfi_nn_flatten_create(int from_dim, weft_error **error);
weft_module *wfi_nn_softmax_create(int dim, weft_error **error);
weft_module *wfi_nn_log_softmax_create(int dim, weft_error **error);
weft_module *wfi_nn_sequential_create(weft_module *const *modules, size_t count, weft_error **error);
weft_module *wfi_module_create_sized(const weft_module_type *given, size_t size, void *state, weft_error **error);
weft_module *wfi_nn_conv2d_create_sized(const weft_conv2d_layer *layer, size_t size, weft_error **error);
weft_module *wfi_nn_linear_create(int64_t in_features, int64_t out_features, bool no_bias, uint64_t seed,
                                  weft_error **error);
weft_module *wfi_nn_batch_norm2d_create(int64_t channels, double momentum, double eps, weft_error **error);
static inline weft_module *wfi_module_create(const weft_module_type *type, void *state, weft_error **error)
{
    return wfi_module_create_sized(type, sizeof(*type), state, error);
}
static inline weft_module *wfi_nn_conv2d_create(const weft_conv2d_layer *layer, weft_error **error)
{
    return wfi_nn_conv2d_create_sized(layer, sizeof(*layer), error);
}
static inline weft_module *wfi_nn_max_pool2d_create(const weft_max_pool2d_options *options, weft_error **error)
{
    return wfi_nn_max_pool2d_create_sized(options, sizeof(*options), error);
}
/* The finished module, or NULL (released, with the reason in *error) if building failed. */
weft_module *wfi_module_finish(weft_module *module, weft_error **error);

#endif
