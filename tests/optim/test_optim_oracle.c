/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim_oracle.c - steps against those of torch.optim.SGD and Adam: tests/data/sgd_cases.txt and
 * adam_cases.txt, see tests/oracle/sgd_oracle.py and adam_oracle.py.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

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

static void assert_parameters(FILE *file, weft_tensor *const *p, double tolerance, const char *what, int step)
{
    for (int k = 0; k < PARAMETERS; k++)
        for (int64_t i = 0; i < weft_tensor_numel(p[k]); i++) {
            double wanted = next_number(file), got = weft_tensor_get_f64(p[k], i);
            if (fabs(got - wanted) > tolerance * (1 + fabs(wanted)))
                fail_msg("%s, step %d: %.17g, wanted %.17g", what, step, got, wanted);
        }
}

/* Of one optimizer's cases: the next one's, with a line that says which it is; NULL at the end of the file. */
typedef weft_optimizer *(*next_fn)(FILE *file, weft_tensors parameters, char *what, size_t size);

static weft_optimizer *next_sgd(FILE *file, weft_tensors parameters, char *what, size_t size)
{
    weft_optimizer_spec o = {.type = &weft_sgd_type};
    if (fscanf(file, "%lf", &o.lr) != 1)
        return NULL;
    o.sgd.momentum = next_number(file);
    o.sgd.dampening = next_number(file);
    o.sgd.weight_decay = next_number(file);
    o.sgd.nesterov = next_number(file) != 0;
    snprintf(what, size, "momentum %g, dampening %g, weight decay %g, nesterov %d", o.sgd.momentum, o.sgd.dampening,
             o.sgd.weight_decay, (int)o.sgd.nesterov);
    return optimizer_create(parameters, &o, NULL);
}

static weft_optimizer *next_adam(FILE *file, weft_tensors parameters, char *what, size_t size)
{
    weft_optimizer_spec o = {.type = &weft_adam_type};
    if (fscanf(file, "%lf", &o.lr) != 1)
        return NULL;
    o.adam.beta1 = next_number(file);
    o.adam.beta2 = next_number(file);
    o.adam.eps = next_number(file);
    o.adam.weight_decay = next_number(file);
    o.adam.amsgrad = next_number(file) != 0;
    snprintf(what, size, "rate %g, betas %g %g, eps %g, weight decay %g, amsgrad %d", o.lr, o.adam.beta1, o.adam.beta2,
             o.adam.eps, o.adam.weight_decay, (int)o.adam.amsgrad);
    return optimizer_create(parameters, &o, NULL);
}

/* `late`: what the gradients are multiplied by after step 4 */
static bool run_case(FILE *file, next_fn next, double late, weft_dtype dtype, double tolerance)
{
    const weft_shape shapes[PARAMETERS] = {WEFT_SHAPE(7), WEFT_SHAPE(2, 3)};
    weft_tensor *p[PARAMETERS], *g[PARAMETERS];
    char what[160];
    for (int k = 0; k < PARAMETERS; k++) {
        p[k] = formula_tensor(shapes[k], dtype, 1 + (uint64_t)k);
        g[k] = tensor_empty(shapes[k], dtype);
    }
    weft_optimizer *optimizer = next(file, (weft_tensors){p, PARAMETERS}, what, sizeof(what));
    double lr = weft_optimizer_lr(optimizer);
    for (int step = 0; step < STEPS && optimizer; step++) {
        for (int k = 0; k < PARAMETERS; k++)
            formula_fill(g[k], (uint64_t)(100 + 2 * step + k), step > 4 ? late : 1, 0);
        assert_int_equal(weft_optimizer_accumulate(optimizer, (weft_tensors){g, PARAMETERS}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(optimizer), WEFT_OK);
        if (step == 10)
            assert_int_equal(weft_optimizer_set_lr(optimizer, lr / 2), WEFT_OK);
        if (step < 2 || step == STEPS - 1)
            assert_parameters(file, p, tolerance, what, step);
    }
    for (int k = 0; k < PARAMETERS; k++) {
        weft_tensor_unref(p[k]);
        weft_tensor_unref(g[k]);
    }
    weft_optimizer_unref(optimizer);
    return optimizer != NULL;
}

static void run_all(const char *path, next_fn next, double late, weft_dtype dtype, double tolerance)
{
    int count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (run_case(file, next, late, dtype, tolerance))
        count++;
    assert_true(feof(file));
    fclose(file);
    assert_true(count >= 20);
}

static void sgd_matches_pytorch_in_float64(void **state)
{
    run_all(WEFT_TEST_DATA "/sgd_cases.txt", next_sgd, 1, WEFT_DTYPE_FLOAT64, 1e-13);
}

static void sgd_matches_pytorch_in_float32(void **state)
{
    run_all(WEFT_TEST_DATA "/sgd_cases.txt", next_sgd, 1, WEFT_DTYPE_FLOAT32, 1e-6);
}

static void adam_matches_pytorch_in_float64(void **state)
{
    run_all(WEFT_TEST_DATA "/adam_cases.txt", next_adam, 0.1, WEFT_DTYPE_FLOAT64, 1e-13);
}

static void adam_matches_pytorch_in_float32(void **state)
{
    run_all(WEFT_TEST_DATA "/adam_cases.txt", next_adam, 0.1, WEFT_DTYPE_FLOAT32, 4e-6);
}

UNIT_MAIN(sgd_matches_pytorch_in_float64, sgd_matches_pytorch_in_float32, adam_matches_pytorch_in_float64,
          adam_matches_pytorch_in_float32)
