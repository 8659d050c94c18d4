/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/nn.h - modules: named parameters, buffers and children, and a forward function.
 *
 *     weft_module *two_layers(uint64_t seed) // [N, 784] -> log-probabilities [N, 10]
 *     {
 *         weft_module *layers[] = {weft_linear_create(784, 128, false, seed), weft_relu_create(),
 *                                  weft_linear_create(128, 10, false, seed + 1), weft_log_softmax_create(1)};
 *         return weft_sequential_create(layers, 4);
 *     }
 *
 * NAMES, their order and the initial distributions are those of PyTorch and torchvision, so that state dicts
 * can be compared. A module's own parameters come first, then those of each child in order, with names such as
 * "layer1.0.conv1.weight".
 *
 * OWNERSHIP. A constructor gives you one reference, or returns NULL if memory is out or an argument is wrong;
 * the log at level debug says which. A function that takes a child takes over your reference to it, also when
 * it fails. Parameters, buffers, children and names are borrowed from their module.
 *
 * THREADS. One thread builds a module. After that several threads may run it at once, each on a
 * tape of its own; in train mode too: no thread's update of batch norm's running statistics is lost. They may do so
 * beside steps of an optimizer with WEFT_UPDATE_BESIDE (weft/optim.h), and beside weft_module_load: a forward function reads
 * each parameter as a whole, before a step or after it, and its backward pass has the same bits. References may be
 * taken and dropped on any thread.
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
 * Runs the module from values to values, for those that take or give something else than one tensor (weft/value.h):
 * several tensors, integers, lists. The results belong to the tape; there are none if the tape fails. A module of one
 * tensor takes and gives a list of one.
 *
 *     weft_tensor *scores(weft_tape *t, weft_module *lstm, weft_tensor *x, weft_tensor *h, weft_tensor *c)
 *     {
 *         weft_args out = weft_module_call(t, lstm, WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(h), weft_of_tensor(c)));
 *         return weft_softmax(t, weft_args_tensor(out, 0), -1); // NULL if the tape failed, as all that follows
 *     }
 */
WEFT_API weft_args weft_module_call(weft_tape *tape, weft_module *module, weft_args_in inputs);
/* The tensor that stands at `index`, borrowed; NULL if there is none. */
WEFT_API weft_tensor *weft_args_tensor(weft_args_in values, size_t index);

/* Sets train mode (the default) or eval mode, for the module and all modules below it. A tape with a mode of its own
 * (weft_tape_options) overrules it; where several threads run the module, let tapes say it, as all of them see this flag change. */
WEFT_API void weft_module_train(weft_module *module, bool train);
WEFT_API bool weft_module_is_training(const weft_module *module);
/* Whether the module trains on this tape: as the tape says, else as the module's own flag does. For modules of yours. */
WEFT_API bool weft_module_trains_on(const weft_module *module, const weft_tape *tape);

/* All parameters and buffers, those of children included. Asking for one of these lists ends the building of the module, which one
 * thread does: it cannot change any more. */
WEFT_API weft_tensors weft_module_parameters(const weft_module *module);
WEFT_API weft_tensors weft_module_buffers(const weft_module *module);
WEFT_API const char *weft_module_parameter_name(const weft_module *module, size_t index); /* NULL past the end */
WEFT_API const char *weft_module_buffer_name(const weft_module *module, size_t index);
/* The parameter or buffer of that full name, such as "layer1.0.conv1.weight"; NULL if there is none. */
WEFT_API weft_tensor *weft_module_find(const weft_module *module, const char *name);
WEFT_API int64_t weft_module_numel(const weft_module *module); /* the number of elements of all parameters */

/*
 * Converts parameters and floating buffers to float32 or float64. WEFT_ERR_STATE if one of the lists above has been
 * asked for, of the module or of a module inside it, or if the module is another's child; WEFT_ERR_INVALID,
 * WEFT_ERR_MEMORY. On failure nothing has changed.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_to(weft_module *module, weft_dtype dtype);

/* The direct children, in order; NULL past the end. */
WEFT_API size_t weft_module_child_count(const weft_module *module);
WEFT_API weft_module *weft_module_child(const weft_module *module, size_t index);
WEFT_API const char *weft_module_child_name(const weft_module *module, size_t index);
WEFT_API const char *weft_module_type_name(const weft_module *module); /* "Conv2d" ... */

/* ---- Your own modules ------------------------------------------------------------------------------------ */

