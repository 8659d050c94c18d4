/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_hooks.c - functions of the user's in a backward pass: on shares, on sums, on the gradient of any
 * tensor. */
#include <weft/weft.h>

#include "make.h"
#include "tensors.h"
#include "unit.h"
#include "said.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static weft_tape *recording(void)
{
    return weft_tape_open(&(weft_tape_options){.record = true});
}

static weft_tensor *leaf(float value)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, value);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

static float first(const weft_tensor *x)
{
    return (float)weft_tensor_get_f64(x, 0);
}

/* 3 x + 4 x: two shares of x's gradient, 3 and 4. */
static weft_tensor *two_shares(weft_tape *t, weft_tensor *x)
{
    return weft_sum(t, weft_add(t, weft_scale(t, x, 3), weft_scale(t, x, 4)));
}

typedef struct seen {
    float shares[4], sum;
    int count, posts, dropped;
    weft_tensor *leaf;
    weft_status fail;
} seen;

static weft_tensor *double_it(weft_tensor *gradient, void *arg)
{
    seen *s = arg;
    s->shares[s->count++] = first(gradient);
    weft_tensor *twice = tensor_clone(gradient);
    weft_tensor_fill(twice, 2 * first(gradient));
    return twice;
}

static weft_status add_a_hundred(weft_tensor *of, weft_tensor *sum, weft_future **wait, void *arg)
{
    seen *s = arg;
    assert_null(*wait);
    s->leaf = of;
    s->posts++;
    s->sum = first(sum);
    weft_tensor_fill(sum, s->sum + 100);
    return s->fail;
}

static void count_drop(void *arg)
{
    ((seen *)arg)->dropped++;
}

