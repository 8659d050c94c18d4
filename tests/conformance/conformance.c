/* SPDX-License-Identifier: Apache-2.0 */
/* conformance.c - see conformance.h: worlds for items, and the functions and calls that several of them use. */
#include "conformance/conformance.h"

#include <pthread.h>
#include <stdio.h>

#include "make.h"
#include "tensors.h"
#include "unit.h"

/* ---- Worlds ---------------------------------------------------------------------------------------------------- */

/* One item at a time in this process. */
static const item *now;
static world *now_in;

world_fabric item_fabric(void)
{
    return now_in->fabric;
}

weft_sim *item_sim(void)
{
    return now_in->sim;
}

void item_sleep_ms(int ms)
{
    world_sleep_ms(now_in, ms);
}

void item_await(const atomic_int *flag, int least)
{
    for (int ms = 0; ms < ITEM_PATIENCE_MS && atomic_load(flag) < least; ms++)
        item_sleep_ms(1);
    MUST(atomic_load(flag) >= least);
}

static void adjust(weft_agent_options *options, void *arg)
{
    options->leaks_fail = !now->leaks;
    if (now->adjust)
        now->adjust(options);
}

void item_options(int rank, weft_agent_options *out)
{
    *out = (weft_agent_options){.functions = now->functions,
                                .function_count = now->function_count,
                                .has_rank = true,
                                .rank = rank,
                                .world_size = now_in->size,
                                .master_addr = "127.0.0.1",
                                .master_port = now_in->port,
                                .fabric = world_fabric_name(now_in->fabric),
                                .sim = now_in->sim,
                                .rendezvous_timeout_ms = ITEM_PATIENCE_MS};
    adjust(out, NULL);
}

weft_status item_open(int rank, const char *name, weft_agent **out, weft_error **error)
{
    weft_agent_options options;
    item_options(rank, &options);
    options.name = name;
    return weft_agent_open(&options, out, error);
}

static void *body_thread(void *arg)
{
    now->body((int)(intptr_t)arg);
    return NULL;
}

static void body_fiber(weft_sim *sim, int rank, void *arg)
{
    now->body(rank);
}

static void run_bodies(world *w)
{
    pthread_t threads[256];
    now_in = w;
    w->port = world_free_port();
    if (w->fabric == WORLD_SIM) {
        w->sim = sim_open(&(weft_sim_options){.seed = w->seed});
        assert_non_null(w->sim);
        for (int rank = 0; rank < w->size; rank++)
            assert_int_equal(weft_sim_spawn(w->sim, rank, body_fiber, NULL), WEFT_OK);
        assert_string_equal(weft_status_name(weft_sim_run(w->sim, 3600 * 1000)), "OK");
        weft_sim_close(w->sim);
        w->sim = NULL;
        return;
    }
    for (int rank = 0; rank < w->size; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, body_thread, (void *)(intptr_t)rank), 0);
    for (int rank = 0; rank < w->size; rank++)
        pthread_join(threads[rank], NULL);
}

void item_run_on(const item *what, world_fabric fabric, uint64_t seed)
{
    world w = {.fabric = fabric,
               .seed = seed,
               .size = what->size ? what->size : WORKERS,
               .functions = what->functions,
               .function_count = what->function_count,
               .program = what->program,
               .adjust = adjust,
               .close_may_fail = what->close_may_fail};
    now = what;
    now_in = &w;
    atomic_store(&held_count, 0);
    if (what->body)
        run_bodies(&w);
    else
        world_run(&w);
    if (what->after)
        what->after();
}

void item_run(const item *what)
{
    for (uint64_t seed = 1; seed <= SEEDS && !what->only_tcp; seed++)
        item_run_on(what, WORLD_SIM, seed);
    for (int fabric = WORLD_SIM + 1; fabric < WORLD_FABRICS && !what->only_sim; fabric++)
        item_run_on(what, (world_fabric)fabric, 0);
}

/* ---- Functions ------------------------------------------------------------------------------------------------- */

weft_status serve_nothing(weft_call *call, void *user)
{
    return WEFT_OK;
}

weft_status serve_echo(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_list(weft_call_list(call, 0))));
    return WEFT_OK;
}

weft_status serve_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + weft_call_i64(call, 1))));
    return WEFT_OK;
}

weft_status serve_rank(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_agent_rank(weft_call_agent(call)))));
    return WEFT_OK;
}

weft_status serve_sum(weft_call *call, void *user)
{
    weft_tensor *a = weft_call_tensor(call, 0), *b = weft_call_tensor(call, 1);
    if (weft_tensor_dtype(a) != WEFT_DTYPE_FLOAT32 || weft_tensor_dtype(b) != WEFT_DTYPE_FLOAT32)
        return WEFT_ERR_TYPE;
    if (!weft_tensor_same_shape(a, b))
        return WEFT_ERR_SHAPE;
    weft_tensor *sum = tensor_clone(a), *second = tensor_contiguous(b);
    float *to = weft_tensor_data(sum);
    const float *from = weft_tensor_data(second);
    for (int64_t i = 0; i < weft_tensor_numel(sum); i++)
        to[i] += from[i];
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(sum)));
    weft_tensor_unref(sum);
    weft_tensor_unref(second);
    return WEFT_OK;
}

