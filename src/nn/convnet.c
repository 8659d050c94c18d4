/* SPDX-License-Identifier: Apache-2.0 */
/* convnet.c - the small network of PyTorch's MNIST example. */
#include "nn/nn.h"

#include "tensor/random.h"

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
    return weft_conv2d_create(
        &(weft_conv2d_layer){.in_channels = in, .out_channels = out, .kernel = {3, 3}, .seed = seed}, NULL);
}

/* The second dropout is Dropout2d in the example, too; on [N, C] it drops single elements, planes of one. */
weft_module *weft_mnist_convnet_create(uint64_t seed)
{
    wfi_random seeds = {seed, 0};
    weft_module *net = weft_module_create(&convnet_type, NULL, NULL);
    weft_module_add_child(net, "conv1", conv3(1, 32, wfi_random_u64(seeds, 0)));
    weft_module_add_child(net, "conv2", conv3(32, 64, wfi_random_u64(seeds, 1)));
    weft_module_add_child(net, "dropout1", weft_dropout2d_create(0.25, NULL));
    weft_module_add_child(net, "dropout2", weft_dropout2d_create(0.5, NULL));
    weft_module_add_child(net, "fc1", weft_linear_create(9216, 128, false, wfi_random_u64(seeds, 2), NULL));
    weft_module_add_child(net, "fc2", weft_linear_create(128, 10, false, wfi_random_u64(seeds, 3), NULL));
    return wfi_module_finish(net, NULL);
}
