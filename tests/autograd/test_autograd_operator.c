/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_operator.c - operators of the user's own: recorded, run backward, failing, and their state's end. */
#include <weft/weft.h>

#include "tensors.h"
#include "unit.h"

#include <string.h>

static weft_tape *recording(void)
{
    return weft_tape_open(&(weft_tape_options){.record = true});
}

static weft_tensor *leaf(int64_t count, float value)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32, value);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

static float *data(const weft_tensor *x)
{
    return weft_tensor_data(x);
}

/* ---- (a, b) -> (a + 2 b, a b): two results, two inputs ---- */

typedef struct counts {
    int backward, dropped;
    bool seen[2]; /* which results had a gradient, the last time */
    weft_status fail;
} counts;

static void count_drop(void *state)
{
    ((counts *)state)->dropped++;
}

/* d a = s + p b, d b = 2 s + p a */
static weft_status mix_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    counts *c = state;
    c->backward++;
    assert_true(saved.count == 3 && !saved.items[2]);
    const float *values[2] = {data(saved.items[0]), data(saved.items[1])};
    for (int r = 0; r < 2; r++)
        c->seen[r] = dy.items[r] != NULL;
    for (int i = 0; i < 2 && c->fail == WEFT_OK; i++) {
        if (!wanted[i])
            continue;
        dx[i] = tensor_zeros(weft_tensor_shape(saved.items[i]), WEFT_DTYPE_FLOAT32);
        for (int64_t k = 0; k < weft_tensor_numel(dx[i]); k++) {
            if (dy.items[0])
                data(dx[i])[k] += (float)(i + 1) * data(dy.items[0])[k];
            if (dy.items[1])
                data(dx[i])[k] += values[1 - i][k] * data(dy.items[1])[k];
        }
    }
    return c->fail;
}

static const weft_operator mix_operator = {.name = "mix", .backward = mix_backward, .drop = count_drop};

/* out[0] = a + 2 b, out[1] = a b */
static void mix(weft_tape *t, weft_tensor *a, weft_tensor *b, counts *c, weft_tensor **out)
{
    weft_tensor *inputs[] = {a, b}, *saved[] = {a, b, NULL}, *results[2];
    for (int r = 0; r < 2; r++)
        results[r] = tensor_empty(weft_tensor_shape(a), WEFT_DTYPE_FLOAT32);
    for (int64_t k = 0; k < weft_tensor_numel(a); k++) {
        data(results[0])[k] = data(a)[k] + 2 * data(b)[k];
        data(results[1])[k] = data(a)[k] * data(b)[k];
    }
    weft_tape_record(t, &mix_operator, (weft_tensors){inputs, 2}, (weft_tensors){saved, 3}, c,
                     (weft_tensors){results, 2}, out);
    weft_tensor_unref(results[0]);
    weft_tensor_unref(results[1]);
}

static void operator_with_two_results_gets_both_gradients(void **state)
{
    weft_tape *t = recording();
    weft_tensor *a = leaf(3, 5), *b = leaf(3, 7), *out[2];
    counts c = {0};
    mix(t, a, b, &c, out);
    assert_true(data(out[0])[1] == 19 && data(out[1])[2] == 35);
    weft_backward(t, weft_sum(t, weft_add(t, weft_scale(t, out[0], 10), out[1])));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(c.backward, 1);
    assert_true(c.seen[0] && c.seen[1]);
    assert_true(data(weft_tape_grad(t, a))[0] == 10 + 7 && data(weft_tape_grad(t, b))[2] == 20 + 5);
    assert_int_equal(c.dropped, 1); /* the pass used up the record */
    weft_tape_close(t);
    assert_int_equal(c.dropped, 1);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static void result_without_gradient_is_null_and_unwanted_input_is_said(void **state)
{
    weft_tape *t = recording();
    weft_tensor *a = leaf(2, 3), *b = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 4), *out[2];
    counts c = {0};
    mix(t, a, b, &c, out);
    weft_backward(t, weft_sum(t, out[1]));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(!c.seen[0] && c.seen[1]);
    assert_true(data(weft_tape_grad(t, a))[0] == 4);
    assert_null(weft_tape_grad(t, b));
    weft_tape_close(t);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static void results_that_nobody_used_do_not_run(void **state)
{
    weft_tape *t = recording();
    weft_tensor *a = leaf(2, 3), *b = leaf(2, 4), *out[2];
    counts c = {0};
    mix(t, a, b, &c, out);
    weft_backward(t, weft_sum(t, a));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(c.backward, 0);
    weft_tape_close(t);
    assert_int_equal(c.dropped, 1);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static void state_ends_on_every_path(void **state)
{
    weft_tensor *a = leaf(2, 3), *b = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32), *out[2];
    counts c = {0};
    weft_tape *t = weft_tape_open(NULL); /* does not record: the results themselves, and drop at once */
    mix(t, a, a, &c, out);
    assert_true(out[0] && data(out[0])[0] == 9);
    assert_int_equal(c.dropped, 1);
    weft_tape_close(t);

    t = recording(); /* nothing wants a gradient */
    mix(t, b, b, &c, out);
    assert_int_equal(c.dropped, 2);
    assert_non_null(out[1]);
    weft_tape_fail(t, WEFT_ERR_INVALID, "mine"); /* a failed tape */
    mix(t, a, a, &c, out);
    assert_int_equal(c.dropped, 3);
    assert_true(!out[0] && !out[1]);
    weft_tape_close(t);

    mix(NULL, a, a, &c, out);
    assert_int_equal(c.dropped, 4);
    assert_null(out[0]);

    t = recording(); /* no result */
    weft_tape_record(t, &mix_operator, (weft_tensors){&a, 1}, (weft_tensors){0}, &c, (weft_tensors){0}, out);
    assert_int_equal(c.dropped, 5);
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);

    t = recording(); /* recorded, but never run */
    mix(t, a, a, &c, out);
    assert_int_equal(c.dropped, 5);
    weft_tape_close(t);
    assert_int_equal(c.dropped, 6);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static void failing_function_fails_the_pass_with_its_name(void **state)
{
    weft_tape *t = recording();
    weft_tensor *a = leaf(2, 3), *out[2];
    counts c = {.fail = WEFT_ERR_UNSUPPORTED};
    mix(t, a, a, &c, out);
    weft_backward(t, weft_sum(t, out[0]));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "mix"));
    assert_null(weft_tape_grad(t, a));
    weft_tape_close(t);
    assert_int_equal(c.dropped, 1);
    weft_tensor_unref(a);
}

