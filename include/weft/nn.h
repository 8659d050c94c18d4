/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/nn.h - modules: named parameters, buffers and children, and a forward function.
 *
 *     // [N, 784] -> log-probabilities [N, 10]
 *     weft_status two_layers(uint64_t seed, weft_module **out, weft_error **error)
 *     {
 *         weft_module *layers[4] = {NULL};
 *         weft_status status = weft_linear_create(784, 128, false, seed, &layers[0], error);
 *         if (!status)
 *             status = weft_relu_create(&layers[1], error);
 *         if (!status)
 *             status = weft_linear_create(128, 10, false, seed + 1, &layers[2], error);
 *         if (!status)
 *             status = weft_log_softmax_create(1, &layers[3], error);
 *         if (!status)
 *             return weft_sequential_create(layers, 4, out, error); // takes the layers
 *         for (int i = 0; i < 4; i++)
 *             weft_module_unref(layers[i]); // NULL is allowed
 *         return status;
 *     }
 *
 * NAMES, their order and the initial distributions are those of PyTorch and torchvision, so that state dicts can be
 * compared. A module's own parameters come first, then those of each child in order, with names such as
 * "layer1.0.conv1.weight".
 *
 * OWNERSHIP. A constructor gives the caller one reference, in *out. WEFT_ERR_INVALID: an argument is wrong. *error,
 * if `error` is not NULL, receives the argument with its value; you release it. (Dimensions of weft_flatten_create
 * and the softmax modules, and the sizes of pools, are checked when the module runs.) WEFT_ERR_MEMORY: memory is
 * out. A function that takes a child takes over the caller's reference, even if it fails. Parameters, buffers,
 * children and names are borrowed from their module.
 *
 * THREADS. One thread builds a module. After that several threads may run it at once, each on its own tape. This
 * holds in train mode too: no update of batch norm's running statistics is lost. Steps with WEFT_UPDATE_BESIDE
 * (weft/optim.h) and weft_module_load may run at the same time: a forward pass reads each parameter before or after
 * a step, never a mixture, and its backward pass uses the same bits. Any thread may take and drop references.
 */
#ifndef WEFT_NN_H
#define WEFT_NN_H

#include <weft/ops.h>
#include <weft/value.h>

WEFT_BEGIN_C

WEFT_API weft_module *weft_module_ref(weft_module *module);
WEFT_API void weft_module_unref(weft_module *module);

/* Runs the module on x. The result, one tensor, belongs to the tape. NULL if the tape fails. */
WEFT_API weft_tensor *weft_module_forward(weft_tape *tape, weft_module *module, weft_tensor *x);

/*
 * Runs the module with values (weft/value.h), for modules whose inputs or results are not one tensor: several
 * tensors, integers, lists. The results belong to the tape; the list is empty if the tape fails. A module of one
 * tensor takes and gives a list of one.
 *     weft_tensor *scores(weft_tape *t, weft_module *lstm, weft_tensor *x, weft_tensor *h, weft_tensor *c)
 *     {
 *         weft_args in = WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(h), weft_of_tensor(c));
 *         weft_args out = weft_module_call(t, lstm, in);
 *         return weft_softmax(t, weft_args_tensor(out, 0), -1); // NULL if the tape failed
 *     }
 */
WEFT_API weft_args weft_module_call(weft_tape *tape, weft_module *module, weft_args_in inputs);
/* The tensor at `index` of a list of values, borrowed; NULL if there is none. */
WEFT_API weft_tensor *weft_args_tensor(weft_args_in values, size_t index);

/* Sets train mode (the default) or eval mode for the module and all modules below it. A tape with its own mode
 * (weft_tape_options) overrides this flag. If several threads run the module, set the mode on tapes, because all
 * threads share the flag. */
WEFT_API void weft_module_train(weft_module *module, bool train);
WEFT_API bool weft_module_is_training(const weft_module *module);
/* Whether the module is in train mode on this tape: the tape's mode, otherwise the module's flag. For your own
 * modules. */
WEFT_API bool weft_module_trains_on(const weft_module *module, const weft_tape *tape);

/* All parameters and buffers, those of children included. After the first call of one of these functions the module
 * can no longer be changed; one thread makes that first call. */