static void shares_and_sum_pass_the_hooks(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(1), *other = leaf(1);
    seen s = {0};
    weft_hooks *hooks = hooks_create();
    assert_int_equal(
        weft_hooks_add(hooks, x,
                       &(weft_leaf_hook){.pre = double_it, .post = add_a_hundred, .arg = &s, .drop = count_drop}),
        WEFT_OK);
    weft_tape_set_hooks(t, hooks);
    weft_hooks_unref(hooks);
    weft_backward(t, weft_add(t, two_shares(t, x), weft_sum(t, other)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(s.count, 2);
    assert_true(s.shares[0] + s.shares[1] == 7 && s.sum == 14);
    assert_true(s.posts == 1 && s.leaf == x);
    assert_true(first(weft_tape_grad(t, x)) == 114 && first(weft_tape_grad(t, other)) == 1);
    assert_int_equal(s.dropped, 0);
    weft_tape_close(t);
    assert_int_equal(s.dropped, 1);
    weft_tensor_unref(x);
    weft_tensor_unref(other);
}

static void several_hooks_run_in_order(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(1);
    seen a = {0}, b = {0};
    weft_hooks *hooks = hooks_create();
    assert_int_equal(
        weft_hooks_add(hooks, x, &(weft_leaf_hook){.pre = double_it, .post = add_a_hundred, .arg = &a, .drop = NULL}),
        WEFT_OK);
    assert_int_equal(
        weft_hooks_add(hooks, x, &(weft_leaf_hook){.pre = double_it, .post = add_a_hundred, .arg = &b, .drop = NULL}),
        WEFT_OK);
    weft_tape_set_hooks(t, hooks);
    weft_backward(t, weft_sum(t, x));
    assert_true(a.shares[0] == 1 && b.shares[0] == 2 && a.sum == 4 && b.sum == 104);
    assert_true(first(weft_tape_grad(t, x)) == 204);
    weft_tape_set_hooks(t, NULL); /* and without them */
    weft_backward(t, weft_sum(t, x));
    assert_true(first(weft_tape_grad(t, x)) == 205);
    weft_tape_close(t);
    weft_hooks_unref(hooks);
    weft_tensor_unref(x);
}

static void post_is_not_called_without_a_gradient(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(1), *y = leaf(1);
    seen s = {0};
    weft_hooks *hooks = hooks_create();
    assert_int_equal(weft_hooks_add(hooks, x, &(weft_leaf_hook){.post = add_a_hundred, .arg = &s}), WEFT_OK);
    weft_tape_set_hooks(t, hooks);
    weft_backward(t, weft_sum(t, weft_add(t, weft_detach(t, x), y)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(s.posts, 0);
    weft_tape_close(t);
    weft_hooks_unref(hooks);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

/* *arg is the shape's length; NULL: it has none to give. */
static weft_tensor *sevens(weft_tensor *of, void *arg)
{
    const int64_t *length = arg;
    (void)of;
    return *length ? tensor_full(WEFT_SHAPE(*length), WEFT_DTYPE_FLOAT32, 7) : NULL;
}

static void leaf_without_a_gradient_may_be_given_one(void **state)
{
    weft_tensor *x = leaf(1), *y = leaf(1);
    int64_t length = 2;
    weft_hooks *hooks = hooks_create();
    assert_int_equal(weft_hooks_add(hooks, x, &(weft_leaf_hook){.absent = sevens, .arg = &length}), WEFT_OK);
    assert_int_equal(weft_hooks_add(hooks, y, &(weft_leaf_hook){.absent = sevens, .arg = &length}), WEFT_OK);
    weft_tape *t = recording();
    weft_tape_set_hooks(t, hooks);
    weft_backward(t, weft_sum(t, weft_scale(t, y, 3)));
    assert_true(first(weft_tape_grad(t, x)) == 7 && first(weft_tape_grad(t, y)) == 3);
    weft_backward(t, weft_sum(t, weft_scale(t, x, 2))); /* now it is the other's turn */
    assert_true(first(weft_tape_grad(t, x)) == 9 && first(weft_tape_grad(t, y)) == 10);
    length = 0;
    weft_backward(t, weft_sum(t, y));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(first(weft_tape_grad(t, x)) == 9 && first(weft_tape_grad(t, y)) == 11);
    length = 3; /* not x's shape */
    weft_backward(t, weft_sum(t, y));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);
    weft_hooks_unref(hooks);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

/* ---- A sum that changes after the hook has returned ---- */

typedef struct later {
    weft_tensor *sum;
    weft_future *done, *given;
    bool fail;
} later;

static void *change_later(void *arg)
{
    later *l = arg;
    usleep(20000); /* so that a pass that does not wait ends before */
    weft_tensor_fill(l->sum, 42);
    weft_future *done = l->done; /* once it is complete, `l` is gone */
    weft_status status = WEFT_OK;
    if (l->fail) {
        weft_error *error = weft_error_create(WEFT_ERR_IO, "the ring broke");
        status = weft_future_fail(done, error);
        weft_error_unref(error);
    } else {
        status = weft_future_complete(done, NULL, NULL);
    }
    weft_future_unref(done);
    return (void *)(uintptr_t)status;
}

static weft_status begin_change(weft_tensor *of, weft_tensor *sum, weft_future **wait, void *arg)
{
    (void)of;
    later *l = arg;
    l->sum = sum;
    l->done = weft_future_create(NULL);
    *wait = weft_future_ref(l->done);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, change_later, l), 0);
    pthread_detach(thread);
    return WEFT_OK;
}

static void pass_waits_for_what_a_hook_began(void **state)
{
    for (int fail = 0; fail < 2; fail++) {
        weft_tape *t = recording();
        weft_tensor *x = leaf(1);
        later l = {.fail = fail};
        weft_hooks *hooks = hooks_create();
        assert_int_equal(weft_hooks_add(hooks, x, &(weft_leaf_hook){.post = begin_change, .arg = &l}), WEFT_OK);
        weft_tape_set_hooks(t, hooks);
        weft_backward(t, weft_sum(t, x));
        assert_int_equal(weft_tape_status(t), fail ? WEFT_ERR_IO : WEFT_OK);
        if (fail)
            assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "the ring broke"));
        else
            assert_true(first(weft_tape_grad(t, x)) == 42);
        weft_tape_close(t);
        weft_hooks_unref(hooks);
        weft_tensor_unref(x);
    }
}

/* ---- Failures ---- */

static weft_tensor *give_null(weft_tensor *gradient, void *arg)
{
    (void)gradient, (void)arg;
    return NULL;
}

static weft_tensor *give_another_dtype(weft_tensor *gradient, void *arg)
{
    (void)arg;
    return tensor_to(gradient, WEFT_DTYPE_FLOAT64);
}

static void hook_that_gives_no_gradient_fails_the_pass(void **state)
{
    const weft_gradient_fn bad[] = {give_null, give_another_dtype};
    for (int i = 0; i < 4; i++) {
        weft_tape *t = recording();
        weft_tensor *x = leaf(1);
        weft_hooks *hooks = hooks_create();
        assert_int_equal(weft_hooks_add(hooks, x, &(weft_leaf_hook){.pre = bad[i % 2]}), WEFT_OK);
        if (i < 2)
            weft_tape_set_hooks(t, hooks);
        weft_tensor *y = i < 2 ? x : weft_on_gradient(t, x, bad[i % 2], NULL, NULL);
        weft_backward(t, weft_sum(t, y));
        assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
        assert_null(weft_tape_grad(t, x));
        weft_tape_close(t);
        weft_hooks_unref(hooks);
        weft_tensor_unref(x);
    }
}

static void hook_on_the_sum_may_fail_the_pass(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(1);
    seen s = {.fail = WEFT_ERR_CANCELLED};
    weft_hooks *hooks = hooks_create();
    assert_int_equal(weft_hooks_add(hooks, x, &(weft_leaf_hook){.post = add_a_hundred, .arg = &s}), WEFT_OK);
    weft_tape_set_hooks(t, hooks);
    weft_backward(t, two_shares(t, x));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_CANCELLED);
    weft_tape_close(t);
    weft_hooks_unref(hooks);
    weft_tensor_unref(x);
}

