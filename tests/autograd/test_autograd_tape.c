/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_tape.c - what a tape keeps, refuses and lets go. */
#include <weft/optim.h>
#include <weft/weft.h>

#include "mem/mem.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"
#include "prng.h"

#include <math.h>
#include <string.h>

static weft_tape *recording(void)
{
    return weft_tape_open(&(weft_tape_options){.record = true});
}

static weft_tensor *leaf(weft_shape shape, double value)
{
    weft_tensor *x = tensor_full(shape, WEFT_DTYPE_FLOAT32, value);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

static void assert_error(const weft_tape *t, weft_status code, const char *part)
{
    assert_int_equal(weft_tape_status(t), code);
    if (!strstr(weft_error_message(weft_tape_error(t)), part))
        fail_msg("\"%s\" lacks \"%s\"", weft_error_message(weft_tape_error(t)), part);
}

static void tape_first_error_stays_and_later_operators_give_null(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(WEFT_SHAPE(2, 3), 1), *w = leaf(WEFT_SHAPE(4, 5), 1);
    assert_null(weft_relu(t, weft_linear(t, x, w, NULL)));
    assert_error(t, WEFT_ERR_SHAPE, "linear(float32 [2, 3], float32 [4, 5], NULL): x has 3 features");
    assert_string_equal(weft_error_function(weft_tape_error(t)), "linear");
    assert_null(weft_reshape(t, x, WEFT_SHAPE(7)));
    assert_null(weft_sum(t, x));
    assert_error(t, WEFT_ERR_SHAPE, "linear");
    weft_backward(t, NULL);
    assert_int_equal(weft_tape_grads(t, (weft_tensors){&x, 1}).count, 0);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor_unref(w);
}

static void tape_missing_operand_and_null_tape(void **state)
{
    weft_tensor *x = leaf(WEFT_SHAPE(1), 1);
    assert_null(weft_relu(NULL, x));
    assert_int_equal(weft_tape_status(NULL), WEFT_ERR_MEMORY);
    weft_tape *t = recording();
    assert_null(weft_add(t, x, NULL));
    assert_error(t, WEFT_ERR_INVALID, "add: the second operand is NULL");
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void tape_backward_wants_one_element(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(WEFT_SHAPE(2), 1);
    weft_backward(t, weft_relu(t, x));
    assert_error(t, WEFT_ERR_SHAPE, "one element");
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void tape_backward_wants_a_recorded_output(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 1);
    weft_backward(t, weft_relu(t, x));
    assert_error(t, WEFT_ERR_INVALID, "not recorded");
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void tape_second_pass_needs_retain(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(WEFT_SHAPE(2), 3);
    weft_tensor *loss = weft_sum(t, weft_mul(t, x, x));
    weft_backward_with(t, (weft_tensors){&loss, 1}, (weft_tensors){NULL, 0}, &(weft_backward_options){.retain = true});
    weft_backward(t, loss);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, x), 0) == 12);
    weft_backward(t, loss);
    assert_error(t, WEFT_ERR_STATE, "second time");
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void tape_change_in_place_is_noticed(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(WEFT_SHAPE(2), 3);
    weft_tensor *loss = weft_sum(t, weft_mul(t, x, x));
    weft_tensor_fill(x, 4);
    weft_backward(t, loss);
    assert_error(t, WEFT_ERR_STATE, "mul kept for its gradient was changed in place");
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void a_step_is_noticed(weft_optimizer *optimizer, weft_tensor *x)
{
    weft_tape *t = recording();
    weft_tensor *loss = weft_sum(t, weft_mul(t, x, x));
    assert_int_equal(weft_optimizer_accumulate(optimizer, (weft_tensors){&x, 1}), WEFT_OK);
    assert_int_equal(weft_optimizer_step(optimizer), WEFT_OK);
    weft_backward(t, loss);
    assert_error(t, WEFT_ERR_STATE, "mul kept for its gradient was changed in place");
    weft_tape_close(t);
    weft_optimizer_unref(optimizer);
}

static void tape_optimizers_step_is_noticed(void **state)
{
    weft_tensor *x = leaf(WEFT_SHAPE(2), 3);
    a_step_is_noticed(
        optimizer_create((weft_tensors){&x, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1}, NULL), x);
    a_step_is_noticed(optimizer_create((weft_tensors){&x, 1}, &(weft_optimizer_spec){.type = &weft_adam_type}, NULL),
                      x);
    weft_tensor_unref(x);
}

/* Whatever the operator hands on of the gradient that the caller started from, the leaves' gradients are the tape's
 * own. */
static void tape_gradients_are_no_tensors_of_the_caller(void **state)
{
    weft_tape *t = recording();
    weft_tensor *in[] = {leaf(WEFT_SHAPE(2, 2), 1), leaf(WEFT_SHAPE(4), 1), leaf(WEFT_SHAPE(4), 1)};
    weft_tensor *outputs[] = {in[0], weft_add_scalar(t, in[1], 1), weft_reshape(t, in[2], WEFT_SHAPE(2, 2))};
    weft_tensor *from[] = {leaf(WEFT_SHAPE(2, 2), 5), leaf(WEFT_SHAPE(4), 5), leaf(WEFT_SHAPE(2, 2), 5)};
    weft_backward_with(t, (weft_tensors){outputs, 3}, (weft_tensors){from, 3}, NULL);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    for (int i = 0; i < 3; i++)
        weft_tensor_fill(from[i], 7);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++)
            assert_true(weft_tensor_get_f64(weft_tape_grad(t, in[i]), k) == 5);
    weft_tape_close(t);
    for (int i = 0; i < 3; i++) {
        weft_tensor_unref(from[i]);
        weft_tensor_unref(in[i]);
    }
}

static void tape_hundred_thousand_nodes_deep(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(WEFT_SCALAR, 1), *y = x;
    for (int i = 0; i < 100000; i++)
        y = weft_add_scalar(t, y, 1);
    weft_tensor_ref(y);
    weft_backward(t, y);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, x), 0) == 1);
    weft_tape_close(t);
    assert_true(weft_tensor_get_f64(y, 0) == 100001);
    weft_tensor_unref(y);
    weft_tensor_unref(x);
}

