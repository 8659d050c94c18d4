/* SPDX-License-Identifier: Apache-2.0 */
/* test_nn_errors.c - a constructor of a module that fails names the wrong argument and its value. */
#include "make.h"
#include "unit.h"
#include "said.h"

#include <weft/nn.h>

#include <string.h>

/* `make` failed: NULL, and an error of that code with this text. */
static void assert_error(weft_module *made, weft_error *error, weft_status code, const char *text)
{
    assert_null(made);
    assert_int_equal(weft_error_code(error), code);
    if (!strstr(weft_error_message(error), text))
        fail_msg("\"%s\" is not in \"%s\"", text, weft_error_message(error));
    weft_error_unref(error);
}
#define FAILS(text, make)                                                                                              \
    do {                                                                                                               \
        weft_error *error = NULL;                                                                                      \
        weft_module *made = make;                                                                                      \
        assert_error(made, error, WEFT_ERR_INVALID, text);                                                             \
    } while (0)

static weft_tensor *pass(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    (void)tape, (void)self;
    return x;
}

static int dropped;
static void count_drop(void *arg)
{
    (void)arg;
    dropped++;
}

static void test_own_types(void **state)
{
    (void)state;
    const weft_module_type useless = {.name = "Useless", .drop = count_drop},
                           fine = {.name = "Fine", .forward = pass, .drop = count_drop};
    FAILS("the type is NULL", module_create(NULL, NULL, &error));
    FAILS("Useless: the type has neither `forward` nor `call`", module_create(&useless, &dropped, &error));
    assert_int_equal(dropped, 1);
    REFUSES(module_create(&useless, &dropped, NULL), NULL, "Useless: the type has neither"); /* to the log */
    assert_int_equal(dropped, 2);
    weft_module_unref(module_create(&fine, &dropped, NULL));
    assert_int_equal(dropped, 3);
}

static void test_layers(void **state)
{
    (void)state;
    FAILS("in_features 0, out_features 3", linear_create(0, 3, false, 1, &error));
    FAILS("in_features 3, out_features -2", linear_create(3, -2, false, 1, &error));
    FAILS("layer is NULL", conv2d_create(NULL, &error));
    FAILS("in_channels 3, out_channels 4, kernel 2 x 0, groups 1",
          conv2d_create(&(weft_conv2d_layer){.in_channels = 3, .out_channels = 4, .kernel = {2, 0}}, &error));
    FAILS("groups 2",
          conv2d_create(&(weft_conv2d_layer){.in_channels = 3, .out_channels = 4, .kernel = {2, 2}, .how.groups = 2},
                        &error));
    FAILS("channels 0, momentum 0.5, eps 1", batch_norm2d_create(0, 0.5, 1, &error));
    FAILS("momentum 1.5", batch_norm2d_create(2, 1.5, 0, &error));
    FAILS("eps -1", batch_norm2d_create(2, 0, -1, &error));
    FAILS("rows 0, width 4", embedding_create(&(weft_embedding_layer){.rows = 0, .width = 4}, &error));
    FAILS("layer is NULL", embedding_create(NULL, &error));
    FAILS("padding_row is 7: the table has rows 0 to 2",
          embedding_create(&(weft_embedding_layer){.rows = 3, .width = 1, .how = {.padding = true, .padding_row = 7}},
                           &error));
    FAILS("layer is NULL", embedding_bag_create(NULL, &error));
    FAILS("rows 3, width 0", embedding_bag_create(&(weft_embedding_bag_layer){.rows = 3}, &error));
    FAILS("mode is 9", embedding_bag_create(
                           &(weft_embedding_bag_layer){.rows = 3, .width = 1, .how.mode = (weft_bag_mode)9}, &error));
    FAILS("layer is NULL", lstm_create(NULL, &error));
    FAILS("in_features 2, hidden_features 0, layers 0", lstm_create(&(weft_lstm_layer){.in_features = 2}, &error));
    FAILS("dropout is 1",
          lstm_create(&(weft_lstm_layer){.in_features = 2, .hidden_features = 2, .dropout = 1}, &error));
    FAILS("options is NULL", max_pool2d_create(NULL, &error));
    FAILS("the kernel is 0 x 0", max_pool2d_create(&(weft_max_pool2d_options){0}, &error));
    FAILS("height 0, width 2", adaptive_avg_pool2d_create(0, 2, &error));
    FAILS("Dropout: p is 1", dropout_create(1, &error));
    FAILS("the list of 3 modules is NULL", sequential_create(NULL, 3, &error));
    FAILS("Dropout2d: p is -0.5", dropout2d_create(-0.5, &error));
    FAILS("in_channels 1, planes 0, stride 1", bottleneck_create(1, 0, 1, 1, &error));
    FAILS("classes is 0", resnet50_create(0, 1, &error));
    FAILS("parts 3 to before 3", resnet50_stage_create(WEFT_RESNET_LAYER3, WEFT_RESNET_LAYER3, 5, 1, &error));
}

/* Several constructors share one error: that of the first that failed stays. */
static void test_a_chain(void **state)
{
    (void)state;
    weft_error *error = NULL, *why = NULL;
    weft_module *layers[] = {linear_create(3, 2, false, 1, NULL), dropout_create(2, &why), log_softmax_create(1)};
    weft_module *model = sequential_create(layers, 3, &error);
    assert_error(layers[1], why, WEFT_ERR_INVALID, "Dropout: p is 2");
    assert_error(model, error, WEFT_ERR_INVALID, "Sequential: module 1 of 3 is NULL");
    assert_null(sequential_create((weft_module *[]){NULL}, 1, NULL));
    assert_null(weft_args_tensor((weft_args){NULL, 3}, 0));
    error = NULL;
    model = sequential_create(NULL, 0, &error);
    assert_non_null(model);
    assert_null(error);
    weft_module_unref(model);
}

static void test_conversions(void **state)
{
    (void)state;
    weft_module *model = linear_create(2, 2, false, 1, NULL);
    REFUSES(weft_module_to(model, WEFT_DTYPE_INT64), WEFT_ERR_INVALID, "weft_module_to: dtype 2 (int64)");
    REFUSES(weft_module_to(NULL, WEFT_DTYPE_FLOAT64), WEFT_ERR_INVALID, "weft_module_to: the module is NULL");
    REFUSES(weft_module_save(model, NULL, NULL), WEFT_ERR_INVALID, "weft_module_save: path is NULL");
    REFUSES(weft_module_load(NULL, "x", NULL), WEFT_ERR_INVALID, "weft_module_load: the module is NULL");
    (void)weft_module_parameters(model);
    REFUSES(weft_module_to(model, WEFT_DTYPE_FLOAT64), WEFT_ERR_STATE, "create the optimizer afterwards");
    weft_module_unref(model);
}

UNIT_MAIN(test_own_types, test_layers, test_a_chain, test_conversions)
