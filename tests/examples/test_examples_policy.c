/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_examples_policy.c - returns and gradients against PyTorch's (tests/data/policy.txt, see
 * tests/oracle/policy_oracle.py), and what is random about a decision.
 */
#include <weft/weft.h>

#include <policy.h>
#include <random_stream.h>

#include "oracle/formula.h"
#include "tensors.h"
#include "unit.h"

#include <stdlib.h>

#define MOST_ROWS 256
#define PARAMETERS 4

typedef struct episode {
    int64_t steps, observers, hidden, rows;
    double gamma, states[MOST_ROWS * 4], returns[MOST_ROWS];
    int64_t actions[MOST_ROWS];
    bool last[MOST_ROWS];
} episode;

static weft_module *policy_of(int64_t hidden, double dropout, uint64_t seed)
{
    weft_module *made = NULL;
    return policy_create(hidden, dropout, seed, &made) ? NULL : made;
}

static double next_number(FILE *file)
{
    char word[64];
    assert_int_equal(fscanf(file, "%63s", word), 1);
    return strtod(word, NULL);
}

static FILE *read_episode(episode *e)
{
    FILE *file = fopen(WEFT_TEST_DATA "/policy.txt", "r");
    assert_non_null(file);
    e->steps = (int64_t)next_number(file);
    e->observers = (int64_t)next_number(file);
    e->hidden = (int64_t)next_number(file);
    e->gamma = next_number(file);
    e->rows = e->steps * e->observers;
    assert_in_range(e->rows, 100, MOST_ROWS);
    for (int64_t i = 0; i < e->rows; i++) {
        for (int k = 0; k < 4; k++)
            e->states[i * 4 + k] = next_number(file);
        e->actions[i] = (int64_t)next_number(file);
        e->last[i] = next_number(file) != 0;
        e->returns[i] = next_number(file);
    }
    return file;
}

static void close_to(double got, double wanted, double tolerance, const char *what, int64_t index)
{
    if (!(fabs(got - wanted) <= tolerance * (1 + fabs(wanted))))
        fail_msg("%s %d: %.17g, wanted %.17g", what, (int)index, got, wanted);
}

static weft_tensor *floats(weft_tape *t, weft_shape shape, weft_dtype dtype, const double *values)
{
    weft_tensor *wide = weft_tape_take(t, tensor_copy_of(shape, WEFT_DTYPE_FLOAT64, values));
    assert_non_null(wide);
    return weft_tape_take(t, tensor_to(wide, dtype));
}

static weft_tensor *stored_mask(weft_tape *t, const episode *e, weft_dtype dtype)
{
    weft_tensor *number = weft_tape_take(t, tensor_empty(WEFT_SHAPE(e->rows, e->hidden), WEFT_DTYPE_INT64));
    weft_tensor *mask = weft_tape_take(t, tensor_empty(WEFT_SHAPE(e->rows, e->hidden), WEFT_DTYPE_FLOAT64));
    formula_fill_below(number, 5, 10);
    double *m = weft_tensor_data(mask);
    for (int64_t i = 0; i < e->rows * e->hidden; i++)
        m[i] = weft_tensor_get_i64(number, i) >= 6 ? 1 / (1 - 0.6) : 0;
    return weft_tape_take(t, tensor_to(mask, dtype));
}

static void check_gradients(FILE *file, const episode *e, weft_module *policy, bool dropout, double tolerance)
{
    weft_tensors parameters = weft_module_parameters(policy);
    weft_dtype dtype = weft_tensor_dtype(parameters.items[0]);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *states = floats(t, WEFT_SHAPE(e->rows, 4), dtype, e->states);
    weft_tensor *returns = floats(t, WEFT_SHAPE(e->rows), dtype, e->returns);
    weft_tensor *actions = weft_tape_take(t, tensor_copy_of(WEFT_SHAPE(e->rows), WEFT_DTYPE_INT64, e->actions));
    weft_tensor *mask = dropout ? stored_mask(t, e, dtype) : NULL;
    weft_tensor *loss = policy_loss(t, policy, states, mask, actions, returns);
    loss = weft_scale(t, loss, 1.0 / (double)e->observers);
    weft_backward(t, loss);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    close_to(weft_tensor_get_f64(loss, 0), next_number(file), tolerance, "the loss", 0);
    weft_tensors gradients = weft_tape_grads(t, parameters);
    for (int k = 0; k < PARAMETERS; k++)
        for (int64_t i = 0; i < weft_tensor_numel(gradients.items[k]); i++)
            close_to(weft_tensor_get_f64(gradients.items[k], i), next_number(file), tolerance,
                     weft_module_parameter_name(policy, (size_t)k), i);
    weft_tape_close(t);
}

static void check_dtype(weft_dtype dtype, double tolerance)
{
    episode e;
    FILE *file = read_episode(&e);
    weft_module *policy = policy_of(e.hidden, 0.6, 1);
    assert_int_equal(weft_module_to(policy, dtype), WEFT_OK);
    weft_tensors parameters = weft_module_parameters(policy);
    assert_int_equal(parameters.count, PARAMETERS);
    for (uint64_t k = 0; k < PARAMETERS; k++)
        formula_fill(parameters.items[k], k + 1, 0.5, 0);
    check_gradients(file, &e, policy, false, tolerance);
    check_gradients(file, &e, policy, true, tolerance);
    weft_module_unref(policy);
    fclose(file);
}