static void tape_tensor_of_another_tape_is_a_leaf(void **state)
{
    weft_tape *a = recording(), *b = recording();
    weft_tensor *x = leaf(WEFT_SCALAR, 2);
    weft_tensor *y = weft_mul(a, x, x);
    weft_tensor_set_requires_grad(y, true);
    weft_backward(b, weft_scale(b, y, 5));
    assert_true(weft_tensor_get_f64(weft_tape_grad(b, y), 0) == 5);
    assert_null(weft_tape_grad(b, x));
    weft_tape_close(b);
    weft_tape_close(a);
    weft_tensor_unref(x);
}

static void tape_child_records_move_to_the_parent(void **state)
{
    weft_tape *parent = recording();
    weft_tensor *x = leaf(WEFT_SCALAR, 2);
    weft_tensor *y = weft_mul(parent, x, x);
    weft_tape *child = weft_tape_open(&(weft_tape_options){.record = true, .parent = parent});
    weft_tensor *z = weft_tensor_ref(weft_mul(child, y, x));
    weft_tape_close(child);
    weft_backward(parent, weft_scale(parent, z, 1));
    assert_int_equal(weft_tape_status(parent), WEFT_OK);
    assert_true(weft_tensor_get_f64(weft_tape_grad(parent, x), 0) == 12); /* d x^3 */
    weft_tape_close(parent);
    weft_tensor_unref(z);
    weft_tensor_unref(x);
}

static size_t bytes_live(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats.bytes_live;
}

#define LARGE (4 << 20) /* bytes of a tensor that shows in the statistics */

/* Of what a child tape computed only that stays which the backward pass needs, and not longer than until then. */
static void tape_backward_lets_go_of_what_it_used(void **state)
{
    weft_tensor *x = leaf(WEFT_SHAPE(LARGE / 4), 1);
    weft_tape *t = recording();
    size_t before = bytes_live();
    weft_tape *child = weft_tape_open(&(weft_tape_options){.record = true, .parent = t});
    weft_tensor *y = weft_exp(child, weft_add_scalar(child, weft_neg(child, x), 1)); /* only exp keeps: its result */
    weft_tensor *loss = weft_tensor_ref(weft_mean(child, y));
    weft_tape_close(child);
    assert_in_range(bytes_live() - before, LARGE, LARGE + LARGE / 2);
    weft_backward(t, loss);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_in_range(bytes_live() - before, LARGE, LARGE + LARGE / 2); /* x's gradient */
    weft_tape_close(t);
    weft_tensor_unref(loss);
    assert_in_range(bytes_live(), 0, before);
    weft_tensor_unref(x);
}