static weft_status wrong_shape(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)state, (void)saved, (void)dy, (void)wanted;
    dx[0] = tensor_zeros(WEFT_SHAPE(1, 1), WEFT_DTYPE_FLOAT32);
    return WEFT_OK;
}

static void gradient_of_another_shape_is_refused(void **state)
{
    static const weft_operator op = {.name = "crooked", .backward = wrong_shape};
    weft_tape *t = recording();
    weft_tensor *a = leaf(2, 3), *y = tensor_clone(a), *out;
    weft_tape_record(t, &op, (weft_tensors){&a, 1}, (weft_tensors){0}, NULL, (weft_tensors){&y, 1}, &out);
    weft_backward(t, weft_sum(t, out));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_SHAPE);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)),
                           "the gradient of input 0 is float32 [1, 1], the input is float32 [2]"));
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "crooked"));
    weft_tape_close(t);
    weft_tensor_unref(y);
    weft_tensor_unref(a);
}

static void saved_tensor_changed_in_place_is_noticed(void **state)
{
    weft_tape *t = recording();
    weft_tensor *a = leaf(2, 3), *b = leaf(2, 1), *out[2];
    counts c = {0};
    mix(t, a, b, &c, out);
    weft_tensor_fill(b, 2);
    weft_backward(t, weft_sum(t, out[1]));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_STATE);
    assert_int_equal(c.backward, 0);
    weft_tape_close(t);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

/* x0 + x1 + ...: far more inputs than any operator of weft's, every third of them missing. */
#define MANY 100

static weft_status sum_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)state, (void)saved;
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(wanted[i], i % 3 != 0);
        if (wanted[i])
            dx[i] = weft_tensor_ref(dy.items[0]);
    }
    return WEFT_OK;
}

static void operator_with_a_hundred_inputs(void **state)
{
    static const weft_operator op = {.name = "sum of many", .backward = sum_backward};
    weft_tape *t = recording();
    weft_tensor *inputs[MANY] = {NULL}, *y = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32), *out;
    for (int i = 0; i < MANY; i++)
        inputs[i] = i % 3 == 0 ? NULL : leaf(2, (float)i);
    weft_tape_record(t, &op, (weft_tensors){inputs, MANY}, (weft_tensors){0}, NULL, (weft_tensors){&y, 1}, &out);
    weft_backward(t, weft_sum(t, weft_scale(t, out, 5)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    for (int i = 0; i < MANY; i++) {
        if (inputs[i])
            assert_true(data(weft_tape_grad(t, inputs[i]))[1] == 5);
        for (int j = 1; j < i && inputs[i]; j++) /* each its own */
            assert_true(!inputs[j] || weft_tape_grad(t, inputs[i]) != weft_tape_grad(t, inputs[j]));
    }
    weft_tape_close(t);
    for (int i = 0; i < MANY; i++)
        weft_tensor_unref(inputs[i]);
    weft_tensor_unref(y);
}

static void misuse_is_said(void **state)
{
    weft_tensor *a = leaf(2, 3), *integers = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT64), *none = NULL, *out = a;
    counts c = {0};
    weft_tape *t = recording();
    weft_tape_record(t, NULL, (weft_tensors){&a, 1}, (weft_tensors){0}, NULL, (weft_tensors){&a, 1}, &out);
    assert_null(out);
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);

    t = recording();
    weft_tape_record(t, &mix_operator, (weft_tensors){&a, 1}, (weft_tensors){0}, &c, (weft_tensors){&none, 1}, &out);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "result 0 is NULL"));
    weft_tape_close(t);

    t = recording();
    weft_tape_record(t, &mix_operator, (weft_tensors){&a, 1}, (weft_tensors){0}, &c, (weft_tensors){&integers, 1},
                     &out);
    assert_int_equal(weft_tape_status(t), WEFT_ERR_TYPE);
    assert_null(out);
    weft_tape_close(t);
    assert_int_equal(c.dropped, 2);
    weft_tensor_unref(a);
    weft_tensor_unref(integers);
}

UNIT_MAIN(operator_with_two_results_gets_both_gradients, result_without_gradient_is_null_and_unwanted_input_is_said,
          results_that_nobody_used_do_not_run, state_ends_on_every_path, failing_function_fails_the_pass_with_its_name,
          gradient_of_another_shape_is_refused, saved_tensor_changed_in_place_is_noticed,
          operator_with_a_hundred_inputs, misuse_is_said)