WEFT_API weft_tensors weft_module_parameters(const weft_module *module);
WEFT_API weft_tensors weft_module_buffers(const weft_module *module);
/* The name of a parameter: its path from `module`, as "conv1.weight". NULL past the end. */
WEFT_API const char *weft_module_parameter_name(const weft_module *module, size_t index);
WEFT_API const char *weft_module_buffer_name(const weft_module *module, size_t index);
/* The parameter or buffer with that full name, such as "layer1.0.conv1.weight"; NULL if there is none. */
WEFT_API weft_tensor *weft_module_find(const weft_module *module, const char *name);
WEFT_API int64_t weft_module_numel(const weft_module *module); /* the number of elements of all parameters */

/*
 * Converts parameters and floating buffers to float32 or float64. WEFT_ERR_STATE if the module is a child of
 * another, or if one of the lists above was read for this module or a child. WEFT_ERR_INVALID, WEFT_ERR_MEMORY. On
 * failure nothing changes.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_to(weft_module *module, weft_dtype dtype);
/* Moves parameters and buffers to a device, under the conditions of weft_module_to. Also the errors of
 * weft_device_check. Modules of weft_on_device_create among the module and its children compute on this device from
 * then on. */
WEFT_API WEFT_NODISCARD weft_status weft_module_to_device(weft_module *module, weft_device device);

/* The direct children, in order; NULL past the end. */
WEFT_API size_t weft_module_child_count(const weft_module *module);
WEFT_API weft_module *weft_module_child(const weft_module *module, size_t index);
WEFT_API const char *weft_module_child_name(const weft_module *module, size_t index);
WEFT_API const char *weft_module_type_name(const weft_module *module); /* the name of its type, such as "Conv2d" */

/* ---- Your own modules ------------------------------------------------------------------------------------ */

/* The type of your own modules. A type has `forward`, `call` or both. If one is missing, weft uses the other. */
typedef struct weft_module_type {
    const char *name;
    weft_tensor *(*forward)(weft_tape *tape, weft_module *self, weft_tensor *x); /* returns a tensor of the tape */
    weft_drop_fn drop; /* receives `state` when the last reference is dropped; may be NULL */
    /* Adds the results to `results`. If the function returns a failure, the tape fails with that status, and the
     * error has the module's name. If an operator that the function called has failed, the tape has failed, and the
     * function's own status and results are ignored. */
    weft_status (*call)(weft_tape *tape, weft_module *self, weft_args inputs, weft_values *results);
} weft_module_type;

/* Makes a module of your own type. `type` is copied, and its name must outlive the module. */
WEFT_API WEFT_NODISCARD weft_status weft_module_create_sized(const weft_module_type *type, size_t size, void *state,
                                                             weft_module **out, weft_error **error);
static inline WEFT_NODISCARD weft_status weft_module_create(const weft_module_type *type, void *state,
                                                            weft_module **out, weft_error **error)
{
    return weft_module_create_sized(type, sizeof(*type), state, out, error);
}
WEFT_API void *weft_module_state(const weft_module *module);

/*
 * Add to a module while it is built. They take over your reference, even if they fail. A name is not empty, has no
 * dots, and is unique in its module; a child may be called "0". A parameter is set to want a gradient. A contiguous
 * tensor that was not made by a tape becomes a cell (weft/tensor.h): no other thread may use the tensor during the
 * call.
 *
 * A child may be added under several names, and to several modules: take a reference for each. Its parameters and
 * buffers are in the lists once, under the first of their full names; weft_module_find knows all names.
 *
 * A module keeps its first failure, which weft_module_status returns. If a module or one of its children has failed,
 * every tape that the module runs on fails. Errors:
 *   WEFT_ERR_INVALID: an argument is NULL, or a name is invalid or too long.
 *   WEFT_ERR_EXISTS: the module has something with that name.
 *   WEFT_ERR_TYPE: a parameter is not floating.
 *   WEFT_ERR_STATE: the module can no longer be changed, because it is a child of another or its lists were read; or it
 *   would become its own child.
 *   WEFT_ERR_TOO_LARGE: a full name is too long.
 *   WEFT_ERR_MEMORY.
 */
WEFT_API void weft_module_add_parameter(weft_module *module, const char *name, weft_tensor *tensor);
WEFT_API void weft_module_add_buffer(weft_module *module, const char *name, weft_tensor *tensor);
WEFT_API void weft_module_add_child(weft_module *module, const char *name, weft_module *child);
WEFT_API weft_status weft_module_status(const weft_module *module);

/* ---- Layers. Parameters are float32; equal seeds give equal initial values. U(a, b) is uniform. ---- */

