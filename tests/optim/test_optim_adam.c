/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_adam.c - Adam against its definition over many steps, averaging, defaults, refusals, and a curve that
 * it descends. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>

static const weft_optimizer_spec plain = {.type = &weft_adam_type};

#define COUNT 16
#define STEPS 1000

/* The definition, written plainly. */
static void plain_step(double *p, const double *gradient, double *m, double *v, double *top,
                       const weft_optimizer_spec *spec, int t)
{
    const weft_adam_options *o = &spec->adam;
    for (int i = 0; i < COUNT; i++) {
        double g = gradient[i] + o->weight_decay * p[i];
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * g;
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * g * g;
        top[i] = fmax(top[i], v[i]);
        double mean = m[i] / (1 - pow(o->beta1, t));
        double square = (o->amsgrad != 0 ? top[i] : v[i]) / (1 - pow(o->beta2, t));
        p[i] -= spec->lr * mean / (sqrt(square) + o->eps);
    }
}

static void run_against_definition(const weft_optimizer_spec *given, const weft_optimizer_spec *meant, weft_dtype dtype,
                                   double tolerance)
{
    double p[COUNT], g[COUNT], m[COUNT] = {0}, v[COUNT] = {0}, top[COUNT] = {0};
    weft_tensor *parameter = formula_tensor(WEFT_SHAPE(COUNT), dtype, 1);
    weft_tensor *gradient = tensor_empty(WEFT_SHAPE(COUNT), dtype);
    weft_optimizer_spec typed = *given;
    typed.type = &weft_adam_type;
    weft_optimizer *adam = optimizer_create((weft_tensors){&parameter, 1}, &typed, NULL);
    assert_non_null(adam);
    assert_true(weft_optimizer_lr(adam) == meant->lr);
    for (int i = 0; i < COUNT; i++)
        p[i] = weft_tensor_get_f64(parameter, i);
    for (int t = 1; t <= STEPS; t++) {
        formula_fill(gradient, 100 + (uint64_t)t, 1, 0);
        for (int i = 0; i < COUNT; i++)
            g[i] = weft_tensor_get_f64(gradient, i);
        plain_step(p, g, m, v, top, meant, t);
        assert_int_equal(weft_optimizer_accumulate(adam, (weft_tensors){&gradient, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(adam), WEFT_OK);
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(weft_tensor_get_f64(parameter, i) - p[i]) <= tolerance * (1 + fabs(p[i])));
    weft_optimizer_unref(weft_optimizer_ref(adam));
    assert_true(weft_optimizer_lr(adam) == meant->lr); /* a second reference held it */
    weft_optimizer_unref(adam);
    weft_tensor_unref(gradient);
    weft_tensor_unref(parameter);
}

static void adam_follows_its_definition(void **state)
{
    const weft_optimizer_spec all[] = {
        {.lr = 1e-2, .adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}},
        {.lr = 1e-3, .adam = {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.01}},
        {.lr = 1e-2, .adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .amsgrad = true}}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        run_against_definition(&all[i], &all[i], WEFT_DTYPE_FLOAT64, 1e-12);
        run_against_definition(&all[i], &all[i], WEFT_DTYPE_FLOAT32, 1e-4);
    }
}

static void adam_zero_fields_take_pytorchs_defaults(void **state)
{
    const weft_optimizer_spec defaults = {.lr = 1e-3, .adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}};
    run_against_definition(&(weft_optimizer_spec){0}, &defaults, WEFT_DTYPE_FLOAT64, 1e-12);
}

/* Of two accumulations their mean counts, without `average` their sum: Adam tells them apart by its eps. */
static void adam_average_divides_by_the_accumulations(void **state)
{
    weft_tensor *p[3], *once = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT64, 2),
                       *twice = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT64, 4);
    double after[3];
    for (int k = 0; k < 3; k++) {
        weft_optimizer_spec o = {.type = &weft_adam_type, .lr = 0.5, .average = k == 0, .adam.eps = 1};
        p[k] = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT64);
        weft_optimizer *adam = optimizer_create((weft_tensors){&p[k], 1}, &o, NULL);
        assert_int_equal(weft_optimizer_accumulate(adam, (weft_tensors){&once, 1}), WEFT_OK);
        if (k < 2)
            assert_int_equal(weft_optimizer_accumulate(adam, (weft_tensors){&once, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(adam), WEFT_OK);
        after[k] = weft_tensor_get_f64(p[k], 2);
        weft_optimizer_unref(adam);
        weft_tensor_unref(p[k]);
    }
    assert_true(fabs(after[0] + 0.5 * 2 / (2 + 1)) < 1e-12);
    assert_true(fabs(after[1] + 0.5 * 4 / (4 + 1)) < 1e-12);
    assert_true(fabs(after[2] - after[0]) < 1e-12);
    weft_tensor_unref(once);
    weft_tensor_unref(twice);
}

