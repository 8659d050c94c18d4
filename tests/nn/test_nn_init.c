/* SPDX-License-Identifier: Apache-2.0 */
/* test_nn_init.c - initial values: the reference's distributions by bounds and moments, and the same bits for a
 * seed. */
#include <weft/weft.h>

#include "nn/moments.h"
#include "tensor/parallel.h"
#include "make.h"
#include "unit.h"

#include <math.h>
#include <string.h>

/* kaiming_uniform with a = sqrt(5): bound sqrt(6 / (1 + 5) / fan_in); biases have the same bound. */
static void convnet_starts_as_pytorchs(void **state)
{
    weft_module *net = mnist_convnet_create(7);
    const struct {
        const char *name;
        double fan_in;
    } all[] = {{"conv1", 9}, {"conv2", 288}, {"fc1", 9216}, {"fc2", 128}};
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%s.weight", all[i].name);
        assert_uniform(weft_module_find(net, name), 1 / sqrt(all[i].fan_in));
        snprintf(name, sizeof(name), "%s.bias", all[i].name);
        assert_uniform(weft_module_find(net, name), 1 / sqrt(all[i].fan_in));
    }
    weft_module_unref(net);
}

static void grouped_convolution_counts_its_groups_inputs(void **state)
{
    weft_module *conv = conv2d_create(
        &(weft_conv2d_layer){.in_channels = 64, .out_channels = 64, .kernel = {3, 5}, .how = {.groups = 4}, .seed = 3},
        NULL);
    assert_uniform(weft_module_find(conv, "weight"), 1 / sqrt(16.0 * 3 * 5));
    weft_module_unref(conv);
}

static void assert_all(const weft_tensor *x, double value)
{
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        assert_true(weft_tensor_get_f64(x, i) == value);
}

static bool ends_with(const char *name, const char *end)
{
    size_t a = strlen(name), b = strlen(end);
    return a >= b && strcmp(name + a - b, end) == 0;
}

static void assert_resnet_parameter(const char *name, const weft_tensor *p)
{
    if (weft_tensor_ndim(p) == 4)
        assert_normal(p,
                      sqrt(2.0 / (double)(weft_tensor_size(p, 0) * weft_tensor_size(p, 2) * weft_tensor_size(p, 3))));
    else if (strncmp(name, "fc.", 3) == 0)
        assert_uniform(p, 1 / sqrt(2048.0));
    else
        assert_all(p, ends_with(name, "weight") ? 1 : 0);
}

static void resnet_starts_as_torchvisions(void **state)
{
    weft_module *net = resnet50_create(30, 5, NULL);
    weft_tensors parameters = weft_module_parameters(net), buffers = weft_module_buffers(net);
    for (size_t i = 0; i < parameters.count; i++)
        assert_resnet_parameter(weft_module_parameter_name(net, i), parameters.items[i]);
    for (size_t i = 0; i < buffers.count; i++)
        assert_all(buffers.items[i], ends_with(weft_module_buffer_name(net, i), "running_var") ? 1 : 0);
    weft_module_unref(net);
}

static bool same_bits(const weft_module *a, const weft_module *b)
{
    weft_tensors x = weft_module_parameters(a), y = weft_module_parameters(b);
    for (size_t i = 0; i < x.count; i++)
        if (memcmp(weft_tensor_data(x.items[i]), weft_tensor_data(y.items[i]), weft_tensor_nbytes(x.items[i])) != 0)
            return false;
    return true;
}

static void a_seed_gives_the_same_bits_on_any_number_of_threads(void **state)
{
    wfi_cpu_threads_set(1);
    weft_module *one = mnist_convnet_create(9), *other = mnist_convnet_create(10);
    wfi_cpu_threads_set(3);
    weft_module *three = mnist_convnet_create(9);
    wfi_cpu_threads_set(1);
    assert_true(same_bits(one, three));
    assert_false(same_bits(one, other));
    weft_module_unref(three);
    weft_module_unref(other);
    weft_module_unref(one);
}

/* No two layers start alike. */
static void layers_differ_from_each_other(void **state)
{
    weft_module *net = resnet50_create(30, 5, NULL);
    const weft_tensor *a = weft_module_find(net, "layer1.1.conv1.weight");
    const weft_tensor *b = weft_module_find(net, "layer1.2.conv1.weight");
    assert_memory_not_equal(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a));
    weft_module_unref(net);
}

UNIT_MAIN(convnet_starts_as_pytorchs, grouped_convolution_counts_its_groups_inputs, resnet_starts_as_torchvisions,
          a_seed_gives_the_same_bits_on_any_number_of_threads, layers_differ_from_each_other)
