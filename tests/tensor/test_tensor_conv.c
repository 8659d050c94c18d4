/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_conv.c - convolution: float32 (oneDNN) against float64 (products), gradients by finite differences. */
#include "check_gradients.h"

#include "tensor/cpu/product/conv.h"
#include "tensors.h"

typedef struct conv_case {
    weft_shape x, weight;
    wfi_conv2d how;
} conv_case;

/* The first ones are also compared with finite differences, which takes long. */
#define SMALL 5
static const conv_case cases[] = {
    {{4, {2, 3, 8, 9}}, {4, {4, 3, 3, 3}}, {{1, 1}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 16, 8, 8}}, {4, {32, 16, 1, 1}}, {{2, 2}, {0, 0}, {1, 1}, 1}},
    {{4, {1, 3, 16, 16}}, {4, {8, 3, 7, 7}}, {{2, 2}, {3, 3}, {1, 1}, 1}},
    {{4, {2, 4, 7, 6}}, {4, {6, 2, 3, 2}}, {{1, 2}, {1, 0}, {2, 1}, 2}},
    {{4, {1, 1, 3, 3}}, {4, {1, 1, 3, 3}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
    /* The kinds of layers of ResNet-50, on smaller images, and those of a ConvNet for digits. */
    {{4, {2, 3, 32, 32}}, {4, {64, 3, 7, 7}}, {{2, 2}, {3, 3}, {1, 1}, 1}},
    {{4, {2, 64, 14, 14}}, {4, {64, 64, 3, 3}}, {{1, 1}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 128, 7, 7}}, {4, {128, 128, 3, 3}}, {{1, 1}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 256, 7, 7}}, {4, {256, 256, 3, 3}}, {{1, 1}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 512, 4, 4}}, {4, {512, 512, 3, 3}}, {{1, 1}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 128, 14, 14}}, {4, {128, 128, 3, 3}}, {{2, 2}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 256, 14, 14}}, {4, {256, 256, 3, 3}}, {{2, 2}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 512, 7, 7}}, {4, {512, 512, 3, 3}}, {{2, 2}, {1, 1}, {1, 1}, 1}},
    {{4, {2, 64, 14, 14}}, {4, {64, 64, 1, 1}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
    {{4, {2, 64, 14, 14}}, {4, {256, 64, 1, 1}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
    {{4, {2, 256, 14, 14}}, {4, {64, 256, 1, 1}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
    {{4, {2, 512, 4, 4}}, {4, {2048, 512, 1, 1}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
    {{4, {2, 2048, 4, 4}}, {4, {512, 2048, 1, 1}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
    {{4, {4, 1, 28, 28}}, {4, {32, 1, 3, 3}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
    {{4, {4, 32, 26, 26}}, {4, {64, 32, 3, 3}}, {{1, 1}, {0, 0}, {1, 1}, 1}},
};

typedef struct conv_set {
    weft_tensor *x, *weight, *bias, *y, *dy, *dx, *dweight, *dbias;
    const wfi_conv2d *how;
} conv_set;

static void set_make(conv_set *set, const conv_case *c, weft_dtype dtype)
{
    weft_shape y;
    assert_int_equal(wfi_conv2d_shape(&c->x, &c->weight, &c->how, &y), WEFT_OK);
    set->how = &c->how;
    set->x = random_tensor(c->x, dtype, 1);
    set->weight = random_tensor(c->weight, dtype, 2);
    set->bias = random_tensor(WEFT_SHAPE(c->weight.dims[0]), dtype, 3);
    set->dy = random_tensor(y, dtype, 4);
    set->y = tensor_empty(y, dtype);
    set->dx = tensor_empty(c->x, dtype);
    set->dweight = tensor_empty(c->weight, dtype);
    set->dbias = tensor_empty(WEFT_SHAPE(c->weight.dims[0]), dtype);
    assert_int_equal(wfi_conv2d_forward(set->x, set->weight, set->bias, &c->how, set->y), WEFT_OK);
    assert_int_equal(wfi_conv2d_backward_data(set->dy, set->weight, &c->how, set->dx), WEFT_OK);
    assert_int_equal(wfi_conv2d_backward_weight(set->dy, set->x, &c->how, set->dweight, set->dbias), WEFT_OK);
}

static void set_drop(conv_set *set)
{
    weft_tensor *all[] = {set->x, set->weight, set->bias, set->y, set->dy, set->dx, set->dweight, set->dbias};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

static double weighted_output(void *arg)
{
    conv_set *set = arg;
    assert_int_equal(wfi_conv2d_forward(set->x, set->weight, set->bias, set->how, set->y), WEFT_OK);
    return dot(set->y, set->dy);
}

static void float32_agrees_with_float64(void **state)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        conv_set a, b;
        set_make(&a, &cases[i], WEFT_DTYPE_FLOAT32);
        set_make(&b, &cases[i], WEFT_DTYPE_FLOAT64);
        assert_true(relative_error(a.y, b.y) < 1e-5);
        assert_true(relative_error(a.dx, b.dx) < 1e-5);
        assert_true(relative_error(a.dweight, b.dweight) < 1e-5);
        assert_true(relative_error(a.dbias, b.dbias) < 1e-5);
        set_drop(&a);
        set_drop(&b);
    }
}

/* Those of ResNet-50, and others: oneDNN 3 ends the process in some of them (conv_onednn.c). */
static void strided_products_of_many_channels_work(void **state)
{
    static const int channels[][2] = {{256, 512}, {256, 1024}, {512, 1024}, {512, 2048}, {1024, 512}, {1024, 2048}};
    for (size_t i = 0; i < sizeof(channels) / sizeof(channels[0]); i++) {
        int in = channels[i][0], out = channels[i][1];
        conv_case one = {{4, {2, in, 4, 4}}, {4, {out, in, 1, 1}}, {{2, 2}, {0, 0}, {1, 1}, 1}};
        conv_set a, b;
        set_make(&a, &one, WEFT_DTYPE_FLOAT32);
        set_make(&b, &one, WEFT_DTYPE_FLOAT64);
        assert_true(relative_error(a.y, b.y) < 1e-5);
        assert_true(relative_error(a.dx, b.dx) < 1e-5);
        assert_true(relative_error(a.dweight, b.dweight) < 1e-5);
        set_drop(&a);
        set_drop(&b);
    }
}

static void gradients_agree_with_finite_differences(void **state)
{
    for (size_t i = 0; i < SMALL; i++) {
        if (i == 1 || i == 2)
            continue; /* many elements, nothing new */
        conv_set set;
        set_make(&set, &cases[i], WEFT_DTYPE_FLOAT64);
        check_gradient(weighted_output, &set, set.x, set.dx);
        check_gradient(weighted_output, &set, set.weight, set.dweight);
        check_gradient(weighted_output, &set, set.bias, set.dbias);
        set_drop(&set);
    }
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    weft_shape y, x = WEFT_SHAPE(1, 3, 4, 4), weight = WEFT_SHAPE(2, 4, 3, 3), large = WEFT_SHAPE(2, 3, 7, 7);
    wfi_conv2d how = {{1, 1}, {0, 0}, {1, 1}, 1}, still = {{0, 1}, {0, 0}, {1, 1}, 1};
    assert_int_equal(wfi_conv2d_shape(&x, &weight, &how, &y), WEFT_ERR_SHAPE);
    assert_int_equal(wfi_conv2d_shape(&x, &large, &how, &y), WEFT_ERR_SHAPE);
    assert_int_equal(wfi_conv2d_shape(&x, &weight, &still, &y), WEFT_ERR_INVALID);
}

static void an_empty_batch_gives_zero_gradients(void **state)
{
    wfi_conv2d how = {{1, 1}, {0, 0}, {1, 1}, 1};
    weft_tensor *x = tensor_empty(WEFT_SHAPE(0, 3, 4, 4), WEFT_DTYPE_FLOAT32);
    weft_tensor *dy = tensor_empty(WEFT_SHAPE(0, 2, 2, 2), WEFT_DTYPE_FLOAT32);
    weft_tensor *dweight = tensor_full(WEFT_SHAPE(2, 3, 3, 3), WEFT_DTYPE_FLOAT32, 5);
    assert_int_equal(wfi_conv2d_backward_weight(dy, x, &how, dweight, NULL), WEFT_OK);
    for (int64_t i = 0; i < weft_tensor_numel(dweight); i++)
        assert_true(weft_tensor_get_f64(dweight, i) == 0);
    weft_tensor_unref(x);
    weft_tensor_unref(dy);
    weft_tensor_unref(dweight);
}

UNIT_MAIN(float32_agrees_with_float64, gradients_agree_with_finite_differences, shapes_that_do_not_fit_are_refused,
          an_empty_batch_gives_zero_gradients, strided_products_of_many_channels_work)