static void adam_refuses_and_changes_nothing(void **state)
{
    weft_tensor *p[] = {tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32), NULL};
    weft_tensor *integers = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT64), *turned = tensor_transpose(p[0], 0, 1);
    const weft_optimizer_spec wrong[] = {{.lr = -1},
                                         {.lr = NAN},
                                         {.lr = INFINITY},
                                         {.adam.beta1 = 1},
                                         {.adam.beta1 = -0.1},
                                         {.adam.beta2 = 1.5},
                                         {.adam.beta2 = NAN},
                                         {.adam.eps = -1},
                                         {.adam.eps = NAN},
                                         {.adam.eps = INFINITY},
                                         {.adam.weight_decay = -1},
                                         {.adam.weight_decay = NAN},
                                         {.adam.weight_decay = INFINITY},
                                         {.sgd.momentum = 0.5},
                                         {.own = {1}},
                                         {.pin_timeout_ms = -2}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        weft_optimizer_spec typed = wrong[i];
        typed.type = &weft_adam_type;
        assert_null(optimizer_create((weft_tensors){p, 1}, &typed, NULL));
    }
    assert_null(optimizer_create((weft_tensors){NULL, 0}, &plain, NULL));
    assert_null(optimizer_create((weft_tensors){p, 2}, &plain, NULL));
    assert_null(optimizer_create((weft_tensors){&integers, 1}, &plain, NULL));
    assert_null(optimizer_create((weft_tensors){&turned, 1}, &plain, NULL));
    weft_optimizer *adam = optimizer_create((weft_tensors){p, 1}, &plain, NULL);
    assert_int_equal(weft_optimizer_step(adam), WEFT_ERR_STATE);
    assert_int_equal(weft_optimizer_accumulate(adam, (weft_tensors){&turned, 1}), WEFT_ERR_SHAPE);
    assert_int_equal(weft_optimizer_set_lr(adam, -1), WEFT_ERR_INVALID);
    assert_true(weft_optimizer_lr(adam) == 1e-3);
    weft_optimizer_unref(adam);
    weft_tensor_unref(turned);
    weft_tensor_unref(integers);
    weft_tensor_unref(p[0]);
}

static void adam_steps_a_parameter_without_elements(void **state)
{
    weft_tensor *p[] = {tensor_zeros(WEFT_SHAPE(0, 3), WEFT_DTYPE_FLOAT32),
                        tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT64)};
    weft_tensor *g[] = {tensor_zeros(WEFT_SHAPE(0, 3), WEFT_DTYPE_FLOAT32),
                        tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, 3)};
    weft_optimizer *adam =
        optimizer_create((weft_tensors){p, 2}, &(weft_optimizer_spec){.type = &weft_adam_type, .lr = 0.25}, NULL);
    assert_int_equal(weft_optimizer_accumulate(adam, (weft_tensors){g, 2}), WEFT_OK);
    assert_int_equal(weft_optimizer_step(adam), WEFT_OK);
    assert_true(fabs(weft_tensor_get_f64(p[1], 0) + 0.25) <
                1e-8); /* the first step is the rate, whatever the gradient */
    weft_optimizer_unref(adam);
    for (int k = 0; k < 2; k++) {
        weft_tensor_unref(p[k]);
        weft_tensor_unref(g[k]);
    }
}

/* More elements than one piece of a parallel loop has; each must come out as it does alone. */
static void adam_steps_a_large_parameter_as_its_parts(void **state)
{
    const int64_t large = 100003, part = 40000;
    weft_tensor *whole = formula_tensor(WEFT_SHAPE(large), WEFT_DTYPE_FLOAT32, 5), *copy = tensor_clone(whole);
    weft_tensor *piece = tensor_narrow(copy, 0, large - part, part);
    weft_tensor *g = tensor_empty(WEFT_SHAPE(large), WEFT_DTYPE_FLOAT32);
    weft_tensor *piece_of_g = tensor_narrow(g, 0, large - part, part);
    weft_optimizer *of_whole = optimizer_create((weft_tensors){&whole, 1}, &plain, NULL);
    weft_optimizer *of_piece = optimizer_create((weft_tensors){&piece, 1}, &plain, NULL);
    for (uint64_t step = 0; step < 3; step++) {
        formula_fill(g, 10 + step, 1, 0);
        assert_int_equal(weft_optimizer_accumulate(of_whole, (weft_tensors){&g, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_accumulate(of_piece, (weft_tensors){&piece_of_g, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(of_whole), WEFT_OK);
        assert_int_equal(weft_optimizer_step(of_piece), WEFT_OK);
    }
    const float *a = weft_tensor_data(whole), *b = weft_tensor_data(piece);
    assert_memory_equal(a + large - part, b, (size_t)part * sizeof(float));
    weft_optimizer_unref(of_whole);
    weft_optimizer_unref(of_piece);
    weft_tensor *all[] = {whole, copy, piece, g, piece_of_g};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

/* Rosenbrock's valley, from (-1, 1.5) to its lowest point (1, 1). */
static void adam_descends_a_curved_valley(void **state)
{
    weft_tensor *p[] = {tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, -1),
                        tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, 1.5)};
    weft_optimizer *adam =
        optimizer_create((weft_tensors){p, 2}, &(weft_optimizer_spec){.type = &weft_adam_type, .lr = 0.05}, NULL);
    for (int k = 0; k < 2; k++)
        weft_tensor_set_requires_grad(p[k], true);
    for (int step = 0; step < 2000; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *from_one = weft_add_scalar(t, p[0], -1);
        weft_tensor *from_curve = weft_sub(t, p[1], weft_mul(t, p[0], p[0]));
        weft_backward(
            t, weft_add(t, weft_mul(t, from_one, from_one), weft_scale(t, weft_mul(t, from_curve, from_curve), 100)));
        assert_int_equal(weft_optimizer_accumulate(adam, weft_tape_grads(t, (weft_tensors){p, 2})), WEFT_OK);
        weft_tape_close(t);
        assert_int_equal(weft_optimizer_step(adam), WEFT_OK);
    }
    for (int k = 0; k < 2; k++) {
        assert_true(fabs(weft_tensor_get_f64(p[k], 0) - 1) < 1e-2);
        weft_tensor_unref(p[k]);
    }
    weft_optimizer_unref(adam);
}

UNIT_MAIN(adam_follows_its_definition, adam_zero_fields_take_pytorchs_defaults,
          adam_average_divides_by_the_accumulations, adam_refuses_and_changes_nothing,
          adam_steps_a_parameter_without_elements, adam_steps_a_large_parameter_as_its_parts,
          adam_descends_a_curved_valley)
