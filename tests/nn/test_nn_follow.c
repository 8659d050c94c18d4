/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nn_follow.c - 20 steps of training of each reference model follow PyTorch's losses (tests/data/follow.txt,
 * made by tests/oracle/follow.py) from the same weights and inputs.
 */
#include "oracle/follow.h"
#include "make.h"
#include "tensors.h"

typedef weft_tensor *(*loss_fn)(weft_tape *t, weft_tensor *y, weft_tensor *target);

/* Consumes the module. */
static void follow(const char *name, weft_module *net, weft_dtype dtype, weft_shape images, int64_t classes,
                   loss_fn loss_of, double lr, double tolerance)
{
    double wanted[FOLLOW_STEPS];
    follow_losses(name, wanted);
    assert_non_null(net);
    assert_int_equal(weft_module_to(net, dtype), WEFT_OK);
    follow_fill(net);
    weft_tensors parameters = weft_module_parameters(net);
    weft_optimizer *sgd = optimizer_create(
        parameters, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = lr, .sgd.momentum = 0.9}, NULL);
    weft_tensor *x = formula_tensor(images, dtype, 1),
                *target = tensor_empty(WEFT_SHAPE(images.dims[0]), WEFT_DTYPE_INT64);
    formula_fill_below(target, 2, classes);
    for (int step = 0; step < FOLLOW_STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *loss = loss_of(t, weft_module_forward(t, net, x), target);
        weft_backward(t, loss);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        fingerprint_near(weft_tensor_get_f64(loss, 0), wanted[step], tolerance * fabs(wanted[step]), name);
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
        weft_module *net = mnist_convnet_create(1);
        weft_module_train(net, false); /* no dropout: its numbers are each library's own */
        follow("convnet", net, dtypes[i], WEFT_SHAPE(8, 1, 28, 28), 10, weft_nll_loss, 0.02, i == 0 ? 1e-8 : 1e-4);
    }
}

/* In float64: in float32 single ReLUs and maxima tip over, PyTorch's as well, and lead apart. */
static void resnet50_follows_pytorch(void **state)
{
    follow("resnet50", resnet50_create(30, 1, NULL), WEFT_DTYPE_FLOAT64, WEFT_SHAPE(4, 3, 64, 64), 30,
           weft_cross_entropy, 0.0002, 1e-4);
}

UNIT_MAIN(convnet_follows_pytorch, resnet50_follows_pytorch)