/* A type has `forward`, `call` or both; what it does not have works through the other. */
typedef struct weft_module_type {
    const char *name;
    weft_tensor *(*forward)(weft_tape *tape, weft_module *self, weft_tensor *x); /* returns a tensor of the tape */
    weft_drop_fn drop; /* receives `state` when the last reference goes; may be NULL */
    /* Adds its results to `results`. The tape fails with what it returns, under the module's name. If an operator in
     * it has failed, what it returns and adds does not matter. */
    weft_status (*call)(weft_tape *tape, weft_module *self, weft_args inputs, weft_values *results);
} weft_module_type;

/* Makes a module of your own type. `type` is borrowed and must outlive the module: it is usually a constant. */
WEFT_API weft_module *weft_module_create(const weft_module_type *type, void *state);
WEFT_API void *weft_module_state(const weft_module *module);

/*
 * These add to a module while it is built. They take over your reference, also when they fail. A name is not
 * empty, has no dots, and is unique in its module; a child may be called "0". A parameter is set to want a
 * gradient. A contiguous tensor that no tape made becomes a cell (weft/tensor.h): no other thread may use it meanwhile.
 * A child may be added under several names, and to several modules: take a reference for each. Its
 * parameters and buffers stand in the lists once, under the first of their full names; weft_module_find knows them
 * under each. A module keeps its first failure, which weft_module_status returns: an argument is NULL, a name is
 * bad, or the module cannot change any more, as it is another's child or its lists were asked for
 * (WEFT_ERR_STATE; so is a module that is to be its own child). A module that has failed, or has a child that has failed, makes every tape fail that it
 * runs on.
 */
WEFT_API void weft_module_add_parameter(weft_module *module, const char *name, weft_tensor *tensor);
WEFT_API void weft_module_add_buffer(weft_module *module, const char *name, weft_tensor *tensor);
WEFT_API void weft_module_add_child(weft_module *module, const char *name, weft_module *child);
WEFT_API weft_status weft_module_status(const weft_module *module);

/* ---- Layers. Parameters are float32; the same `seed` gives the same initial values. U(a, b) is uniform. ---- */

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
typedef struct weft_embedding_layer {
    int64_t rows, width;
    weft_embedding_options how;
    uint64_t seed;
} weft_embedding_layer;
/* index, int64 [...] -> [..., width]; weight [rows, width] N(0, 1), the padding's row 0 */
WEFT_API weft_module *weft_embedding_create(const weft_embedding_layer *layer);

typedef struct weft_embedding_bag_layer {
    int64_t rows, width;
    weft_embedding_bag_options how;
    uint64_t seed;
} weft_embedding_bag_layer;
/*
 * index, int64 [B, L] -> [B, width]; weight [rows, width] N(0, 1), the padding's row 0. weft_module_call also takes
 * (index [n], offsets [B]) and (index, offsets or null, sample weights), as weft_embedding_bag does.
 */
WEFT_API weft_module *weft_embedding_bag_create(const weft_embedding_bag_layer *layer);

typedef struct weft_lstm_layer {
    int64_t in_features, hidden_features;
    int64_t layers;   /* 1 */
    bool batch_first; /* [N, T, ..] instead of [T, N, ..] */
    bool no_bias;
    double dropout; /* between layers, in train mode; 0 */
    uint64_t seed;
} weft_lstm_layer;
/*
 * x [T, N, in_features] -> y [T, N, hidden_features]. For each layer k weight_ih_lk [4 H, I], weight_hh_lk [4 H, H], bias_ih_lk and
 * bias_hh_lk [4 H], all U(-b, b) with b = 1 / sqrt(H). One direction only. weft_module_call takes
 * (x) or (x, h, c) and gives (y, h, c): the states before and after, [layers, N, hidden_features]. h and c of one call may begin
 * the next; weft_detach ends what goes back from there.
 */
WEFT_API weft_module *weft_lstm_create(const weft_lstm_layer *layer);
WEFT_API weft_module *weft_relu_create(void);
WEFT_API weft_module *weft_sigmoid_create(void);
WEFT_API weft_module *weft_tanh_create(void);
WEFT_API weft_module *weft_max_pool2d_create(const weft_max_pool2d_options *options);
WEFT_API weft_module *weft_adaptive_avg_pool2d_create(int64_t height, int64_t width);
WEFT_API weft_module *weft_dropout_create(double p);
WEFT_API weft_module *weft_dropout2d_create(double p);
WEFT_API weft_module *weft_flatten_create(int from_dim);
WEFT_API weft_module *weft_softmax_create(int dim);
WEFT_API weft_module *weft_log_softmax_create(int dim);
/* Runs the modules one after the other: weft_module_forward gives each the first result of the one before,
 * weft_module_call all of its results. The children are called "0", "1", ... If one of them is NULL it
 * releases the others and returns NULL: so constructors may be nested. */
