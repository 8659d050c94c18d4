/* SPDX-License-Identifier: Apache-2.0 */
/* models.c - whole networks: the one of PyTorch's MNIST example, and ResNet-50. */
#include "nn/nn.h"

#include "autograd/autograd.h"

#include "tensor/random.h"

#include <math.h>
#include <stdlib.h>

/* ---- The small network of PyTorch's MNIST example ---------------------------------------------------------------- */

enum { CONV1, CONV2, DROPOUT1, DROPOUT2, FC1, FC2 };

static weft_tensor *convnet_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    weft_module **child = self->children;
    const weft_max_pool2d_options by2 = {.kernel = {2, 2}};
    x = weft_relu_in_place(t, weft_module_forward(t, child[CONV1], x));    /* [N, 32, 26, 26] */
    x = weft_max_pool2d(t, weft_module_forward(t, child[CONV2], x), &by2); /* [N, 64, 12, 12] */
    x = weft_flatten(t, weft_module_forward(t, child[DROPOUT1], x), 1);    /* [N, 9216] */
    x = weft_relu_in_place(t, weft_module_forward(t, child[FC1], x));      /* [N, 128] */
    x = weft_module_forward(t, child[FC2], weft_module_forward(t, child[DROPOUT2], x));
    return weft_log_softmax(t, x, 1);
}

static const weft_module_type convnet_type = {.name = "Net", .forward = convnet_forward};

static weft_module *conv3(int64_t in, int64_t out, uint64_t seed)
{
    return wfi_nn_conv2d_create(
        &(weft_conv2d_layer){.in_channels = in, .out_channels = out, .kernel = {3, 3}, .seed = seed}, NULL);
}

/* The second dropout is Dropout2d in the example, too; on [N, C] it drops single elements, planes of one. */
weft_module *wfi_nn_mnist_convnet_create(uint64_t seed, weft_error **error)
{
    wfi_random seeds = {seed, 0};
    weft_module *net = wfi_module_create(&convnet_type, NULL, error);
    weft_module_add_child(net, "conv1", conv3(1, 32, wfi_random_u64(seeds, 0)));
    weft_module_add_child(net, "conv2", conv3(32, 64, wfi_random_u64(seeds, 1)));
    weft_module_add_child(net, "dropout1", wfi_nn_dropout2d_create(0.25, NULL));
    weft_module_add_child(net, "dropout2", wfi_nn_dropout2d_create(0.5, NULL));
    weft_module_add_child(net, "fc1", wfi_nn_linear_create(9216, 128, false, wfi_random_u64(seeds, 2), NULL));
    weft_module_add_child(net, "fc2", wfi_nn_linear_create(128, 10, false, wfi_random_u64(seeds, 3), NULL));
    return wfi_module_finish(net, error);
}

/* ---- ResNet-50 --------------------------------------------------------------------------------------------------- */

/*
 * He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, in torchvision's form (a block's
 * stride is in its 3x3 convolution), under torchvision's names.
 */

#define EXPANSION 4

/* Every convolution takes the next seed. */
typedef struct builder {
    uint64_t seed, layer;
} builder;

static uint64_t next_seed(builder *b)
{
    return wfi_random_u64((wfi_random){b->seed, 0}, b->layer++);
}

/* N(0, 2 / fan_out), as torchvision initialises its ResNets. */
static weft_module *conv(builder *b, int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding)
{
    uint64_t seed = next_seed(b);
    weft_module *module =
        wfi_nn_conv2d_create(&(weft_conv2d_layer){.in_channels = in,
                                                  .out_channels = out,
                                                  .kernel = {kernel, kernel},
                                                  .how = {{stride, stride}, {padding, padding}, {0}, 0},
                                                  .no_bias = true,
                                                  .seed = seed},
                             NULL);
    double deviation = sqrt(2.0 / (double)(out * kernel * kernel));
    if (module && wfi_random_normal(module->parameters.tensors[0], (wfi_random){seed, 0}, 0, deviation) == WEFT_OK)
        return module;
    weft_module_unref(module);
    return NULL;
}

static weft_module *norm(int64_t channels)
{
    return wfi_nn_batch_norm2d_create(channels, 0, 0, NULL);
}