typedef struct weft_conv2d_layer {
    int64_t in_channels, out_channels;
    int64_t kernel[2];
    weft_conv2d_options how;
    bool no_bias;
    uint64_t seed;
} weft_conv2d_layer;
/* A layer of weft_conv2d: weight U(-b, b), bias U(-b, b) with b = 1 / sqrt(C / groups * KH * KW). */
WEFT_API WEFT_NODISCARD weft_status weft_conv2d_create_sized(const weft_conv2d_layer *layer, size_t size,
                                                             weft_module **out, weft_error **error);
static inline WEFT_NODISCARD weft_status weft_conv2d_create(const weft_conv2d_layer *layer, weft_module **out,
                                                            weft_error **error)
{
    return weft_conv2d_create_sized(layer, sizeof(*layer), out, error);
}
/* A layer of weft_linear: weight [O, I], bias [O] U(-b, b) with b = 1 / sqrt(I). */
WEFT_API WEFT_NODISCARD weft_status weft_linear_create(int64_t in_features, int64_t out_features, bool no_bias,
                                                       uint64_t seed, weft_module **out, weft_error **error);
/* A layer of weft_batch_norm2d: weight 1, bias 0, running_mean 0, running_var 1, num_batches_tracked 0. momentum 0
 * takes 0.1, eps 0 takes 1e-5. */
WEFT_API WEFT_NODISCARD weft_status weft_batch_norm2d_create(int64_t channels, double momentum, double eps,
                                                             weft_module **out, weft_error **error);

typedef struct weft_embedding_layer {
    int64_t rows, width;
    weft_embedding_options how;
    uint64_t seed;
} weft_embedding_layer;
/* A layer of weft_embedding: index, int64 [...] -> [..., width]; weight [rows, width] N(0, 1), the padding row 0. */
WEFT_API WEFT_NODISCARD weft_status weft_embedding_create_sized(const weft_embedding_layer *layer, size_t size,
                                                                weft_module **out, weft_error **error);
static inline WEFT_NODISCARD weft_status weft_embedding_create(const weft_embedding_layer *layer, weft_module **out,
                                                               weft_error **error)
{
    return weft_embedding_create_sized(layer, sizeof(*layer), out, error);
}

typedef struct weft_embedding_bag_layer {
    int64_t rows, width;
    weft_embedding_bag_options how;
    uint64_t seed;
} weft_embedding_bag_layer;
/*
 * A layer of weft_embedding_bag: index, int64 [B, L] -> [B, width]; weight [rows, width] N(0, 1), the padding row 0.
 * With weft_module_call the layer also takes (index [n], offsets [B]) and (index, offsets or null, sample weights),
 * as weft_embedding_bag does.
 */
WEFT_API WEFT_NODISCARD weft_status weft_embedding_bag_create_sized(const weft_embedding_bag_layer *layer, size_t size,
                                                                    weft_module **out, weft_error **error);
static inline WEFT_NODISCARD weft_status weft_embedding_bag_create(const weft_embedding_bag_layer *layer,
                                                                   weft_module **out, weft_error **error)
{
    return weft_embedding_bag_create_sized(layer, sizeof(*layer), out, error);
}

typedef struct weft_lstm_layer {
    int64_t in_features, hidden_features;
    int64_t layers;   /* 0: one */
    bool batch_first; /* [N, T, ..] instead of [T, N, ..] */
    bool no_bias;
    double dropout; /* between layers, in train mode: the share of values that are set to 0 */
    uint64_t seed;
} weft_lstm_layer;
/*
 * Layers of weft_lstm: x [T, N, in_features] -> y [T, N, hidden_features]. Layer k has weight_ih_lk [4 H, I],
 * weight_hh_lk [4 H, H], and bias_ih_lk and bias_hh_lk [4 H], all U(-b, b) with b = 1 / sqrt(H). One direction only.
 * weft_module_call takes (x) or (x, h, c), and gives (y, h, c). h and c are the states before and after, [layers, N,
 * hidden_features]. They may be passed to the next call; weft_detach stops the backward pass there.
 */
WEFT_API WEFT_NODISCARD weft_status weft_lstm_create_sized(const weft_lstm_layer *layer, size_t size, weft_module **out,
                                                           weft_error **error);
static inline WEFT_NODISCARD weft_status weft_lstm_create(const weft_lstm_layer *layer, weft_module **out,
                                                          weft_error **error)
{
    return weft_lstm_create_sized(layer, sizeof(*layer), out, error);
}

/* These functions make layers without parameters, which run the operator of the same name (weft/ops.h): weft_relu
 * and so on. Dropout is applied in train mode only. */
