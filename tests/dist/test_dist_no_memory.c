/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_no_memory.c - memory is out for a moment during a pass, or while a tape or an optimizer is made. The
 * pass ends well or with WEFT_ERR_MEMORY, soon and on all workers, and never waits for its time limit. The linker
 * replaces the library's wfi_calloc by the one below.
 */
#include "dist/parameters.h"
#include "make.h"

void *__real_wfi_calloc(size_t count, size_t size);
void *__wrap_wfi_calloc(size_t count, size_t size);

#define LIMIT_MS 20000
#define SOON_MS 1000

static int until_failure = -1; /* allocations that still succeed; -1: all */
static int failures;           /* so many fail then, one after the other */
static bool failed;
static int ended_soon; /* passes that failed because memory was out */

void *__wrap_wfi_calloc(size_t count, size_t size)
{
    if (until_failure < 0 || (until_failure > 0 && until_failure--))
        return __real_wfi_calloc(count, size);
    if (--failures <= 0)
        until_failure = -1;
    failed = true;
    return NULL;
}

static world *now; /* that plays */
static weft_agent *agents[WORKERS];

static void begin(world *w)
{
    make_parameters(w);
    now = w;
    until_failure = -1;
}

static void nobody_is_dead(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->death_timeout_ms = WEFT_FOREVER;
}

static const weft_function functions[] = {
    {.name = "pass_on", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_pass_on},
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times},
};

static weft_module *make_layer(int64_t argument)
{
    (void)argument;
    return linear_create(2, 2, false, 1, NULL);
}

static weft_status status_of(const weft_error *error)
{
    weft_status status = weft_error_code(error);
    return status == WEFT_ERR_REMOTE ? weft_error_handler_code(error) : status;
}

static int64_t ms_since(weft_agent *agent, uint64_t began)
{
    return (int64_t)((weft_agent_now_ns(agent) - began) / 1000000);
}

/* The pass ends everywhere, also where it failed, before its context does. */
static void await_end_everywhere(void)
{
    for (int rank = 0; rank < WORKERS; rank++) {
        size_t passes = 1;
        for (int ms = 0; (void)weft_agent_contexts(agents[rank], &passes), passes; ms++) {
            MUST(ms < SOON_MS);
            world_sleep_ms(now, 1);
        }
    }
}

/* The end of a context gets through, however often memory is out; then nothing is left of it anywhere. */
static void close_and_look_everywhere(weft_context *c)
{
    weft_future *gone;
    size_t passes;
    weft_context_close(c, &gone);
    MUST_OK(weft_future_wait(gone, LIMIT_MS));
    weft_future_unref(gone);
    for (int rank = 0; rank < WORKERS; rank++)
        MUST(weft_agent_contexts(agents[rank], &passes) == 0 && passes == 0);
}

/* One pass, during which allocation `step` and those behind it fail. Returns whether any did. */
static bool pass_without_memory(weft_agent *agent, int step, int count, bool stopped)
{
    weft_context *c;
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *far = call_on(t, agent, 1, "pass_on", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(1))),
                *near = call_on(t, agent, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *loss = weft_sum(t, weft_add(t, result(far, 0), result(near, 0)));
    if (stopped)
        weft_sim_pause(now->sim, 2);
    failed = false;
    failures = count;
    until_failure = step;
    uint64_t began = weft_agent_now_ns(agent);
    weft_dist_backward(t, loss, &(weft_pass_options){.timeout_ms = LIMIT_MS});
    until_failure = -1;
    weft_status status = status_of(weft_tape_error(t));
    bool timed_out = status == WEFT_ERR_TIMEOUT && stopped; /* rank 2 stood still, and what failed was made good */
    ended_soon += status == WEFT_ERR_MEMORY;
    if (stopped)
        weft_sim_resume(now->sim, 2);
    if (status && !timed_out && (status != WEFT_ERR_MEMORY || ms_since(agent, began) > SOON_MS))
        fprintf(stderr, "step %d, %d failures: %s after %lld ms: %s\n", step, count, weft_status_name(status),
                (long long)ms_since(agent, began), weft_error_message(weft_tape_error(t)));
    MUST(!status || timed_out || (status == WEFT_ERR_MEMORY && ms_since(agent, began) <= SOON_MS));
    if (!status)
        must_have_gradient(c, x, 3 * 4 + 3, -2 * -1 - 2);
    await_end_everywhere();
    weft_values_unref(far);
    weft_values_unref(near);
    weft_tape_close(t);
    weft_tensor_unref(x);
    close_and_look_everywhere(c);
    return failed;
}

static void play(weft_agent *agent, bool stopped)
{
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    ended_soon = 0;
    for (int count = 1; count <= 9; count += 4)
        for (int step = 0; pass_without_memory(agent, step, count, stopped); step++)
            MUST(step < 1000);
    MUST(ended_soon > 10);
}

/* Each allocation of a pass in turn, alone and with those behind it. */
static void each_allocation(weft_agent *agent, void *arg)
{
    (void)arg;
    play(agent, false);
}
WORLD_TEST(each_allocation, 4, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin, .end = drop_parameters,
           .adjust = nobody_is_dead)

/* Rank 2 stands still. A worker that has no memory does not wait for it. */
static void a_peer_that_is_stopped(weft_agent *agent, void *arg)
{
    (void)arg;
    play(agent, true);
}
WORLD_TEST(a_peer_that_is_stopped, 2, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters, .adjust = nobody_is_dead)

/* A tape that cannot be opened for want of memory has failed, or is NULL; no context is left. */
static void opening(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    failed = true;
    for (int step = 0; failed; step++) {
        failed = false;
        failures = 1;
        until_failure = step;
        weft_tape *t = weft_dist_tape_open(agent, NULL);
        until_failure = -1;
        MUST_BE(weft_tape_status(t), failed ? WEFT_ERR_MEMORY : WEFT_OK);
        weft_tape_close(t);
        MUST(step < 100 && weft_agent_contexts(agent, NULL) == 0);
    }
}
WORLD_TEST(opening, 1, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin, .end = drop_parameters,
           .adjust = nobody_is_dead)

/* An optimizer over a tensor of this worker and a module of another one is made, or not for want of memory. */
static void creating_an_optimizer(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_rref *layer;
    world_serve_module(agent, "layer", make_layer);
    if (weft_agent_rank(agent) != 0)
        return;
    world_sleep_ms(w, 100);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "layer", WEFT_NO_VALUES, NULL, &layer));
    const weft_value own = weft_of_tensors((weft_tensors){parameters, 1});
    ended_soon = 0;
    failed = true;
    for (int step = -1; failed; step++) { /* first without a failure: the executors have their fibers then */
        weft_dist_optimizer *sgd = NULL;
        weft_error *error = NULL;
        failed = step < 0;
        failures = 1;
        until_failure = step;
        weft_status status =
            weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_list(WEFT_VALUES(own)), weft_of_rref(layer)),
                                       &(weft_optimizer_spec){.type = &weft_adam_type}, &sgd, &error);
        until_failure = -1;
        MUST(!status || status_of(error) == WEFT_ERR_MEMORY);
        ended_soon += !!status;
        weft_error_unref(error);
        weft_dist_optimizer_unref(sgd);
        MUST(step < 1000);
    }
    MUST(ended_soon > 3);
    weft_rref_unref(layer);
}
WORLD_TEST(creating_an_optimizer, 2, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters, .adjust = nobody_is_dead)

UNIT_MAIN(test_each_allocation, test_a_peer_that_is_stopped, test_opening, test_creating_an_optimizer)
