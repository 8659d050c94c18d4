/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nn_convnet.c - the MNIST network against PyTorch's with the same weights (tests/data/convnet.txt, made by
 * tests/oracle/convnet.py), in eval mode and in train mode without dropout; and what dropout does to it.
 */
#include "nn/fingerprint.h"

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"

#define BATCH 6

static void fill(weft_module *net, weft_dtype dtype)
{
    assert_non_null(net);
    assert_int_equal(weft_module_to(net, dtype), WEFT_OK);
    weft_tensors parameters = weft_module_parameters(net);
    for (size_t i = 0; i < parameters.count; i++) {
        const weft_tensor *p = parameters.items[i];
        int64_t fan_in = weft_tensor_ndim(p) > 1 ? weft_tensor_numel(p) / weft_tensor_size(p, 0) : 25;
        formula_fill(parameters.items[i], 1000 + i, 1 / sqrt((double)fan_in), 0);
    }
}

static void assert_matches(weft_module *net, weft_dtype dtype, double tolerance)
{
    weft_tensor *x = formula_tensor(WEFT_SHAPE(BATCH, 1, 28, 28), dtype, 1);
    weft_tensor *target = tensor_empty(WEFT_SHAPE(BATCH), WEFT_DTYPE_INT64);
    formula_fill_below(target, 2, 10);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = weft_module_forward(t, net, x), *loss = weft_nll_loss(t, y, target);
    weft_backward(t, loss);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    FILE *file = fopen(WEFT_TEST_DATA "/convnet.txt", "r");
    assert_non_null(file);
    fingerprint_values(file, "loss", loss, tolerance);
    fingerprint_values(file, "logits", y, tolerance);
    weft_tensors parameters = weft_module_parameters(net);
    for (size_t i = 0; i < parameters.count; i++)
        fingerprint_gradient(file, weft_tape_grad(t, parameters.items[i]), tolerance, tolerance);
    fclose(file);
    weft_tape_close(t);
    weft_tensor_unref(target);
    weft_tensor_unref(x);
}

static void convnet_matches_pytorch_in_eval_mode(void **state)
{
    const weft_dtype dtypes[2] = {WEFT_DTYPE_FLOAT64, WEFT_DTYPE_FLOAT32};
    for (int i = 0; i < 2; i++) {
        weft_module *net = mnist_convnet_create(1);
        fill(net, dtypes[i]);
        weft_module_train(net, false);
        assert_matches(net, dtypes[i], i == 0 ? 1e-7 : 1e-4);
        weft_module_unref(net);
    }
}

static void convnet_matches_pytorch_in_train_mode_without_dropout(void **state)
{
    weft_module *net = mnist_convnet_create(1);
    fill(net, WEFT_DTYPE_FLOAT64);
    for (size_t i = 0; i < weft_module_child_count(net); i++)
        if (strncmp(weft_module_child_name(net, i), "dropout", 7) == 0)
            weft_module_train(weft_module_child(net, i), false);
    assert_true(weft_module_is_training(net));
    assert_matches(net, WEFT_DTYPE_FLOAT64, 1e-7);
    weft_module_unref(net);
}

static weft_tensor *run(weft_module *net, weft_tensor *x, uint64_t seed)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = seed});
    weft_tensor *y = weft_module_forward(t, net, x);
    assert_non_null(y);
    weft_tensor_ref(y);
    weft_tape_close(t);
    return y;
}

static void convnet_dropout_follows_the_tapes_seed(void **state)
{
    weft_module *net = mnist_convnet_create(1);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(2, 1, 28, 28), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *y[3] = {run(net, x, 4), run(net, x, 4), run(net, x, 5)};
    assert_memory_equal(weft_tensor_data(y[0]), weft_tensor_data(y[1]), weft_tensor_nbytes(y[0]));
    assert_memory_not_equal(weft_tensor_data(y[0]), weft_tensor_data(y[2]), weft_tensor_nbytes(y[0]));
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(y[i]);
    weft_tensor_unref(x);
    weft_module_unref(net);
}

UNIT_MAIN(convnet_matches_pytorch_in_eval_mode, convnet_matches_pytorch_in_train_mode_without_dropout,
          convnet_dropout_follows_the_tapes_seed)
