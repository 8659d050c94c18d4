/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet.c - ResNet-50: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, in torchvision's
 * form (a block's stride is in its 3x3 convolution), under torchvision's names.
 */
#include "nn/nn.h"

#include "autograd/autograd.h"

#include "tensor/random.h"

#include <math.h>

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
    weft_module *module = weft_conv2d_create(&(weft_conv2d_layer){.in_channels = in,
                                                                  .out_channels = out,
                                                                  .kernel = {kernel, kernel},
                                                                  .how = {{stride, stride}, {padding, padding}, {0}, 0},
                                                                  .no_bias = true,
                                                                  .seed = seed});
    double deviation = sqrt(2.0 / (double)(out * kernel * kernel));
    if (module != NULL &&
        wfi_random_normal(module->parameters.tensors[0], (wfi_random){seed, 0}, 0, deviation) == WEFT_OK)
        return module;
    weft_module_unref(module);
    return NULL;
}

static weft_module *norm(int64_t channels)
{
    return weft_batch_norm2d_create(channels, 0, 0);
}

/*
 * What is computed between `x` and the result lives on a tape of its own, so that of these tensors only those stay that the
 * backward pass needs, and those only until it has been there.
 */
static weft_tensor *in_own_tape(weft_tape *outer, weft_module *self, weft_tensor *x,
                                weft_tensor *(*forward)(weft_tape *t, weft_module *self, weft_tensor *x))
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = weft_tape_records(outer), .parent = outer});
    weft_tensor *y = forward(t, self, x);
    if (y != NULL)
        weft_tensor_ref(y);
    else
        wfi_tape_pass_error(t, outer);
    weft_tape_close(t);
    return weft_tape_take(outer, y);
}

/* Children: conv1 bn1 conv2 bn2 conv3 bn3 relu, and downsample where the shape changes. */
static weft_tensor *bottleneck_inner(weft_tape *t, weft_module *self, weft_tensor *x)
{
    weft_module **child = self->children;
    weft_tensor *shortcut = self->child_count > 7 ? weft_module_forward(t, child[7], x) : x;
    weft_tensor *y = weft_relu(t, weft_module_forward(t, child[1], weft_module_forward(t, child[0], x)));
    y = weft_relu(t, weft_module_forward(t, child[3], weft_module_forward(t, child[2], y)));
    y = weft_module_forward(t, child[5], weft_module_forward(t, child[4], y));
    return weft_module_forward(t, child[6], weft_add(t, y, shortcut));
}

static weft_tensor *bottleneck_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    return in_own_tape(t, self, x, bottleneck_inner);
}

static const weft_module_type bottleneck_type = {.name = "Bottleneck", .forward = bottleneck_forward};

static weft_module *bottleneck(builder *b, int64_t in, int64_t planes, int64_t stride)
{
    int64_t out = planes * EXPANSION;
    weft_module *block = weft_module_create(&bottleneck_type, NULL);
    weft_module_add_child(block, "conv1", conv(b, in, planes, 1, 1, 0));
    weft_module_add_child(block, "bn1", norm(planes));
    weft_module_add_child(block, "conv2", conv(b, planes, planes, 3, stride, 1));
    weft_module_add_child(block, "bn2", norm(planes));
    weft_module_add_child(block, "conv3", conv(b, planes, out, 1, 1, 0));
    weft_module_add_child(block, "bn3", norm(out));
    weft_module_add_child(block, "relu", weft_relu_create());
    if (in != out || stride != 1) {
        weft_module *shortcut[] = {conv(b, in, out, 1, stride, 0), norm(out)};
        weft_module_add_child(block, "downsample", weft_sequential_create(shortcut, 2));
    }
    return wfi_module_finish(block);
}

#define BLOCKS_MAX 6

static weft_module *layer(builder *b, int64_t in, int64_t planes, size_t blocks, int64_t stride)
{
    weft_module *block[BLOCKS_MAX];
    for (size_t i = 0; i < blocks; i++)
        block[i] = bottleneck(b, i == 0 ? in : planes * EXPANSION, planes, i == 0 ? stride : 1);
    return weft_sequential_create(block, blocks);
}

/* Children: conv1 bn1 relu maxpool layer1..layer4 avgpool fc */
#define STEM 4

static weft_tensor *stem_inner(weft_tape *t, weft_module *self, weft_tensor *x)
{
    for (size_t i = 0; i < STEM; i++)
        x = weft_module_forward(t, self->children[i], x);
    return x;
}

static weft_tensor *resnet_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    size_t last = self->child_count - 1;
    x = in_own_tape(t, self, x, stem_inner);
    for (size_t i = STEM; i < last; i++)
        x = weft_module_forward(t, self->children[i], x);
    return weft_module_forward(t, self->children[last], weft_flatten(t, x, 1));
}

static const weft_module_type resnet_type = {.name = "ResNet", .forward = resnet_forward};

weft_module *weft_resnet50_create(int64_t classes, uint64_t seed)
{
    builder b = {.seed = seed};
    if (classes < 1)
        return wfi_module_refuse("ResNet", "there must be at least one class");
    weft_module *net = weft_module_create(&resnet_type, NULL);
    weft_module_add_child(net, "conv1", conv(&b, 3, 64, 7, 2, 3));
    weft_module_add_child(net, "bn1", norm(64));
    weft_module_add_child(net, "relu", weft_relu_create());
    weft_max_pool2d_options pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    weft_module_add_child(net, "maxpool", weft_max_pool2d_create(&pool));
    weft_module_add_child(net, "layer1", layer(&b, 64, 64, 3, 1));
    weft_module_add_child(net, "layer2", layer(&b, 256, 128, 4, 2));
    weft_module_add_child(net, "layer3", layer(&b, 512, 256, 6, 2));
    weft_module_add_child(net, "layer4", layer(&b, 1024, 512, 3, 2));
    weft_module_add_child(net, "avgpool", weft_adaptive_avg_pool2d_create(1, 1));
    weft_module_add_child(net, "fc", weft_linear_create(512L * EXPANSION, classes, false, next_seed(&b)));
    return wfi_module_finish(net);
}