/*
 * Runs `forward` on a tape of its own, which owns all tensors between `x` and the result. When that tape closes, only
 * the tensors that its nodes saved stay, until the backward pass has used them. `outer` owns the result.
 */
static weft_tensor *in_own_tape(weft_tape *outer, weft_module *self, weft_tensor *x,
                                weft_tensor *(*forward)(weft_tape *t, weft_module *self, weft_tensor *x))
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = weft_tape_records(outer), .parent = outer});
    weft_tensor *y = forward(t, self, x);
    if (y)
        weft_tensor_ref(y);
    else
        wfi_tape_copy_error(t, outer);
    weft_tape_close(t);
    return weft_tape_take(outer, y);
}

/*
 * The bottleneck of He et al. (Deep Residual Learning, 2015), with torchvision's names: children conv1 bn1 conv2 bn2
 * conv3 bn3 relu, and downsample if the shape changes. Child relu exists for its name only: relu runs in place.
 * y = relu(bn3(conv3(relu(bn2(conv2(relu(bn1(conv1(x)))))))) + shortcut), x or downsample(x);
 */
static weft_tensor *bottleneck_inner(weft_tape *t, weft_module *self, weft_tensor *x)
{
    weft_module **child = self->children;
    weft_tensor *shortcut = self->child_count > 7 ? weft_module_forward(t, child[7], x) : x;
    weft_tensor *y = weft_relu_in_place(t, weft_module_forward(t, child[1], weft_module_forward(t, child[0], x)));
    y = weft_relu_in_place(t, weft_module_forward(t, child[3], weft_module_forward(t, child[2], y)));
    y = weft_module_forward(t, child[5], weft_module_forward(t, child[4], y));
    return weft_relu_in_place(t, weft_add(t, y, shortcut));
}

static weft_tensor *bottleneck_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    return in_own_tape(t, self, x, bottleneck_inner);
}

static const weft_module_type bottleneck_type = {.name = "Bottleneck", .forward = bottleneck_forward};

static weft_module *bottleneck(builder *b, int64_t in, int64_t planes, int64_t stride)
{
    int64_t out = planes * EXPANSION;
    weft_module *block = wfi_module_create(&bottleneck_type, NULL, NULL);
    weft_module_add_child(block, "conv1", conv(b, in, planes, 1, 1, 0));
    weft_module_add_child(block, "bn1", norm(planes));
    weft_module_add_child(block, "conv2", conv(b, planes, planes, 3, stride, 1));
    weft_module_add_child(block, "bn2", norm(planes));
    weft_module_add_child(block, "conv3", conv(b, planes, out, 1, 1, 0));
    weft_module_add_child(block, "bn3", norm(out));
    weft_module_add_child(block, "relu", wfi_nn_relu_create(NULL));
    if (in != out || stride != 1) {
        weft_module *shortcut[] = {conv(b, in, out, 1, stride, 0), norm(out)};
        weft_module_add_child(block, "downsample", wfi_nn_sequential_create(shortcut, 2, NULL));
    }
    return wfi_module_finish(block, NULL);
}

weft_module *wfi_nn_bottleneck_create(int64_t in_channels, int64_t planes, int64_t stride, uint64_t seed,
                                      weft_error **error)
{
    builder b = {.seed = seed};
    if (in_channels < 1 || planes < 1 || planes > INT64_MAX / EXPANSION || stride < 1)
        return wfi_module_refuse(error, "Bottleneck",
                                 "in_channels %lld, planes %lld, stride %lld: all must be positive",
                                 (long long)in_channels, (long long)planes, (long long)stride);
    weft_module *block = bottleneck(&b, in_channels, planes, stride);
    return block ? block : wfi_module_no_memory(error, "Bottleneck");
}

#define BLOCKS_MAX 6

/* The layers of blocks, in order: LAYER1 is layers[0]. */
static const struct {
    const char *name;
    int64_t in, planes, stride;
    size_t blocks;
} layers[] = {
    {"layer1", 64, 64, 1, 3}, {"layer2", 256, 128, 2, 4}, {"layer3", 512, 256, 2, 6}, {"layer4", 1024, 512, 2, 3}};

