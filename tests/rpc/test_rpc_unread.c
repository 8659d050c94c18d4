/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_unread.c - a server that updates a plain tensor in place while clients read it, as weft/rpc.h shows. */
#include "rpc/world.h"
#include "tensors.h"

#include <pthread.h>

#define CLIENTS 4
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define READS 1000
#else
#define READS 10000
#endif
#define NUMEL 8192 /* 32 KiB: pulled, or pushed into landing places */

static world *scene;
static weft_tensor *store, *small; /* `small` rides in the reply */
static atomic_int reads, writes, done, pulls_each;

/* A lock that works for threads, and for the fibers of the simulation, which share a thread. */
static atomic_flag locked = ATOMIC_FLAG_INIT;
static pthread_mutex_t updating = PTHREAD_MUTEX_INITIALIZER;

static void lock(void)
{
    if (!scene->sim)
        pthread_mutex_lock(&updating);
    while (scene->sim && atomic_flag_test_and_set(&locked))
        weft_sim_sleep(scene->sim, 10000);
}

static void unlock(void)
{
    if (scene->sim)
        atomic_flag_clear(&locked);
    else
        pthread_mutex_unlock(&updating);
}

static weft_status run_pull(weft_call *call, void *user)
{
    lock();
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(store), weft_of_tensor(small)));
    unlock();
    if (scene->sim && user)
        weft_sim_sleep(scene->sim, 50000); /* whoever does not see what was given, updates it now */
    return WEFT_OK;
}

static weft_status update(double value)
{
    lock();
    weft_status status = weft_tensor_wait_unread(store, 60000);
    if (!status)
        status = weft_tensor_wait_unread(small, WEFT_FOREVER);
    if (!status) {
        float *at = weft_tensor_data(store);
        for (int64_t i = 0; i < NUMEL; i++) /* slowly: with a pause in the middle */
            at[i] = (float)value;
        weft_tensor_fill(small, value);
    }
    unlock();
    return status;
}

static weft_future *_Atomic unread;
static weft_call *_Atomic deferred;

static weft_status run_defer(weft_call *call, void *user)
{
    atomic_store(&unread, weft_call_unread(call));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(store)));
    atomic_store(&deferred, weft_call_defer(call));
    return WEFT_DEFERRED;
}

static int slowly = 1;
static const weft_function functions[] = {
    {.name = "pull", .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR}, .run = run_pull, .user = &slowly},
    {.name = "defer", .gives = {WEFT_TYPE_TENSOR}, .run = run_defer},
};

static void begin(world *w)
{
    scene = w;
    store = tensor_zeros(WEFT_SHAPE(NUMEL), WEFT_DTYPE_FLOAT32);
    small = tensor_zeros(WEFT_SHAPE(16), WEFT_DTYPE_FLOAT32);
    MUST(store && small);
    atomic_store(&reads, 0);
    atomic_store(&writes, 0);
    atomic_store(&done, 0);
    atomic_store(&pulls_each, w->fabric == WORLD_TCP ? READS / CLIENTS : 25);
    atomic_store(&unread, NULL);
    atomic_store(&deferred, NULL);
}

static void end(world *w)
{
    (void)w;
    weft_tensor_unref(store);
    weft_tensor_unref(small);
}

static float must_be_whole(const weft_tensor *x)
{
    const float *at = weft_tensor_data(x);
    for (int64_t i = 1; i < weft_tensor_numel(x); i++)
        MUST(at[i] == at[0]);
    return at[0];
}

static void read_many(weft_agent *agent)
{
    weft_tensor *land[2] = {NULL, NULL};
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    if (weft_agent_rank(agent) % 2) {
        land[0] = tensor_zeros(WEFT_SHAPE(NUMEL), WEFT_DTYPE_FLOAT32);
        land[1] = tensor_zeros(WEFT_SHAPE(16), WEFT_DTYPE_FLOAT32);
        options.land = (weft_tensors){land, 2};
    }
    for (int i = 0; i < atomic_load(&pulls_each); i++) {
        weft_values *got;
        weft_tensor *large, *little;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "pull", WEFT_NO_VALUES, &options, &got));
        MUST_OK(weft_values_get_tensor(got, 0, &large));
        MUST_OK(weft_values_get_tensor(got, 1, &little));
        MUST(must_be_whole(large) == must_be_whole(little)); /* of one update */
        weft_values_unref(got);
        atomic_fetch_add(&reads, 1);
    }
    weft_tensor_unref(land[0]);
    weft_tensor_unref(land[1]);
    atomic_fetch_add(&done, 1);
}

static void no_read_is_torn(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent)) {
        read_many(agent);
        return;
    }
    while (atomic_load(&done) < CLIENTS) {
        MUST_OK(update(atomic_fetch_add(&writes, 1) + 1));
        if (scene->sim)
            weft_sim_sleep(scene->sim, 20000);
    }
    MUST(atomic_load(&reads) == CLIENTS * atomic_load(&pulls_each) && atomic_load(&writes) > 5);
}

