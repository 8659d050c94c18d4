/* SPDX-License-Identifier: Apache-2.0 */
/* test_nn_train.c - a model learns: forward, backward, step, together. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

static void weft_train_convnet_loss_falls(void **state)
{
    weft_module *net = mnist_convnet_create(1);
    assert_non_null(net);
    assert_int_equal(weft_module_numel(net), 1199882);
    weft_optimizer *sgd =
        optimizer_create(weft_module_parameters(net), &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.03}, NULL);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(8, 1, 28, 28), WEFT_DTYPE_FLOAT32, 5);
    weft_tensor *target = tensor_empty(WEFT_SHAPE(8), WEFT_DTYPE_INT64);
    formula_fill_below(target, 6, 10);
    double first = 0, last = 0;
    for (int step = 0; step < 12; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = (uint64_t)step});
        weft_tensor *loss = weft_nll_loss(t, weft_module_forward(t, net, x), target);
        weft_backward(t, loss);
        if (weft_tape_status(t) != WEFT_OK)
            weft_error_print(weft_tape_error(t), stderr);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        last = weft_tensor_get_f64(loss, 0);
        first = step == 0 ? last : first;
        assert_int_equal(weft_optimizer_accumulate(sgd, weft_tape_grads(t, weft_module_parameters(net))), WEFT_OK);
        assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
        weft_tape_close(t);
    }
    assert_true(last < 0.8 * first);
    weft_tensor_unref(target);
    weft_tensor_unref(x);
    weft_optimizer_unref(sgd);
    weft_module_unref(net);
}

UNIT_MAIN(weft_train_convnet_loss_falls)