static void add_layer(weft_module *net, builder *b, size_t which)
{
    weft_module *block[BLOCKS_MAX];
    int64_t in = layers[which].in, planes = layers[which].planes;
    for (size_t i = 0; i < layers[which].blocks; i++)
        block[i] = bottleneck(b, i == 0 ? in : planes * EXPANSION, planes, i == 0 ? layers[which].stride : 1);
    weft_module_add_child(net, layers[which].name, wfi_nn_sequential_create(block, layers[which].blocks, NULL));
}

/* How many seeds the parts before `part` use: one for each convolution; the first block of a layer has four. */
static uint64_t seeds_before(int part)
{
    uint64_t count = part > WEFT_RESNET_STEM ? 1 : 0;
    for (int i = WEFT_RESNET_LAYER1; i < part && i <= WEFT_RESNET_LAYER4; i++)
        count += 3 * layers[i - WEFT_RESNET_LAYER1].blocks + 1;
    return count;
}

/* Children of the whole net: conv1 bn1 relu maxpool layer1..layer4 avgpool fc. A stage has some of them. */
enum { STEM_RELU = 2, STEM = 4 };

typedef struct stage {
    int from, to;
} stage;

static weft_tensor *stem_inner(weft_tape *t, weft_module *self, weft_tensor *x)
{
    for (size_t i = 0; i < STEM; i++)
        x = i == STEM_RELU ? weft_relu_in_place(t, x) : weft_module_forward(t, self->children[i], x);
    return x;
}

static weft_tensor *resnet_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    const stage *parts = self->state;
    bool has_head = parts->to > WEFT_RESNET_HEAD;
    size_t first = parts->from == WEFT_RESNET_STEM ? STEM : 0, last = self->child_count - (has_head ? 1 : 0);
    if (first > 0)
        x = in_own_tape(t, self, x, stem_inner);
    for (size_t i = first; i < last; i++)
        x = weft_module_forward(t, self->children[i], x);
    return has_head ? weft_module_forward(t, self->children[last], weft_flatten(t, x, 1)) : x;
}

static const weft_module_type resnet_type = {.name = "ResNet", .forward = resnet_forward, .drop = free};

static void add_stem(weft_module *net, builder *b)
{
    weft_max_pool2d_options pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    weft_module_add_child(net, "conv1", conv(b, 3, 64, 7, 2, 3));
    weft_module_add_child(net, "bn1", norm(64));
    weft_module_add_child(net, "relu", wfi_nn_relu_create(NULL));
    weft_module_add_child(net, "maxpool", wfi_nn_max_pool2d_create(&pool, NULL));
}

weft_module *wfi_nn_resnet50_stage_create(weft_resnet_part from, weft_resnet_part to, int64_t classes, uint64_t seed,
                                          weft_error **error)
{
    int first = (int)from, end = (int)to;
    if (first < 0 || first >= end || end > WEFT_RESNET_PARTS)
        return wfi_module_refuse(error, "ResNet", "parts %d to before %d: 0 <= from < to <= %d", first, end,
                                 WEFT_RESNET_PARTS);
    if (end > WEFT_RESNET_HEAD && classes < 1)
        return wfi_module_refuse(error, "ResNet", "classes is %lld: at least 1", (long long)classes);
    stage *parts = malloc(sizeof(*parts));
    if (!parts)
        return wfi_module_no_memory(error, "ResNet");
    *parts = (stage){first, end};
    builder b = {.seed = seed, .layer = seeds_before(first)};
    weft_module *net = wfi_module_create(&resnet_type, parts, error);
    for (int part = first; part < end; part++) {
        if (part == WEFT_RESNET_STEM) {
            add_stem(net, &b);
        } else if (part < WEFT_RESNET_HEAD) {
            add_layer(net, &b, (size_t)(part - WEFT_RESNET_LAYER1));
        } else {
            weft_module_add_child(net, "avgpool", wfi_nn_adaptive_avg_pool2d_create(1, 1, NULL));
            weft_module_add_child(net, "fc",
                                  wfi_nn_linear_create(512L * EXPANSION, classes, false, next_seed(&b), NULL));
        }
    }
    return wfi_module_finish(net, error);
}

weft_module *wfi_nn_resnet50_create(int64_t classes, uint64_t seed, weft_error **error)
{
    return wfi_nn_resnet50_stage_create(WEFT_RESNET_STEM, WEFT_RESNET_PARTS, classes, seed, error);
}