WEFT_API weft_module *weft_sequential_create(weft_module *const *modules, size_t count);

/* ---- Models ---------------------------------------------------------------------------------------------- */

/*
 * ResNet-50 by He, Zhang, Ren, Sun (CVPR 2016), with the stride in the 3x3 convolution, as in torchvision: [N,
 * 3, H, W] -> [N, classes], H and W at least 32. It has 23,569,502 parameters with 30 classes. Convolutions
 * begin with N(0, 2 / fan_out).
 */
WEFT_API weft_module *weft_resnet50_create(int64_t classes, uint64_t seed);

/* Its parts, in the order in which an image passes them. */
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
 * The parts `from` to `to`, that one excluded, as a module: a stage of a pipeline. It has the names of the whole network
 * ("layer3.0.conv1.weight") and, with the same `seed`, bit for bit its parameters; stages one behind the other compute
 * what the whole computes. `classes` counts for the head only. NULL if from >= to, or one is no part.
 */
WEFT_API weft_module *weft_resnet50_stage_create(weft_resnet_part from, weft_resnet_part to, int64_t classes,
                                                 uint64_t seed);
/*
 * One block of it: [N, in_channels, H, W] -> [N, 4 planes, H / stride, W / stride]. Three convolutions (1x1, 3x3 with
 * the stride, 1x1), each with batch norm, added to the input, which a fourth convolution brings to the shape where it
 * differs.
 */
WEFT_API weft_module *weft_bottleneck_create(int64_t in_channels, int64_t planes, int64_t stride, uint64_t seed);
/* The network of PyTorch's MNIST example: [N, 1, 28, 28] -> log-probabilities [N, 10]. It has 1,199,882
 * parameters. */
WEFT_API weft_module *weft_mnist_convnet_create(uint64_t seed);

/* ---- Files ----------------------------------------------------------------------------------------------- */

/*
 * Writes all parameters and buffers to a file of the format safetensors, which Python and others read (docs/files.md):
 * each once, under the first of its names. `error`, if not NULL, receives the detail of a failure; you release it.
 * WEFT_ERR_IO, WEFT_ERR_MEMORY, WEFT_ERR_INVALID (a name is not UTF-8), WEFT_ERR_UNSUPPORTED (a complex128 tensor, which the
 * format does not have). It writes a temporary file beside `path` and renames
 * it at the end, so a failure leaves the old file as it was; only if the disk fails at the very end may either file be
 * there. If the process is killed, the temporary file stays until the next save of that name on that host. Beside
 * steps (WEFT_UPDATE_BESIDE) each tensor is written whole, perhaps of two steps. When the function has returned WEFT_OK, a loss of power does not lose the file:
 * the file and its folder are synced. It follows symbolic links and keeps the mode of an old file. If `path` is
 * no plain file but a pipe or a device, it writes there directly, without a checksum. If the reader of a pipe has gone,
 * that is WEFT_ERR_IO: weft's functions that write to a file, a pipe or a FILE of yours raise no SIGPIPE or SIGXFSZ.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_save(const weft_module *module, const char *path, weft_error **error);

/*
 * Reads a file of safetensors into a module, whoever wrote it; or a file of weft's own format, which weft_module_save wrote
 * before. It must hold exactly the names of the module, in any order, with the same dtypes and shapes; what has several
 * names may stand under each, with the same elements. On failure nothing has changed. WEFT_ERR_NOT_FOUND, WEFT_ERR_IO,
 * WEFT_ERR_FORMAT (damaged, or another kind of file), WEFT_ERR_SHAPE or WEFT_ERR_TYPE (of another module, or a dtype that
 * weft does not have), WEFT_ERR_MEMORY; `error` then says which tensor it was, with both values: the first one that is
 * missing or unexpected, if the names differ. It is safe to read a file that
 * you do not trust.
 */
WEFT_API WEFT_NODISCARD weft_status weft_module_load(weft_module *module, const char *path, weft_error **error);

WEFT_END_C
#endif
