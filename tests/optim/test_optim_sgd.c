/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_sgd.c - SGD against its definition in float64, averaging, refusals, and N trainers as one. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#define COUNT 16

/* The definition, written plainly. */
static void plain_step(double *p, const double *gradient, double *v, const weft_optimizer_spec *spec, bool first)
{
    const weft_sgd_options *o = &spec->sgd;
    for (int i = 0; i < COUNT; i++) {
        double g = gradient[i] + o->weight_decay * p[i];
        if (o->momentum > 0) {
            v[i] = first ? g : o->momentum * v[i] + (1 - o->dampening) * g;
            g = o->nesterov != 0 ? g + o->momentum * v[i] : v[i];
        }
        p[i] -= spec->lr * g;
    }
}

static void run_against_definition(const weft_optimizer_spec *o, weft_dtype dtype, double tolerance)
{
    double p[COUNT], g[COUNT], v[COUNT] = {0};
    weft_tensor *parameter = formula_tensor(WEFT_SHAPE(COUNT), dtype, 1);
    weft_tensor *gradient = tensor_empty(WEFT_SHAPE(COUNT), dtype);
    weft_optimizer_spec typed = *o;
    typed.type = &weft_sgd_type;
    weft_optimizer *sgd = optimizer_create((weft_tensors){&parameter, 1}, &typed, NULL);
    assert_non_null(sgd);
    for (int i = 0; i < COUNT; i++)
        p[i] = weft_tensor_get_f64(parameter, i);
    for (uint64_t step = 0; step < 50; step++) {
        formula_fill(gradient, 100 + step, 1, 0);
        for (int i = 0; i < COUNT; i++)
            g[i] = weft_tensor_get_f64(gradient, i);
        plain_step(p, g, v, o, step == 0);
        assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){&gradient, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(weft_tensor_get_f64(parameter, i) - p[i]) <= tolerance * (1 + fabs(p[i])));
    weft_optimizer_unref(sgd);
    weft_tensor_unref(gradient);
    weft_tensor_unref(parameter);
}

static void sgd_follows_its_definition(void **state)
{
    const weft_optimizer_spec all[] = {{.lr = 0.05},
                                       {.lr = 0.05, .sgd.weight_decay = 0.01},
                                       {.lr = 0.05, .sgd.momentum = 0.9},
                                       {.lr = 0.05, .sgd = {.momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01}},
                                       {.lr = 0.05, .sgd = {.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        run_against_definition(&all[i], WEFT_DTYPE_FLOAT64, 1e-13);
        run_against_definition(&all[i], WEFT_DTYPE_FLOAT32, 2e-6);
    }
}

static void sgd_refuses_and_changes_nothing(void **state)
{
    weft_tensor *p[] = {tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32),
                        tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32)};
    weft_tensor *wrong = tensor_zeros(WEFT_SHAPE(5), WEFT_DTYPE_FLOAT32),
                *doubles = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT64);
    weft_optimizer *sgd =
        optimizer_create((weft_tensors){p, 2}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL);
    weft_tensor *bad_shape[] = {p[0], wrong}, *bad_dtype[] = {p[0], doubles};
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){p, 1}), WEFT_ERR_SHAPE);
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){bad_shape, 2}), WEFT_ERR_SHAPE);
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){bad_dtype, 2}), WEFT_ERR_TYPE);
    assert_int_equal(weft_optimizer_accumulated(sgd), 0);
    assert_int_equal(weft_optimizer_step(sgd), WEFT_ERR_STATE);
    weft_error *error = NULL;
    assert_int_equal(weft_optimizer_check(sgd, (weft_tensors){bad_shape, 2}, &error), WEFT_ERR_SHAPE);
    assert_string_equal(weft_error_message(error), "gradient 1 is [5], its parameter [4]");
    weft_error_unref(error);
    weft_optimizer_unref(sgd);
    assert_null(optimizer_create((weft_tensors){p, 2},
                                 &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .sgd.nesterov = true}, NULL));
    assert_null(
        optimizer_create((weft_tensors){NULL, 0}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL));
    weft_tensor_unref(p[0]);
    weft_tensor_unref(p[1]);
    weft_tensor_unref(wrong);
    weft_tensor_unref(doubles);
}