/* Of a tape, two children and a grandchild none uses another's random numbers. */
static void tape_descendants_have_streams_of_their_own(void **state)
{
    weft_tensor *x = leaf(WEFT_SHAPE(256), 1), *kept[4];
    weft_tape *tapes[4] = {weft_tape_open(&(weft_tape_options){.seed = 1})};
    tapes[1] = weft_tape_open(&(weft_tape_options){.parent = tapes[0]});
    tapes[2] = weft_tape_open(&(weft_tape_options){.parent = tapes[1]});
    tapes[3] = weft_tape_open(&(weft_tape_options){.parent = tapes[0]});
    for (int i = 0; i < 4; i++)
        kept[i] = weft_tensor_ref(weft_dropout(tapes[i], x, 0.5, true));
    for (int i = 3; i >= 0; i--)
        weft_tape_close(tapes[i]);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(weft_tensor_data(kept[i]), weft_tensor_data(kept[k]), 256 * sizeof(float));
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(kept[i]);
    weft_tensor_unref(x);
}

/* Bounds are six standard errors of 10,000 elements. */
static void tape_dropout_keeps_its_share_and_the_mean(void **state)
{
    weft_tensor *x = leaf(WEFT_SHAPE(100, 100, 2), 1);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = 9});
    weft_tensor *single = weft_dropout(t, x, 0.3, true), *planes = weft_dropout2d(t, x, 0.3, true);
    assert_true(fabs(weft_tensor_get_f64(weft_mean(t, single), 0) - 1) < 0.04);
    assert_true(fabs(weft_tensor_get_f64(weft_mean(t, planes), 0) - 1) < 0.04);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++) {
        double value = weft_tensor_get_f64(single, i);
        assert_true(value == 0 || fabs(value - 1 / 0.7) < 1e-6);
        assert_true(weft_tensor_get_f64(planes, i) == weft_tensor_get_f64(planes, i ^ 1));
    }
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void tape_grads_gives_zeros_in_order(void **state)
{
    weft_tape *t = recording();
    weft_tensor *in[] = {leaf(WEFT_SHAPE(2), 1), leaf(WEFT_SHAPE(3), 1), leaf(WEFT_SHAPE(2), 1)};
    weft_backward(t, weft_sum(t, weft_add(t, in[0], in[2])));
    weft_tensors grads = weft_tape_grads(t, (weft_tensors){in, 3});
    assert_int_equal(grads.count, 3);
    assert_true(weft_tensor_get_f64(grads.items[0], 1) == 1 && weft_tensor_get_f64(grads.items[2], 1) == 1);
    assert_int_equal(weft_tensor_numel(grads.items[1]), 3);
    assert_true(weft_tensor_get_f64(grads.items[1], 2) == 0);
    assert_ptr_not_equal(weft_tensor_data(grads.items[0]), weft_tensor_data(grads.items[2]));
    weft_tape_close(t);
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(in[i]);
}

static void tape_without_recording_has_no_gradients(void **state)
{
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *x = leaf(WEFT_SCALAR, 2);
    assert_non_null(weft_relu(t, x));
    weft_backward(t, weft_relu(t, x));
    assert_error(t, WEFT_ERR_INVALID, "not recorded");
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void tape_detach_stops_gradients(void **state)
{
    weft_tape *t = recording();
    weft_tensor *x = leaf(WEFT_SCALAR, 2);
    weft_backward(t, weft_mul(t, x, weft_detach(t, x)));
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, x), 0) == 2);
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void tape_dropout_follows_the_seed(void **state)
{
    weft_tensor *x = leaf(WEFT_SHAPE(64), 1), *kept[3];
    const uint64_t seeds[3] = {5, 5, 6};
    for (int i = 0; i < 3; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = seeds[i]});
        kept[i] = weft_tensor_ref(weft_dropout(t, x, 0.5, true));
        assert_ptr_equal(weft_dropout(t, x, 0.5, false), x);
        weft_tape_close(t);
    }
    assert_memory_equal(weft_tensor_data(kept[0]), weft_tensor_data(kept[1]), 64 * sizeof(float));
    assert_memory_not_equal(weft_tensor_data(kept[0]), weft_tensor_data(kept[2]), 64 * sizeof(float));
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(kept[i]);
    weft_tensor_unref(x);
}

static void tape_given_gradient_must_be_its_outputs(void **state)
{
    weft_tensor *x = leaf(WEFT_SHAPE(2), 1);
    weft_tensor *wrong[] = {tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32),
                            tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64)};
    for (int i = 0; i < 2; i++) {
        weft_tape *t = recording();
        weft_tensor *y = weft_scale(t, x, 2);
        weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&wrong[i], 1}, NULL);
        assert_error(t, i == 0 ? WEFT_ERR_SHAPE : WEFT_ERR_TYPE, "not of its output's shape and dtype");
        weft_tape_close(t);
        weft_tensor_unref(wrong[i]);
    }
    weft_tensor_unref(x);
}

