/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_threads.c - kernels called by several threads at once: the same bits as alone, whatever the shapes. */
#include "check_gradients.h"
#include "tensors.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define SHAPES 6
#define ROUNDS 30
#define MANY_SHAPES 600 /* more than the cache of convolution plans holds */

static const wfi_conv2d plain_conv = {{1, 1}, {1, 1}, {1, 1}, 1};

typedef struct conv_case {
    weft_tensor *x, *weight, *expected;
} conv_case;

static weft_status convolve(const conv_case *c, weft_tensor **out)
{
    weft_shape shape;
    weft_shape x = weft_tensor_shape(c->x), weight = weft_tensor_shape(c->weight);
    weft_status status = wfi_conv2d_shape(&x, &weight, &plain_conv, &shape);
    if (status != WEFT_OK)
        return status;
    *out = tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    return *out ? wfi_conv2d_forward(c->x, c->weight, NULL, &plain_conv, *out) : WEFT_ERR_MEMORY;
}

static void case_make(conv_case *c, int64_t size)
{
    c->x = random_tensor(WEFT_SHAPE(1, 3, size, size + 1), WEFT_DTYPE_FLOAT32, (uint64_t)size);
    c->weight = random_tensor(WEFT_SHAPE(4, 3, 3, 3), WEFT_DTYPE_FLOAT32, (uint64_t)size + 100);
    assert_int_equal(convolve(c, &c->expected), WEFT_OK);
}

static void case_drop(conv_case *c)
{
    weft_tensor_unref(c->x);
    weft_tensor_unref(c->weight);
    weft_tensor_unref(c->expected);
}

static bool same_bits(const weft_tensor *a, const weft_tensor *b)
{
    const float *x = weft_tensor_data(a), *y = weft_tensor_data(b);
    for (int64_t i = 0; i < weft_tensor_numel(b); i++) {
        if (!(x[i] == y[i]))
            return false;
    }
    return true;
}

typedef struct job {
    conv_case *cases;
    int first, mixed; /* mixed: all cases in turn, else the first alone */
    _Atomic int *wrong;
} job;

static void *convolve_often(void *arg)
{
    job *j = arg;
    for (int i = 0; i < ROUNDS; i++) {
        weft_tensor *y = NULL;
        const conv_case *c = &j->cases[(j->first + i * j->mixed) % SHAPES];
        if (convolve(c, &y) != WEFT_OK || !same_bits(y, c->expected))
            atomic_fetch_add(j->wrong, 1);
        weft_tensor_unref(y);
    }
    return NULL;
}

static int run_threads(conv_case *cases, bool own_shapes, int mixed)
{
    pthread_t threads[THREADS];
    job jobs[THREADS];
    _Atomic int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){cases, own_shapes ? i : 0, mixed, &wrong};
        assert_int_equal(pthread_create(&threads[i], NULL, convolve_often, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return wrong;
}

static void threads_convolve_at_once(void **state)
{
    conv_case cases[SHAPES];
    for (int i = 0; i < SHAPES; i++)
        case_make(&cases[i], 5 + i);
    assert_int_equal(run_threads(cases, true, 0), 0);
    assert_int_equal(run_threads(cases, false, 0), 0);
    assert_int_equal(run_threads(cases, true, 1), 0);
    for (int i = 0; i < SHAPES; i++)
        case_drop(&cases[i]);
}

typedef struct span {
    int64_t first;
    _Atomic int *wrong;
} span;

/* New shapes all the time: plans are made, found and thrown out at once. */
static void *convolve_new_shapes(void *arg)
{
    span *s = arg;
    weft_tensor *weight = tensor_full(WEFT_SHAPE(1, 1, 3, 3), WEFT_DTYPE_FLOAT32, 1);
    for (int64_t i = 0; i < MANY_SHAPES / THREADS * 2; i++) { /* neighbours share half of theirs */
        int64_t at = s->first + i;
        weft_tensor *x = tensor_full(WEFT_SHAPE(1, 1, 3 + at % 30, 3 + at / 30), WEFT_DTYPE_FLOAT32, 1);
        weft_tensor *y = NULL;
        conv_case c = {x, weight, NULL};
        /* All ones: the first cell covers four of them, or two rows where the image ends. */
        if (convolve(&c, &y) != WEFT_OK || weft_tensor_get_f64(y, 0) != 4)
            atomic_fetch_add(s->wrong, 1);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
    weft_tensor_unref(weight);
    return NULL;
}

static void more_shapes_than_plans_are_kept(void **state)
{
    pthread_t threads[THREADS];
    span spans[THREADS];
    _Atomic int wrong = 0;
    for (int64_t i = 0; i < THREADS; i++) {
        spans[i] = (span){i * (MANY_SHAPES / THREADS), &wrong};
        assert_int_equal(pthread_create(&threads[i], NULL, convolve_new_shapes, &spans[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
}

static void *add_often(void *arg)
{
    _Atomic int *wrong = arg;
    weft_tensor *x = tensor_full(WEFT_SHAPE(200000), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *y = tensor_zeros(WEFT_SHAPE(200000), WEFT_DTYPE_FLOAT32);
    for (int i = 0; i < ROUNDS; i++) {
        if (wfi_add_into(x, y) != WEFT_OK)
            atomic_fetch_add(wrong, 1);
    }
    for (int64_t i = 0; i < weft_tensor_numel(y); i += 997) {
        if (weft_tensor_get_f64(y, i) != ROUNDS)
            atomic_fetch_add(wrong, 1);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    return NULL;
}

static void one_pool_serves_several_callers(void **state)
{
    pthread_t threads[THREADS];
    _Atomic int wrong = 0;
    int before = wfi_cpu_threads();
    wfi_cpu_threads_set(3);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_often, &wrong), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    wfi_cpu_threads_set(before);
    assert_int_equal(wrong, 0);
}

static void *share(void *arg)
{
    for (int i = 0; i < 1000; i++) {
        weft_tensor *view = tensor_select(weft_tensor_ref(arg), 0, i % 2);
        weft_tensor_unref(arg);
        weft_tensor_unref(view);
    }
    return NULL;
}

static void references_come_and_go_on_any_thread(void **state)
{
    pthread_t threads[THREADS];
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, share, tensor), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_true(weft_tensor_get_f64(tensor, 5) == 0);
    weft_tensor_unref(tensor);
}

UNIT_MAIN(threads_convolve_at_once, more_shapes_than_plans_are_kept, one_pool_serves_several_callers,
          references_come_and_go_on_any_thread)