WEFT_API WEFT_NODISCARD weft_status weft_relu_create(weft_module **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_sigmoid_create(weft_module **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_tanh_create(weft_module **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_max_pool2d_create_sized(const weft_max_pool2d_options *options, size_t size,
                                                                 weft_module **out, weft_error **error);
static inline WEFT_NODISCARD weft_status weft_max_pool2d_create(const weft_max_pool2d_options *options,
                                                                weft_module **out, weft_error **error)
{
    return weft_max_pool2d_create_sized(options, sizeof(*options), out, error);
}
WEFT_API WEFT_NODISCARD weft_status weft_adaptive_avg_pool2d_create(int64_t height, int64_t width, weft_module **out,
                                                                    weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_dropout_create(double p, weft_module **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_dropout2d_create(double p, weft_module **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_flatten_create(int from_dim, weft_module **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_softmax_create(int dim, weft_module **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_log_softmax_create(int dim, weft_module **out, weft_error **error);

/* A module that runs other modules one after another. weft_module_forward gives each module the first result of the
 * one before, weft_module_call all of its results. The children are called "0", "1", ... WEFT_ERR_INVALID: one of
 * `modules` is NULL; the others are released. */
WEFT_API WEFT_NODISCARD weft_status weft_sequential_create(weft_module *const *modules, size_t count, weft_module **out,
                                                           weft_error **error);

/*
 * A module that computes on `device`, whatever the device of the tape on which it runs: x -> child(x). It copies x
 * to the device and the result back. In a backward pass it copies the gradient of the result to the device and the
 * gradient of x back. So a module on tapes of the CPU can compute on a GPU. A remote module needs no such wrapper.
 * Results that it copies to the CPU are in page-locked memory. The child is moved to `device` under the conditions
 * of weft_module_to_device. The child's parameters, their gradients and the state of their optimizers are on
 * `device`. The parameters' names begin with "module.". Random numbers are those that the child would draw on the
 * tape itself. On a tape of that device nothing is copied. The function takes over your reference to `child`, even
 * if it fails.
 */
WEFT_API WEFT_NODISCARD weft_status weft_on_device_create(weft_module *child, weft_device device, weft_module **out,
                                                          weft_error **error);

/* ---- Models ---------------------------------------------------------------------------------------------- */

/*
 * ResNet-50 (He, Zhang, Ren, Sun, CVPR 2016), with the stride in the 3x3 convolution, as in torchvision: [N, 3, H,
 * W] -> [N, classes], H and W at least 32. With 30 classes it has 23,569,502 parameters. Initial values of
 * convolutions are N(0, 2 / fan_out).
 */
WEFT_API WEFT_NODISCARD weft_status weft_resnet50_create(int64_t classes, uint64_t seed, weft_module **out,
                                                         weft_error **error);

/* The parts of ResNet-50, in the order in which an image passes them. */
typedef enum weft_resnet_part {
    WEFT_RESNET_STEM = 0,   /* [N, 3, H, W] -> [N, 64, H / 4, W / 4]: convolution, batch norm, relu, pooling */
    WEFT_RESNET_LAYER1 = 1, /* -> [N, 256, H / 4, W / 4] */
    WEFT_RESNET_LAYER2 = 2, /* -> [N, 512, H / 8, W / 8] */
    WEFT_RESNET_LAYER3 = 3, /* -> [N, 1024, H / 16, W / 16] */
    WEFT_RESNET_LAYER4 = 4, /* -> [N, 2048, H / 32, W / 32] */
    WEFT_RESNET_HEAD = 5,   /* -> [N, classes]: pooling, linear */
    WEFT_RESNET_PARTS = 6,
} weft_resnet_part;
/*
 * The parts from `from` up to, but not including, `to`, as a module: a stage of a pipeline. Its parameters have the
 * names of the whole network ("layer3.0.conv1.weight"), and with the same `seed` the same values, bit for bit.
 * Consecutive stages compute the same as the whole network. `classes` is used for the head only. WEFT_ERR_INVALID:
 * from >= to, or one of the two is invalid.
 */
WEFT_API WEFT_NODISCARD weft_status weft_resnet50_stage_create(weft_resnet_part from, weft_resnet_part to,
                                                               int64_t classes, uint64_t seed, weft_module **out,
                                                               weft_error **error);
/*
 * A block of ResNet-50: [N, in_channels, H, W] -> [N, 4 planes, H / stride, W / stride]. The result of three
 * convolutions (1x1, 3x3 with the stride, 1x1), each with batch norm, is added to the input. If the two shapes
 * differ, a fourth convolution converts the input.
 */
WEFT_API WEFT_NODISCARD weft_status weft_bottleneck_create(int64_t in_channels, int64_t planes, int64_t stride,
                                                           uint64_t seed, weft_module **out, weft_error **error);
/* The network of PyTorch's MNIST example: [N, 1, 28, 28] -> log-probabilities [N, 10]. 1,199,882 parameters. */
WEFT_API WEFT_NODISCARD weft_status weft_mnist_convnet_create(uint64_t seed, weft_module **out, weft_error **error);

/* ---- Files ----------------------------------------------------------------------------------------------- */

/*
 * Writes all parameters and buffers to a file in safetensors format, which Python can read (docs/files.md). Each is
 * written once, under the first of its names. *error, if `error` is not NULL, receives the detail of a failure; you
 * release it.
 *
 * It writes a temporary file in the same folder and renames it at the end, so after a failure the old file is
 * unchanged. One exception: if the disk fails while the folder is synced, after the renaming, the new file may be
 * there. If the process is killed, the temporary file stays until the next save of that name on that host. After
 * WEFT_OK the file and its folder are synced: a power failure does not lose the file. The function follows symbolic
 * links and keeps the mode of an old file. If `path` is a pipe or a device, it writes there directly, without a
 * checksum. If steps with WEFT_UPDATE_BESIDE run meanwhile, each tensor is consistent, but different tensors may be
 * of different steps. Errors:
 *   WEFT_ERR_IO: for example, the reader of a pipe is gone. Like all functions of weft that write, it raises neither
 *   SIGPIPE nor SIGXFSZ.
 *   WEFT_ERR_INVALID: a name is not UTF-8.
 *   WEFT_ERR_UNSUPPORTED: a complex128 tensor, which the format lacks.
 *   WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_save(const weft_module *module, const char *path, weft_error **error);

/*
 * Reads a safetensors file of any program into a module. The file must have exactly the names of the module, in any
 * order, with the same dtypes and shapes. A tensor with several names may be stored under several of them, with the
 * same elements. On failure nothing changes, and *error, if `error` is not NULL, receives the first wrong, missing
 * or unexpected tensor, with both values. Untrusted files are safe to load. Errors:
 *   WEFT_ERR_FORMAT: the file is damaged, or has another format.
 *   WEFT_ERR_SHAPE, WEFT_ERR_TYPE: the file is of another module, or has a dtype that weft lacks.
 *   WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_load(weft_module *module, const char *path, weft_error **error);

/*
 * Writes named tensors to a file as weft_module_save does: tensors.items[i] under names[i]. The tensors may be
 * views, have any strides, and be on a GPU. With no tensors `names` may be NULL. The file has the tensors of larger
 * dtypes first. *error, if `error` is not NULL, receives the detail of a failure; you release it. Any thread.
 * Errors: those of weft_module_save, and
 *   WEFT_ERR_INVALID: an argument, a name or a tensor is NULL; a name is empty, "__metadata__" or not UTF-8; two names
 *   are the same.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensors_save(const char *path, const char *const *names, weft_tensors tensors,
                                                      weft_error **error);

/* The tensors of a file: tensors.items[i] has the name names[i]. The struct owns its names and one reference to each
 * tensor. */
typedef struct weft_named_tensors {
    const char *const *names;
    weft_tensors tensors; /* in the order in which their elements are in the file */
} weft_named_tensors;

/*
 * Reads all tensors of a safetensors file of any program, or of weft_module_save, into new contiguous CPU tensors.
 * On success *out receives them; release them with weft_tensors_free. On failure *out is NULL, and *error, if
 * `error` is not NULL, receives the detail; you release it. Untrusted regular files are safe to load: the tensors
 * are together no larger than the file. For a pipe weft allocates each tensor at the size that the header states.
 * Any thread. Errors:
 *   WEFT_ERR_FORMAT: the file is damaged, or has another format.
 *   WEFT_ERR_TYPE: the file has a dtype that weft lacks.
 *   WEFT_ERR_INVALID: `path` or `out` is NULL.
 *   WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensors_load(const char *path, weft_named_tensors **out, weft_error **error);
/* The tensor of that name, borrowed from `loaded`. NULL: there is no such name, or an argument is NULL. */
WEFT_API weft_tensor *weft_tensors_find(const weft_named_tensors *loaded, const char *name);
/* Releases the tensors and the names. To keep a tensor, take a reference to it first. NULL is a no-op. */
WEFT_API void weft_tensors_free(weft_named_tensors *loaded);

WEFT_END_C
#endif
