/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_threads.c - several threads, a tape each, over the same parameters: each finds what one alone finds. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>

#define THREADS 4
#define ROUNDS 20

typedef struct shared {
    weft_module *net;
    weft_tensor *x, *target, *wanted; /* wanted: the first parameter's gradient */
} shared;

static weft_module *make_net(void)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 1, .out_channels = 4, .kernel = {3, 3}, .seed = 1}, NULL),
        relu_create(), flatten_create(1), linear_create(144, 5, false, 2, NULL), log_softmax_create(1)};
    return sequential_create(parts, 5, NULL);
}

/* With a reference; NULL on failure. */
static weft_tensor *gradient(const shared *s)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, weft_nll_loss(t, weft_module_forward(t, s->net, s->x), s->target));
    weft_tensor *g = weft_tape_grad(t, weft_module_parameters(s->net).items[0]);
    if (weft_tape_status(t) == WEFT_OK && g)
        weft_tensor_ref(g);
    else
        g = NULL;
    weft_tape_close(t);
    return g;
}

static void *work(void *arg)
{
    const shared *s = arg;
    uintptr_t wrong = 0;
    for (int i = 0; i < ROUNDS; i++) {
        weft_tensor *g = gradient(s);
        wrong += !g || memcmp(weft_tensor_data(g), weft_tensor_data(s->wanted), weft_tensor_nbytes(s->wanted)) != 0;
        weft_tensor_unref(g);
    }
    return (void *)wrong;
}

static void threads_share_parameters(void **state)
{
    shared s = {.net = make_net(), .x = formula_tensor(WEFT_SHAPE(3, 1, 8, 8), WEFT_DTYPE_FLOAT32, 1)};
    s.target = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT64);
    weft_tensor_set_requires_grad(s.x, true);
    s.wanted = gradient(&s);
    assert_non_null(s.wanted);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &s), 0);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    weft_tensor_unref(s.wanted);
    weft_tensor_unref(s.target);
    weft_tensor_unref(s.x);
    weft_module_unref(s.net);
}

/* Results that outlive their tapes, used as leaves and let go by other threads while those tapes are closed. */
static void *use_kept(void *arg)
{
    weft_tensor *kept = arg;
    uintptr_t wrong = 0;
    for (int i = 0; i < ROUNDS; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_backward(t, weft_sum(t, weft_mul(t, kept, kept)));
        wrong += weft_tape_status(t) != WEFT_OK || weft_tensor_get_f64(weft_tape_grad(t, kept), 0) != 6;
        weft_tape_close(t);
    }
    weft_tensor_unref(kept);
    return (void *)wrong;
}

static void threads_use_what_another_tape_made(void **state)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *x = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor_set_requires_grad(x, true);
    weft_tensor *kept = weft_add_scalar(t, x, 2);
    weft_tensor_set_requires_grad(kept, true);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_kept, weft_tensor_ref(kept)), 0);
    weft_tape_close(t);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    weft_tensor_unref(x);
}

UNIT_MAIN(threads_share_parameters, threads_use_what_another_tape_made)
