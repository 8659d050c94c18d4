/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_oracle.c - SGD's steps against torch.optim.SGD's: tests/data/sgd_cases.txt, see tests/oracle/sgd_oracle.py. */
#include <weft/weft.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "oracle/formula.h"

#include <math.h>
#include <stdlib.h>

#define STEPS 25
#define PARAMETERS 2

static double next_number(FILE *file)
{
    char word[64];
    assert_int_equal(fscanf(file, "%63s", word), 1);
    return strtod(word, NULL);
}

static void assert_parameters(FILE *file, weft_tensor *const *p, double tolerance, const weft_sgd_options *o, int step)
{
    for (int k = 0; k < PARAMETERS; k++)
        for (int64_t i = 0; i < weft_tensor_numel(p[k]); i++) {
            double wanted = next_number(file), got = weft_tensor_get_f64(p[k], i);
            if (fabs(got - wanted) > tolerance * (1 + fabs(wanted)))
                fail_msg("momentum %g, dampening %g, weight decay %g, nesterov %d, step %d: %.17g, wanted %.17g",
                         o->momentum, o->dampening, o->weight_decay, (int)o->nesterov, step, got, wanted);
        }
}

static void run_case(FILE *file, const weft_sgd_options *o, weft_dtype dtype, double tolerance)
{
    const weft_shape shapes[PARAMETERS] = {WEFT_SHAPE(7), WEFT_SHAPE(2, 3)};
    weft_tensor *p[PARAMETERS], *g[PARAMETERS];
    for (int k = 0; k < PARAMETERS; k++) {
        p[k] = formula_tensor(shapes[k], dtype, 1 + (uint64_t)k);
        g[k] = weft_tensor_empty(shapes[k], dtype);
    }
    weft_optimizer *sgd = weft_sgd_create((weft_tensors){p, PARAMETERS}, o);
    assert_non_null(sgd);
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < PARAMETERS; k++)
            formula_fill(g[k], (uint64_t)(100 + 2 * step + k), 1, 0);
        assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){g, PARAMETERS}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
        if (step == 10)
            assert_int_equal(weft_optimizer_set_lr(sgd, o->lr / 2), WEFT_OK);
        if (step < 2 || step == STEPS - 1)
            assert_parameters(file, p, tolerance, o, step);
    }
    weft_optimizer_unref(sgd);
    for (int k = 0; k < PARAMETERS; k++) {
        weft_tensor_unref(p[k]);
        weft_tensor_unref(g[k]);
    }
}

static void run_all(weft_dtype dtype, double tolerance)
{
    double lr;
    int count = 0;
    FILE *file = fopen(WEFT_TEST_DATA "/sgd_cases.txt", "r");
    assert_non_null(file);
    while (fscanf(file, "%lf", &lr) == 1) {
        weft_sgd_options o = {.lr = lr};
        o.momentum = next_number(file);
        o.dampening = next_number(file);
        o.weight_decay = next_number(file);
        o.nesterov = next_number(file) != 0;
        run_case(file, &o, dtype, tolerance);
        count++;
    }
    fclose(file);
    assert_true(count >= 20);
}

static void sgd_matches_pytorch_in_float64(void **state)
{
    (void)state;
    run_all(WEFT_FLOAT64, 1e-13);
}

static void sgd_matches_pytorch_in_float32(void **state)
{
    (void)state;
    run_all(WEFT_FLOAT32, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_matches_pytorch_in_float64),
        cmocka_unit_test(sgd_matches_pytorch_in_float32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