enum { HELD_MAX = 4096 };
static _Atomic(weft_call *) held[HELD_MAX];
atomic_int held_count;

weft_status serve_hold(weft_call *call, void *user)
{
    weft_call *taken = weft_call_defer(call);
    for (int i = 0; i < HELD_MAX; i++) {
        weft_call *empty = NULL;
        if (!atomic_compare_exchange_strong(&held[i], &empty, taken))
            continue;
        atomic_fetch_add(&held_count, 1);
        return WEFT_DEFERRED;
    }
    MUST(!"more calls held than there is room for");
    return WEFT_ERR_BUSY;
}

int release_held(int64_t value)
{
    int released = 0;
    for (int i = 0; i < HELD_MAX; i++) {
        weft_call *call = atomic_exchange(&held[i], NULL);
        if (!call)
            continue;
        atomic_fetch_sub(&held_count, 1);
        weft_call_give(call, WEFT_VALUES(weft_of_i64(value)));
        weft_call_finish(call, WEFT_OK);
        released++;
    }
    return released;
}

void answer_held_until(weft_future *done, int64_t value)
{
    for (int ms = 0; ms < ITEM_PATIENCE_MS && !weft_future_done(done); ms++) {
        release_held(value);
        item_sleep_ms(1);
    }
    MUST(weft_future_done(done));
}

void forget_held(void)
{
    for (int i = 0; i < HELD_MAX; i++)
        if (atomic_exchange(&held[i], NULL))
            atomic_fetch_sub(&held_count, 1);
}

/* ---- Calling --------------------------------------------------------------------------------------------------- */

static int64_t first_i64(const weft_values *values)
{
    int64_t n = 0;
    MUST_OK(weft_values_get_i64(values, 0, &n));
    return n;
}

static void print_failure(weft_status status, const char *function, const weft_error *error)
{
    if (!status)
        return;
    fprintf(stderr, "\"%s\" failed: ", function);
    weft_error_print(error, stderr);
}

int64_t ask(weft_agent *agent, weft_target to, const char *function, weft_args arguments)
{
    weft_values *got = NULL;
    weft_error *error = NULL;
    weft_status status = weft_rpc_sync(agent, to, function, arguments, &(weft_rpc_options){.error = &error}, &got);
    print_failure(status, function, error);
    MUST_OK(status);
    int64_t n = first_i64(got);
    weft_values_unref(got);
    return n;
}

void tell(weft_agent *agent, weft_target to, const char *function, weft_args arguments)
{
    weft_error *error = NULL;
    weft_status status = weft_rpc_sync(agent, to, function, arguments, &(weft_rpc_options){.error = &error}, NULL);
    print_failure(status, function, error);
    MUST_OK(status);
}

weft_future *start_for(weft_agent *agent, weft_target to, const char *function, weft_args arguments, int64_t timeout_ms)
{
    weft_future *future = NULL;
    MUST_OK(weft_rpc_async(agent, to, function, arguments, &(weft_rpc_options){.timeout_ms = timeout_ms}, &future));
    return future;
}

weft_future *start(weft_agent *agent, weft_target to, const char *function, weft_args arguments)
{
    return start_for(agent, to, function, arguments, 0);
}

weft_rref *make(weft_agent *agent, weft_target to, const char *function, weft_args arguments)
{
    weft_rref *rref = NULL;
    MUST_OK(weft_rpc_remote(agent, to, function, arguments, NULL, &rref));
    return rref;
}

int64_t read_i64(weft_rref *rref)
{
    weft_values *values = NULL;
    MUST_OK(weft_rref_to_here(rref, ITEM_PATIENCE_MS, &values, NULL));
    int64_t n = first_i64(values);
    weft_values_unref(values);
    return n;
}

int64_t future_i64(weft_future *done)
{
    MUST_OK(weft_future_wait(done, WEFT_FOREVER));
    int64_t n = first_i64(weft_future_values(done));
    weft_future_unref(done);
    return n;
}

weft_error *fail_of(weft_agent *agent, weft_target to, const char *function, weft_args arguments, weft_status status)
{
    weft_error *error = NULL;
    MUST_BE(weft_rpc_sync(agent, to, function, arguments, &(weft_rpc_options){.error = &error}, NULL), status);
    MUST_BE(weft_error_code(error), status);
    return error;
}

void must_end(weft_future *future, weft_status status)
{
    weft_status waited = weft_future_wait(future, ITEM_PATIENCE_MS);
    MUST(weft_future_done(future));
    MUST_BE(waited, status);
    MUST_BE(weft_error_code(weft_future_error(future)), status);
    weft_future_unref(future);
}

bool says(const weft_error *error, const char *text)
{
    bool has = strstr(weft_error_message(error), text) != NULL;
    if (!has)
        fprintf(stderr, "no \"%s\" in \"%s\"\n", text, weft_error_message(error));
    return has;
}