static void gradients_are_those_of_pytorch(void **state)
{
    check_dtype(WEFT_DTYPE_FLOAT64, 1e-9);
    check_dtype(WEFT_DTYPE_FLOAT32, 1e-5);
}

static void returns_are_what_is_to_come(void **state)
{
    static episode e;
    double rewards[MOST_ROWS];
    fclose(read_episode(&e));
    for (int64_t i = 0; i < e.rows; i++)
        rewards[i] = 1;
    policy_returns(rewards, e.last, (size_t)e.steps, (size_t)e.observers, e.gamma);
    for (int64_t i = 0; i < e.rows; i++)
        close_to(rewards[i], e.returns[i], 1e-14, "the return", i);
    policy_normalise(rewards, (size_t)e.rows);
    double mean = 0, square = 0;
    for (int64_t i = 0; i < e.rows; i++) {
        mean += rewards[i] / (double)e.rows;
        square += rewards[i] * rewards[i] / (double)(e.rows - 1);
    }
    close_to(mean, 0, 1e-12, "the mean", 0);
    close_to(square, 1, 1e-6, "the square", 0);
    double alone = 3;
    policy_returns(&alone, e.last, 1, 1, 1);
    close_to(alone, 3, 0, "the return", 0);
    policy_normalise(&alone, 1);
    close_to(alone, 0, 0, "the return", 0);
}

/* The same decision alone, and in another row among others. */
static void a_decision_follows_from_its_key(void **state)
{
    enum { ROWS = 64, HIDDEN = 33 };
    uint64_t keys[ROWS];
    weft_module *policy = policy_of(HIDDEN, 0.25, 3);
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *even = weft_tape_take(t, tensor_full(WEFT_SHAPE(ROWS, 2), WEFT_DTYPE_FLOAT32, 0.5));
    for (int i = 0; i < ROWS; i++)
        keys[i] = random_key(9, (uint64_t)i);
    weft_tensor *mask = policy_mask(t, policy, keys, ROWS);
    weft_tensor *actions = policy_draw(t, even, keys);
    for (int i = 0; i < ROWS; i++) {
        weft_tensor *one = policy_mask(t, policy, &keys[i], 1);
        for (int k = 0; k < HIDDEN; k++)
            assert_true(weft_tensor_get_f64(one, k) == weft_tensor_get_f64(mask, i * HIDDEN + k));
        weft_tensor *alone = policy_draw(t, weft_narrow(t, even, 0, i, 1), &keys[i]);
        assert_int_equal(weft_tensor_get_i64(alone, 0), weft_tensor_get_i64(actions, i));
    }
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_tape_close(t);
    weft_module_unref(policy);
}

static void units_and_actions_come_as_often_as_they_should(void **state)
{
    enum { ROWS = 4000, HIDDEN = 128 };
    static uint64_t keys[ROWS];
    const float row[] = {0.3f, 0.7f};
    double stay = 0, right = 0;
    weft_module *policy = policy_of(HIDDEN, 0.6, 3);
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *odds = weft_tape_take(t, tensor_empty(WEFT_SHAPE(ROWS, 2), WEFT_DTYPE_FLOAT32));
    for (int i = 0; i < ROWS; i++) {
        keys[i] = random_key(4, (uint64_t)i);
        ((float *)weft_tensor_data(odds))[2 * i] = row[0];
        ((float *)weft_tensor_data(odds))[2 * i + 1] = row[1];
    }
    weft_tensor *mask = policy_mask(t, policy, keys, ROWS);
    for (int64_t i = 0; i < ROWS * HIDDEN; i++) {
        double value = weft_tensor_get_f64(mask, i);
        assert_true(value == 0 || value == 2.5);
        stay += value > 0;
    }
    weft_tensor *actions = policy_draw(t, odds, keys);
    for (int i = 0; i < ROWS; i++)
        right += weft_tensor_get_f64(actions, i);
    close_to(stay / (ROWS * HIDDEN), 0.4, 0.003, "the share that stays", 0); /* six deviations */
    close_to(right / ROWS, 0.7, 0.026, "the share of action 1", 0);
    weft_tape_close(t);
    weft_module_unref(policy);
}

static void names_and_sizes_are_those_of_the_tutorial(void **state)
{
    weft_module *policy = policy_of(128, 0.6, 1), *same = policy_of(128, 0.6, 1), *plain = policy_of(8, 0, 1);
    assert_int_equal(weft_module_numel(policy), 898);
    assert_string_equal(weft_module_parameter_name(policy, 0), "affine1.weight");
    assert_string_equal(weft_module_parameter_name(policy, 3), "affine2.bias");
    for (size_t k = 0; k < PARAMETERS; k++) {
        const weft_tensor *a = weft_module_parameters(policy).items[k], *b = weft_module_parameters(same).items[k];
        for (int64_t i = 0; i < weft_tensor_numel(a); i++)
            assert_true(weft_tensor_get_f64(a, i) == weft_tensor_get_f64(b, i));
    }
    uint64_t key = 1;
    weft_tape *t = weft_tape_open(NULL);
    assert_null(policy_mask(t, plain, &key, 1));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_tape_close(t);
    weft_module_unref(plain);
    weft_module_unref(same);
    weft_module_unref(policy);
}

UNIT_MAIN(gradients_are_those_of_pytorch, returns_are_what_is_to_come, a_decision_follows_from_its_key,
          units_and_actions_come_as_often_as_they_should, names_and_sizes_are_those_of_the_tutorial)
