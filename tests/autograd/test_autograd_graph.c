/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_graph.c - several tapes that record into one graph, and several passes over one graph at once. */
#include "autograd/engine.h"
#include "autograd/tape.h"

#include <weft/weft.h>

#include "tensors.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>

#define THREADS 4
#define ROUNDS 50

static weft_tensor *leaf(float value)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, value);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

static float first(const weft_tensor *x)
{
    return (float)weft_tensor_get_f64(x, 0);
}

static weft_tape *recording(weft_tape *parent)
{
    return weft_tape_open(&(weft_tape_options){.record = true, .parent = parent});
}

static void leaf_stands_once_in_a_graph(void **state)
{
    weft_tape *parent = recording(NULL), *a = recording(parent), *b = recording(parent);
    weft_tensor *x = leaf(2);
    wfi_node *node = wfi_tape_node_of(parent, x);
    assert_non_null(node);
    assert_ptr_equal(wfi_tape_node_of(a, x), node);
    assert_ptr_equal(wfi_tape_node_of(b, x), node);
    weft_tape *other = recording(NULL);
    assert_ptr_not_equal(wfi_tape_node_of(other, x), node);
    weft_tape_close(other);
    weft_tape_close(a);
    weft_tape_close(b);
    weft_tape_close(parent);
    weft_tensor_unref(x);
}

static void tensor_of_a_failed_child_is_no_record(void **state)
{
    weft_tape *parent = recording(NULL), *child = recording(parent);
    weft_tensor *x = leaf(2), *y = weft_tensor_ref(weft_scale(child, x, 3));
    weft_tape_fail(child, WEFT_ERR_INVALID, "mine");
    weft_tape_close(child);
    weft_backward(parent, weft_sum(parent, weft_add(parent, x, y)));
    assert_int_equal(weft_tape_status(parent), WEFT_OK);
    assert_true(first(weft_tape_grad(parent, x)) == 1); /* y is a constant */
    weft_tape_close(parent);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

/* ---- Passes at once ---- */

static weft_status keep(void *arg, uint64_t leaf, weft_gradient *sum)
{
    (void)leaf;
    *(weft_gradient *)arg = *sum;
    return WEFT_OK;
}

typedef struct shared {
    weft_tape *tape;
    weft_tensor *loss;
    float wanted;
    bool retain;
    _Atomic int spent;
} shared;

/* How many passes gave another gradient than they must, or failed otherwise than as the second of two that do not
 * retain. */
static void *run_passes(void *arg)
{
    shared *s = arg;
    uintptr_t wrong = 0;
    for (int i = 0; i < (s->retain ? ROUNDS : 1); i++) {
        weft_gradient sum = {0};
        wfi_engine engine = {.retain = s->retain, .give = keep, .arg = &sum};
        wfi_engine_root(&engine, s->loss->grad_node, 0, tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 1));
        wfi_engine_run(&engine);
        if (engine.error) {
            s->spent++;
            wrong += s->retain || weft_error_code(engine.error) != WEFT_ERR_STATE;
        } else {
            wrong += !sum.values || first(sum.values) != s->wanted;
        }
        wfi_engine_end(&engine);
        wfi_gradient_clear(&sum);
    }
    return (void *)wrong;
}

static uintptr_t run_threads(shared *s)
{
    pthread_t threads[THREADS];
    uintptr_t wrong = 0;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_passes, s), 0);
    for (int i = 0; i < THREADS; i++) {
        void *of;
        assert_int_equal(pthread_join(threads[i], &of), 0);
        wrong += (uintptr_t)of;
    }
    return wrong;
}

static void passes_at_once_over_one_graph(void **state)
{
    for (int round = 0; round < ROUNDS; round++) {
        shared s = {.tape = recording(NULL), .retain = round % 2 == 0};
        weft_tensor *x = leaf(2), *y = x;
        for (int i = 0; i < 20; i++) /* y = 2^20 x: each layer needs what it saved */
            y = weft_mul(s.tape, weft_add(s.tape, y, y),
                         weft_tape_take(s.tape, tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 1)));
        s.loss = weft_sum(s.tape, weft_mul(s.tape, y, x)); /* 3 * 2^20 x^2: the gradient is 2^21 x */
        s.wanted = (float)(1 << 21) * 2;
        wfi_tape_commit(s.tape);
        assert_int_equal(run_threads(&s), 0);
        assert_true(s.retain ? s.spent == 0 : s.spent <= THREADS - 1);
        weft_tape_close(s.tape);
        weft_tensor_unref(x);
    }
}