/* What zeroing forgets, and that gradients are read by their strides: two parameters, whose steps can be counted. */
static void sgd_steps_by_what_was_accumulated_since_zero(void **state)
{
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32);
    weft_tensor *g = tensor_empty(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32);
    for (int i = 0; i < 6; i++)
        ((float *)weft_tensor_data(g))[i] = (float)i;
    weft_tensor *turned = weft_transpose(t, g, 0, 1);
    weft_optimizer *sgd =
        optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL);
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){&turned, 1}), WEFT_OK);
    weft_optimizer_zero(sgd);
    assert_int_equal(weft_optimizer_accumulated(sgd), 0);
    assert_int_equal(weft_optimizer_step(sgd), WEFT_ERR_STATE);
    for (int i = 0; i < 2; i++)
        assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){&turned, 1}), WEFT_OK);
    assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
    for (int64_t i = 0; i < 6; i++) /* [r, c] of the turned one is [c, r] of the other; twice */
        assert_true(weft_tensor_get_f64(p, i) == -2 * (double)(i % 3 * 2 + i / 3));
    weft_optimizer_unref(sgd);
    weft_tape_close(t);
    weft_tensor_unref(p);
    weft_tensor_unref(g);
}

#define BATCH 4
#define TRAINERS 3

static void accumulate_rows(weft_module *net, weft_optimizer *sgd, weft_tensor *x, weft_tensor *target, int64_t from,
                            int64_t rows)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = weft_module_forward(t, net, weft_narrow(t, x, 0, from, rows));
    weft_backward(t, weft_cross_entropy(t, y, weft_narrow(t, target, 0, from, rows)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(weft_optimizer_accumulate(sgd, weft_tape_grads(t, weft_module_parameters(net))), WEFT_OK);
    weft_tape_close(t);
}

static weft_module *small_net(weft_dtype dtype)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 2, .out_channels = 4, .kernel = {3, 3}, .seed = 1}, NULL),
        relu_create(), flatten_create(1), linear_create(64, 5, false, 2, NULL)};
    weft_module *net = sequential_create(parts, 4, NULL);
    assert_int_equal(weft_module_to(net, dtype), WEFT_OK);
    return net;
}

static void run_trainers_as_one(weft_dtype dtype, double tolerance)
{
    weft_module *many = small_net(dtype), *one = small_net(dtype);
    const weft_optimizer_spec options = {.type = &weft_sgd_type, .lr = 0.1, .average = true, .sgd.momentum = 0.9};
    weft_optimizer *of_many = optimizer_create(weft_module_parameters(many), &options, NULL);
    weft_optimizer *of_one = optimizer_create(weft_module_parameters(one), &options, NULL);
    weft_tensor *x = tensor_empty(WEFT_SHAPE(BATCH * TRAINERS, 2, 6, 6), dtype);
    weft_tensor *target = tensor_empty(WEFT_SHAPE(BATCH * TRAINERS), WEFT_DTYPE_INT64);
    for (uint64_t step = 0; step < 5; step++) {
        formula_fill(x, 10 + step, 1, 0);
        formula_fill_below(target, 20 + step, 5);
        for (int i = 0; i < TRAINERS; i++)
            accumulate_rows(many, of_many, x, target, i * BATCH, BATCH);
        accumulate_rows(one, of_one, x, target, 0, BATCH * TRAINERS);
        assert_int_equal(weft_optimizer_step(of_many), WEFT_OK);
        assert_int_equal(weft_optimizer_step(of_one), WEFT_OK);
    }
    for (size_t k = 0; k < weft_module_parameters(one).count; k++) {
        const weft_tensor *a = weft_module_parameters(many).items[k], *b = weft_module_parameters(one).items[k];
        for (int64_t i = 0; i < weft_tensor_numel(a); i++)
            assert_true(fabs(weft_tensor_get_f64(a, i) - weft_tensor_get_f64(b, i)) <= tolerance);
    }
    weft_tensor_unref(target);
    weft_tensor_unref(x);
    weft_optimizer_unref(of_one);
    weft_optimizer_unref(of_many);
    weft_module_unref(one);
    weft_module_unref(many);
}

static void sgd_trainers_equal_the_joined_batch(void **state)
{
    run_trainers_as_one(WEFT_DTYPE_FLOAT64, 1e-14);
    run_trainers_as_one(WEFT_DTYPE_FLOAT32, 1e-6);
}

UNIT_MAIN(sgd_follows_its_definition, sgd_refuses_and_changes_nothing, sgd_steps_by_what_was_accumulated_since_zero,
          sgd_trainers_equal_the_joined_batch)