static void misuse_drops_and_says_so(void **state)
{
    weft_tensor *x = leaf(1), *constant = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32);
    seen s = {0};
    const weft_leaf_hook how = {.pre = double_it, .arg = &s, .drop = count_drop};
    weft_hooks *hooks = hooks_create();
    assert_int_equal(weft_hooks_add(NULL, x, &how), WEFT_ERR_INVALID);
    assert_int_equal(weft_hooks_add(hooks, NULL, &how), WEFT_ERR_INVALID);
    assert_int_equal(weft_hooks_add(hooks, constant, &how), WEFT_ERR_INVALID);
    assert_int_equal(weft_hooks_add(hooks, x, NULL), WEFT_ERR_INVALID);
    assert_int_equal(s.dropped, 3);
    weft_hooks_unref(hooks);
    weft_hooks_unref(NULL);
    weft_tape_set_hooks(NULL, NULL);

    weft_tape *t = recording();
    assert_null(weft_on_gradient(t, x, NULL, &s, count_drop));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    assert_int_equal(s.dropped, 4);
    weft_tape_close(t);
    t = weft_tape_open(NULL); /* does not record: x itself */
    assert_true(weft_on_gradient(t, x, double_it, &s, count_drop) == x);
    assert_int_equal(s.dropped, 5);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor_unref(constant);
}

static void function_on_the_gradient_of_a_tensor_between(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(1);
    seen s = {0};
    weft_tensor *y = weft_on_gradient(t, weft_scale(t, x, 3), double_it, &s, count_drop);
    assert_true(first(y) == 3);
    weft_backward(t, weft_sum(t, weft_scale(t, y, 5)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(s.count == 1 && s.shares[0] == 5);
    assert_true(first(weft_tape_grad(t, x)) == 30);
    assert_int_equal(s.dropped, 1);
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void a_wrong_leaf_is_named(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_hooks *hooks = hooks_create();
    REFUSES(weft_hooks_add(hooks, x, &(weft_leaf_hook){0}), WEFT_ERR_INVALID, "leaf wants no gradient");
    REFUSES(weft_hooks_add(hooks, NULL, &(weft_leaf_hook){0}), WEFT_ERR_INVALID, "weft_hooks_add: leaf is NULL");
    REFUSES(weft_hooks_add(NULL, x, &(weft_leaf_hook){0}), WEFT_ERR_INVALID, "the set of hooks is NULL");
    REFUSES(weft_hooks_add(hooks, x, NULL), WEFT_ERR_INVALID, "weft_hooks_add: how is NULL");
    weft_hooks_unref(hooks);
    weft_tensor_unref(x);
}

UNIT_MAIN(shares_and_sum_pass_the_hooks, several_hooks_run_in_order, post_is_not_called_without_a_gradient,
          leaf_without_a_gradient_may_be_given_one, pass_waits_for_what_a_hook_began,
          hook_that_gives_no_gradient_fails_the_pass, hook_on_the_sum_may_fail_the_pass, misuse_drops_and_says_so,
          function_on_the_gradient_of_a_tensor_between, a_wrong_leaf_is_named)