WORLD_TEST(no_read_is_torn, 40, 1, WORLD_FUNCTIONS(functions), .size = CLIENTS + 1, .begin = begin, .end = end)

/* ---- What counts as a reader ------------------------------------------------------------------------------------- */

static void must_be_read(const weft_tensor *x)
{
    MUST_BE(weft_tensor_wait_unread(x, 0), WEFT_ERR_TIMEOUT);
    MUST_BE(weft_tensor_wait_unread(x, 5), WEFT_ERR_TIMEOUT);
}

/* What was given is read from then on, before anything is sent; and no more when the caller has it. */
static void given_is_read(weft_agent *agent, void *arg)
{
    weft_future *future;
    if (weft_agent_rank(agent)) {
        while (!atomic_load(&done))
            world_sleep_ms(scene, 1);
        return;
    }
    weft_tensor *view = tensor_narrow(store, 0, 5, 7);
    MUST_OK(weft_tensor_wait_unread(store, 0));
    for (int to = 0; to < 2; to++) { /* this worker itself, and the other one: each calls rank 0's function */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "defer", WEFT_NO_VALUES, NULL, &future));
        while (!atomic_load(&deferred))
            world_sleep_ms(scene, 1);
        must_be_read(store);
        must_be_read(view);
        weft_future *told = atomic_exchange(&unread, NULL);
        MUST(!weft_future_done(told));
        weft_call_finish(atomic_exchange(&deferred, NULL), WEFT_OK);
        MUST_OK(weft_future_wait(future, WEFT_FOREVER));
        MUST_OK(weft_future_wait(told, 60000));
        MUST(!weft_future_error(told));
        MUST_OK(weft_tensor_wait_unread(store, 60000));
        MUST_OK(weft_tensor_wait_unread(view, 0));
        weft_future_unref(told);
        weft_future_unref(future);
    }
    weft_tensor_unref(view);
    atomic_store(&done, 1);
}

WORLD_TEST(given_is_read, 10, 2, WORLD_FUNCTIONS(functions), .size = 2, .begin = begin, .end = end)

/* A call that is cancelled, fails, or gets other results, reads no more. */
static void not_given_any_more(weft_agent *agent, void *arg)
{
    static const char *const ends[] = {"cancelled", "failed", "replaced"};
    weft_future *future;
    if (weft_agent_rank(agent)) {
        while (!atomic_load(&done))
            world_sleep_ms(scene, 1);
        return;
    }
    for (int i = 0; i < 3; i++) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "defer", WEFT_NO_VALUES, NULL, &future));
        while (!atomic_load(&deferred))
            world_sleep_ms(scene, 1);
        must_be_read(store);
        weft_call *call = atomic_exchange(&deferred, NULL);
        weft_future *told = atomic_exchange(&unread, NULL);
        if (ends[i][0] == 'c')
            MUST_OK(weft_future_cancel(future));
        if (ends[i][0] == 'r') {
            weft_call_give(call, WEFT_VALUES(weft_of_tensor(small)));
            MUST_OK(weft_tensor_wait_unread(store, 0));
            must_be_read(small);
        }
        weft_call_finish(call, ends[i][0] == 'f' ? WEFT_ERR_STATE : WEFT_OK);
        MUST_OK(weft_future_wait(told, 60000));
        MUST_OK(weft_tensor_wait_unread(store, 60000));
        MUST_OK(weft_tensor_wait_unread(small, 60000));
        weft_future_unref(told);
        weft_future_unref(future);
    }
    atomic_store(&done, 1);
}

WORLD_TEST(not_given_any_more, 10, 2, WORLD_FUNCTIONS(functions), .size = 2, .begin = begin, .end = end)

/* The caller is gone before it has pulled: nobody reads any more. On the simulation. */
static void reader_dies(weft_agent *agent, void *arg)
{
    weft_future *future;
    if (weft_agent_rank(agent)) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "defer", WEFT_NO_VALUES, NULL, &future));
        for (;;)
            world_sleep_ms(scene, 1000);
    }
    while (!atomic_load(&deferred))
        world_sleep_ms(scene, 1);
    weft_future *told = atomic_exchange(&unread, NULL);
    weft_sim_pause(scene->sim, 1);
    weft_call_finish(atomic_exchange(&deferred, NULL), WEFT_OK);
    must_be_read(store);
    weft_sim_kill(scene->sim, 1);
    MUST_OK(weft_future_wait(told, 60000));
    MUST_OK(weft_tensor_wait_unread(store, 0));
    weft_future_unref(told);
}

WORLD_TEST(reader_dies, 10, 0, WORLD_FUNCTIONS(functions), .size = 2, .begin = begin, .end = end)

static void misuse(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    assert_int_equal(weft_tensor_wait_unread(NULL, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_wait_unread(x, -2), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_wait_unread(x, WEFT_FOREVER), WEFT_OK);
    assert_null(weft_call_unread(NULL));
    weft_tensor_unref(x);
}

UNIT_MAIN(test_no_read_is_torn, test_given_is_read, test_not_given_any_more, test_reader_dies, misuse)