#define DAG_NODES 40

/* Random sums of sums: the gradient of the leaf is the number of paths to it, however the nodes lie. */
static void tape_random_sums_count_their_paths(void **state)
{
    uint64_t seed = 1;
    for (int round = 0; round < 50; round++) {
        weft_tape *t = recording();
        weft_tensor *x = leaf(WEFT_SCALAR, 1), *nodes[DAG_NODES] = {x}, *loss = NULL;
        double paths[DAG_NODES] = {1}, all = 0;
        for (int i = 1; i < DAG_NODES; i++) {
            int low = i > 8 ? i - 8 : 0; /* near ones, or the sums leave float32's integers */
            int a = low + (int)prng_below(&seed, (uint64_t)(i - low));
            int b = i % 3 == 0 ? 0 : low;
            nodes[i] = weft_add(t, nodes[a], nodes[b]);
            paths[i] = paths[a] + paths[b];
        }
        for (int i = DAG_NODES / 2; i < DAG_NODES; i += 3) {
            loss = !loss ? nodes[i] : weft_add(t, nodes[i], loss);
            all += paths[i];
        }
        assert_true(all < 1 << 24);
        weft_backward(t, loss);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        assert_true(weft_tensor_get_f64(weft_tape_grad(t, x), 0) == all);
        weft_tape_close(t);
        weft_tensor_unref(x);
    }
}

/* A tape that keeps the running mean notices that a step of training moved it. */
static void tape_moved_running_mean_is_noticed(void **state)
{
    for (int which = 0; which < 2; which++) {
        weft_tape *t = recording();
        weft_tensor *x = leaf(WEFT_SHAPE(2, 3, 2, 2), 1), *w = leaf(WEFT_SHAPE(3), 1);
        weft_tensor *running[] = {tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32),
                                  tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1)};
        weft_tensor *y = weft_sum(t, weft_mul(t, w, running[which]));
        weft_batch_norm2d(t, x, NULL, NULL, running[0], running[1], &(weft_batch_norm_options){.train = true});
        weft_backward(t, y);
        assert_error(t, WEFT_ERR_STATE, "changed in place");
        weft_tape_close(t);
        weft_tensor_unref(x);
        weft_tensor_unref(w);
        weft_tensor_unref(running[0]);
        weft_tensor_unref(running[1]);
    }
}

#define T(test) cmocka_unit_test(test)
static void a_pass_includes_the_records_of_an_open_child(void **state)
{
    weft_tape *parent = recording();
    weft_tensor *x = leaf(WEFT_SCALAR, 2);
    weft_tape *child = weft_tape_open(&(weft_tape_options){.record = true, .parent = parent});
    weft_tensor *y = weft_mul(child, x, x);
    weft_backward(parent, weft_mul(parent, y, x));
    assert_int_equal(weft_tape_status(parent), WEFT_OK);
    assert_true(weft_tensor_get_f64(weft_tape_grad(parent, x), 0) == 12); /* d x^3 */
    weft_tape_close(child);
    weft_tape_close(parent);
    weft_tensor_unref(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(tape_first_error_stays_and_later_operators_give_null),
        T(tape_missing_operand_and_null_tape),
        T(tape_backward_wants_one_element),
        T(tape_backward_wants_a_recorded_output),
        T(tape_second_pass_needs_retain),
        T(tape_change_in_place_is_noticed),
        T(tape_optimizers_step_is_noticed),
        T(tape_gradients_are_no_tensors_of_the_caller),
        T(tape_hundred_thousand_nodes_deep),
        T(tape_tensor_of_another_tape_is_a_leaf),
        T(tape_child_records_move_to_the_parent),
        T(tape_backward_lets_go_of_what_it_used),
        T(tape_descendants_have_streams_of_their_own),
        T(tape_dropout_keeps_its_share_and_the_mean),
        T(tape_grads_gives_zeros_in_order),
        T(tape_without_recording_has_no_gradients),
        T(tape_detach_stops_gradients),
        T(tape_dropout_follows_the_seed),
        T(tape_given_gradient_must_be_its_outputs),
        T(tape_random_sums_count_their_paths),
        T(tape_moved_running_mean_is_noticed),
        T(a_pass_includes_the_records_of_an_open_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
