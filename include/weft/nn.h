/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/nn.h - modules: parameters, buffers and children under names, and a forward function.
 *
 * Names, their order and the initial distributions are those of PyTorch and torchvision, so that state dicts compare:
 * own parameters first, then those of each child in order, "layer1.0.conv1.weight".
 *
 * Constructors return a module with one reference, or NULL if memory is out or an argument is wrong (log level debug says
 * which). Those that take children take over your references to them, on failure too. Building is for one thread; then
 * forward may run on several threads at once, except in train mode with batch norm (it changes its running statistics).
 * References may be taken and dropped from any thread.
 */
#ifndef WEFT_NN_H
#define WEFT_NN_H

#include <weft/ops.h>

WEFT_BEGIN_C

WEFT_API weft_module *weft_module_ref(weft_module *module);
WEFT_API void weft_module_unref(weft_module *module);

/* Runs it on a tape; the result is the tape's. NULL when the tape fails. */
WEFT_API weft_tensor *weft_module_forward(weft_tape *tape, weft_module *module, weft_tensor *x);

/* Train mode (the default) or eval mode, for it and all below it. */
WEFT_API void weft_module_train(weft_module *module, bool train);
WEFT_API bool weft_module_is_training(const weft_module *module);

/* All parameters and buffers, those of children included. Borrowed from the module; fixed once it has been built. */
WEFT_API weft_tensors weft_module_parameters(const weft_module *module);
WEFT_API weft_tensors weft_module_buffers(const weft_module *module);
WEFT_API const char *weft_module_parameter_name(const weft_module *module, size_t index); /* NULL past the end */
WEFT_API const char *weft_module_buffer_name(const weft_module *module, size_t index);
/* The parameter or buffer of that full name, borrowed; NULL if there is none. */
WEFT_API weft_tensor *weft_module_find(const weft_module *module, const char *name);
WEFT_API int64_t weft_module_numel(const weft_module *module); /* elements of all parameters together */

/*
 * Converts parameters and floating buffers to float32 or float64, before the lists above were lent for the first time and
 * before it is another's child (else WEFT_ERR_STATE). On failure nothing has changed. WEFT_ERR_INVALID, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_to(weft_module *module, weft_dtype dtype);

/* Direct children, in order. Borrowed; NULL past the end. */
WEFT_API size_t weft_module_child_count(const weft_module *module);
WEFT_API weft_module *weft_module_child(const weft_module *module, size_t index);
WEFT_API const char *weft_module_child_name(const weft_module *module, size_t index);
WEFT_API const char *weft_module_type_name(const weft_module *module); /* "Conv2d" ... */

/* ---- Your own modules ------------------------------------------------------------------------------------------- */

typedef struct weft_module_type {
    const char *name;
    weft_tensor *(*forward)(weft_tape *tape, weft_module *self, weft_tensor *x);
    weft_drop_fn drop; /* runs with the last reference; may be NULL */
} weft_module_type;

/* `type` is borrowed and must outlive the module (usually static); `state` is what drop receives. */
WEFT_API weft_module *weft_module_create(const weft_module_type *type, void *state);
WEFT_API void *weft_module_state(const weft_module *module);

/*
 * These take over your reference, on failure too. Names are unique in one module, not empty and without dots (a child
 * may be called "0"). A module keeps its first failure (a NULL argument, a bad name, WEFT_ERR_STATE: it already is another's
 * child or its lists have been lent): ask weft_module_status once. A failed module, or one with a failed child, fails every
 * tape that it runs on. Parameters get requires_grad.
 */
WEFT_API void weft_module_add_parameter(weft_module *module, const char *name, weft_tensor *tensor);
WEFT_API void weft_module_add_buffer(weft_module *module, const char *name, weft_tensor *tensor);
WEFT_API void weft_module_add_child(weft_module *module, const char *name, weft_module *child);
WEFT_API weft_status weft_module_status(const weft_module *module);

/* ---- Layers. Floats are float32; `seed` fixes the initial values. ------------------------------------------------- */

typedef struct weft_conv2d_layer {
    int64_t in_channels, out_channels;
    int64_t kernel[2];
    weft_conv2d_options how;
    bool no_bias;
    uint64_t seed;
} weft_conv2d_layer;
/* weight U(-b, b), bias U(-b, b) with b = 1 / sqrt(C / groups * KH * KW) */
WEFT_API weft_module *weft_conv2d_create(const weft_conv2d_layer *layer);
/* weight [O, I], bias [O] U(-b, b) with b = 1 / sqrt(I) */
WEFT_API weft_module *weft_linear_create(int64_t in_features, int64_t out_features, bool no_bias, uint64_t seed);
/* weight 1, bias 0, running_mean 0, running_var 1, num_batches_tracked 0; momentum 0 takes 0.1, eps 0 takes 1e-5 */
WEFT_API weft_module *weft_batch_norm2d_create(int64_t channels, double momentum, double eps);
WEFT_API weft_module *weft_relu_create(void);
WEFT_API weft_module *weft_max_pool2d_create(const weft_max_pool2d_options *options);
WEFT_API weft_module *weft_adaptive_avg_pool2d_create(int64_t height, int64_t width);
WEFT_API weft_module *weft_dropout_create(double p);
WEFT_API weft_module *weft_dropout2d_create(double p);
WEFT_API weft_module *weft_flatten_create(int from_dim);
WEFT_API weft_module *weft_softmax_create(int dim);
WEFT_API weft_module *weft_log_softmax_create(int dim);
/* One after the other; children are called "0", "1", ... A NULL among them releases the others and returns NULL. */
WEFT_API weft_module *weft_sequential_create(weft_module *const *modules, size_t count);

/* ---- Models ----------------------------------------------------------------------------------------------------- */

/*
 * ResNet-50 (He, Zhang, Ren, Sun, CVPR 2016; stride in the 3x3 convolution, as torchvision has it): [N, 3, H, W], H and W at
 * least 32, -> [N, classes]. 23,569,502 parameters with 30 classes. Convolutions N(0, 2 / fan_out).
 */
WEFT_API weft_module *weft_resnet50_create(int64_t classes, uint64_t seed);
/* PyTorch's MNIST example: [N, 1, 28, 28] -> log-probabilities [N, 10]. 1,199,882 parameters. */
WEFT_API weft_module *weft_mnist_convnet_create(uint64_t seed);

/* ---- Files ------------------------------------------------------------------------------------------------------ */

/*
 * Writes all parameters and buffers under their names, through a temporary file beside `path` that takes its place at the
 * end: a failure leaves the old file, but for one of the disk when all is written, which leaves either. What was saved outlasts a
 * loss of power (file and folder are synced). Symbolic links are followed, an old file's mode stays; what is no plain file (a pipe, a
 * device) is written as it stands. WEFT_ERR_IO, WEFT_ERR_MEMORY. `error` (may be NULL) receives the detail; you release it.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_save(const weft_module *module, const char *path, weft_error **error);

/*
 * Reads them back: the file must hold exactly the module's names, with their dtypes and shapes. On failure nothing has
 * changed. WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_FORMAT (not such a file, damaged), WEFT_ERR_SHAPE or WEFT_ERR_TYPE (of
 * another module), WEFT_ERR_MEMORY. Files of any origin are safe to try.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_load(weft_module *module, const char *path, weft_error **error);

WEFT_END_C
#endif
