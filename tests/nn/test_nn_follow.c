/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nn_follow.c - 20 steps of training of each reference model follow PyTorch's losses (tests/data/follow.txt, made by
 * tests/oracle/follow.py) from the same weights and inputs.
 */
#include "nn/fingerprint.h"

#include "oracle/formula.h"

#define STEPS 20

/* As factor_of in follow.py. */
static double factor_of(const weft_tensor *p, const char *name, double *offset)
{
    size_t length = strlen(name);
    *offset = 0;
    if (weft_tensor_ndim(p) == 4)
        return sqrt(6.0 / (double)(weft_tensor_size(p, 0) * weft_tensor_size(p, 2) * weft_tensor_size(p, 3)));
    if (weft_tensor_ndim(p) == 2)
        return 1 / sqrt((double)weft_tensor_size(p, 1));
    if (length >= 4 && strcmp(name + length - 4, "bias") == 0)
        return 0.1;
    bool ends_branch = length >= 10 && strcmp(name + length - 10, "bn3.weight") == 0;
    *offset = ends_branch ? 0.2 : 1;
    return ends_branch ? 0.05 : 0.25;
}

static void fill(weft_module *net)
{
    weft_tensors parameters = weft_module_parameters(net);
    for (size_t i = 0; i < parameters.count; i++) {
        double offset, factor = factor_of(parameters.items[i], weft_module_parameter_name(net, i), &offset);
        formula_fill(parameters.items[i], 1000 + i, factor, offset);
    }
}

typedef weft_tensor *(*loss_fn)(weft_tape *t, weft_tensor *y, weft_tensor *target);

/* Consumes the module. */
static void follow(const char *name, weft_module *net, weft_dtype dtype, weft_shape images, int64_t classes,
                   loss_fn loss_of, double lr, double tolerance)
{
    char line[4096], *words[STEPS + 2];
    FILE *file = fopen(WEFT_TEST_DATA "/follow.txt", "r");
    assert_non_null(file);
    assert_int_equal(fingerprint_line(file, name, line, sizeof(line), words, STEPS + 2), STEPS + 1);
    fclose(file);
    assert_non_null(net);
    assert_int_equal(weft_module_to(net, dtype), WEFT_OK);
    fill(net);
    weft_tensors parameters = weft_module_parameters(net);
    weft_optimizer *sgd = weft_sgd_create(parameters, &(weft_optimizer_spec){.lr = lr, .sgd.momentum = 0.9}, NULL);
    weft_tensor *x = formula_tensor(images, dtype, 1),
                *target = weft_tensor_empty(WEFT_SHAPE(images.dims[0]), WEFT_DTYPE_INT64);
    formula_fill_below(target, 2, classes);
    for (int step = 0; step < STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *loss = loss_of(t, weft_module_forward(t, net, x), target);
        weft_backward(t, loss);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        double wanted = atof(words[1 + step]);
        fingerprint_near(weft_tensor_get_f64(loss, 0), wanted, tolerance * fabs(wanted), name);
        assert_int_equal(weft_optimizer_apply(sgd, weft_tape_gradients(t, parameters)), WEFT_OK);
        weft_tape_close(t);
    }
    weft_optimizer_unref(sgd);
    weft_tensor_unref(x);
    weft_tensor_unref(target);
    weft_module_unref(net);
}

static void convnet_follows_pytorch(void **state)
{
    const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT64, WEFT_DTYPE_FLOAT32};
    for (int i = 0; i < 2; i++) {
        weft_module *net = weft_mnist_convnet_create(1);
        weft_module_train(net, false); /* no dropout: its numbers are each library's own */
        follow("convnet", net, dtypes[i], WEFT_SHAPE(8, 1, 28, 28), 10, weft_nll_loss, 0.02, i == 0 ? 1e-8 : 1e-4);
    }
}

/* In float64: in float32 single ReLUs and maxima tip over, PyTorch's as well, and lead apart. */
static void resnet50_follows_pytorch(void **state)
{
    follow("resnet50", weft_resnet50_create(30, 1, NULL), WEFT_DTYPE_FLOAT64, WEFT_SHAPE(4, 3, 64, 64), 30,
           weft_cross_entropy, 0.0002, 1e-4);
}

UNIT_MAIN(convnet_follows_pytorch, resnet50_follows_pytorch)