/* ---- Tapes at once ---- */

typedef struct branch {
    weft_tape *parent;
    weft_tensor *x, *y;
    float factor;
} branch;

static void *record_branch(void *arg)
{
    branch *b = arg;
    weft_tape *child = weft_tape_open(&(weft_tape_options){.record = true, .parent = b->parent});
    weft_tensor *y = b->x;
    for (int i = 0; i < 100; i++)
        y = weft_add(child, y, b->x);
    b->y = weft_tensor_ref(weft_scale(child, y, b->factor));
    weft_tape_close(child);
    return NULL;
}

/* Children recorded on threads of their own commit to one graph; a pass goes over all of it. */
static void tapes_at_once_record_into_one_graph(void **state)
{
    weft_tape *parent = recording(NULL), *openers[THREADS];
    weft_tensor *x = leaf(2), *loss = NULL;
    branch branches[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        openers[i] = recording(parent); /* what a child counts at its parent is one thread's: so a parent each */
        branches[i] = (branch){.parent = openers[i], .x = x, .factor = (float)(i + 1)};
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_branch, &branches[i]), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        weft_tape_close(openers[i]);
        loss = i == 0 ? branches[i].y : weft_add(parent, loss, branches[i].y);
    }
    weft_backward(parent, weft_sum(parent, loss));
    assert_int_equal(weft_tape_status(parent), WEFT_OK);
    assert_true(first(weft_tape_grad(parent, x)) == 101 * (1 + 2 + 3 + 4));
    weft_tape_close(parent);
    for (int i = 0; i < THREADS; i++)
        weft_tensor_unref(branches[i].y);
    weft_tensor_unref(x);
}

/* ---- Sums ---- */

static weft_tensor *share(float value)
{
    return tensor_full(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32, value);
}

static weft_tensor *rows(int64_t a, int64_t b)
{
    return tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){a, b});
}

static weft_tensor *values(float a, float b)
{
    return tensor_copy_of(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32, (float[]){a, a, b, b});
}

static void sums_of_dense_shares_and_rows(void **state)
{
    weft_gradient sum = {0};
    assert_true(!sum.values);
    assert_int_equal(wfi_gradient_add_rows(&sum, rows(2, 0), values(1, 2)), WEFT_OK);
    assert_int_equal(wfi_gradient_add_rows(&sum, rows(2, 2), values(10, 100)), WEFT_OK);
    assert_int_equal(weft_tensor_numel(sum.rows), 4); /* appended, in order */
    assert_int_equal(weft_tensor_get_i64(sum.rows, 1), 0);
    assert_true(weft_tensor_get_f64(sum.values, 6) == 100);
    assert_int_equal(wfi_gradient_add(&sum, share(1000)), WEFT_OK);
    assert_null(sum.rows);
    const float wanted[] = {1002, 1002, 1000, 1000, 1111, 1111};
    assert_memory_equal(weft_tensor_data(sum.values), wanted, sizeof(wanted));
    assert_int_equal(wfi_gradient_add_rows(&sum, rows(1, 1), values(1, 1)), WEFT_OK);
    assert_true(weft_tensor_get_f64(sum.values, 2) == 1002);
    wfi_gradient_clear(&sum);
    assert_true(!sum.values);
}

static void share_that_others_hold_does_not_change(void **state)
{
    weft_tensor *mine = share(1);
    weft_gradient sum = {0};
    assert_int_equal(wfi_gradient_add(&sum, weft_tensor_ref(mine)), WEFT_OK);
    assert_int_equal(wfi_gradient_add(&sum, share(2)), WEFT_OK);
    assert_true(first(mine) == 1 && first(sum.values) == 3);
    const void *place = weft_tensor_data(sum.values);
    assert_int_equal(wfi_gradient_add(&sum, weft_tensor_ref(mine)), WEFT_OK);
    assert_true(first(sum.values) == 4 && weft_tensor_data(sum.values) == place); /* its own by now: in place */
    wfi_gradient_clear(&sum);
    weft_tensor_unref(mine);
}

UNIT_MAIN(leaf_stands_once_in_a_graph, tensor_of_a_failed_child_is_no_record, passes_at_once_over_one_graph,
          tapes_at_once_record_into_one_graph, sums_of_dense_shares_and_rows, share_that_others_hold_does_not_change)
