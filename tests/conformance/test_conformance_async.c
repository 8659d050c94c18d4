/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_async.c - items 35 to 39: handlers that answer later. The reference marks such a function and
 * takes the future it returns; here the handler takes the call, returns WEFT_DEFERRED, and whoever has the answer
 * finishes it.
 */
#include "conformance/conformance.h"

#include <pthread.h>
#include <stdlib.h>

#include "unit.h"

/* ---- Handlers that answer when a call of theirs is answered --------------------------------------------------- */

static int64_t value_of(weft_future *future)
{
    int64_t n = -1;
    MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &n));
    return n;
}

/* The last step of every deferred handler here: what the future holds, or how it failed. */
static void finish_with(weft_future *future, void *arg)
{
    weft_call *call = arg;
    const weft_error *error = weft_future_error(future);
    if (error)
        weft_call_fail(call, weft_error_code(error), "%s", weft_error_message(error));
    else
        weft_call_give(call, WEFT_VALUES(weft_of_i64(value_of(future))));
    weft_call_finish(call, WEFT_OK);
}

/* (to, x, y): the sum, as worker `to` finds it. */
static weft_status serve_async_add(weft_call *call, void *user)
{
    weft_target to = weft_to_rank((int)weft_call_i64(call, 0));
    weft_future *asked = start(weft_call_agent(call), to, "add",
                               WEFT_VALUES(weft_of_i64(weft_call_i64(call, 1)), weft_of_i64(weft_call_i64(call, 2))));
    MUST_OK(weft_future_add_done_callback(asked, finish_with, weft_call_defer(call), NULL));
    weft_future_unref(asked);
    return WEFT_DEFERRED;
}

/* Holds what a chain still needs. */
typedef struct chain {
    weft_agent *agent;
    int to;
    int64_t by;
} chain;

static void drop_values(void *values)
{
    weft_values_unref(values);
}

static void give_to_child(weft_future *future, void *arg)
{
    weft_future *child = arg;
    weft_values *values = weft_values_ref((weft_values *)weft_future_values(future));
    MUST_OK(weft_future_complete(child, values, drop_values));
    weft_future_unref(child);
}

/* Adds once more, by a call of its own. */
static weft_status add_again(weft_future *parent, weft_future *child, void *arg)
{
    chain *link = arg;
    const weft_values *values = weft_future_values(parent);
    if (!values)
        values = weft_future_payload(parent);
    int64_t n = 0;
    MUST_OK(weft_values_get_i64(values, 0, &n));
    weft_future *asked =
        start(link->agent, weft_to_rank(link->to), "add", WEFT_VALUES(weft_of_i64(n), weft_of_i64(link->by)));
    weft_status status = weft_future_add_done_callback(asked, give_to_child, weft_future_ref(child), NULL);
    weft_future_unref(asked);
    return status;
}

static void finish_with_payload(weft_future *future, void *arg)
{
    weft_call *call = arg;
    int64_t n = 0;
    MUST_OK(weft_values_get_i64(weft_future_payload(future), 0, &n));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(n)));
    weft_call_finish(call, WEFT_OK);
}

/* (to, x, by, times): x + by * times, one call each, chained. */
static weft_status serve_async_chain(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    int to = (int)weft_call_i64(call, 0);
    int64_t by = weft_call_i64(call, 2), times = weft_call_i64(call, 3);
    weft_future *last =
        start(agent, weft_to_rank(to), "add", WEFT_VALUES(weft_of_i64(weft_call_i64(call, 1)), weft_of_i64(by)));
    for (int64_t i = 1; i < times; i++) {
        chain *link = malloc(sizeof(*link));
        MUST(link);
        *link = (chain){agent, to, by};
        weft_future *next = weft_future_then(last, add_again, link, free);
        weft_future_unref(last);
        last = next;
    }
    weft_done_fn finish = times > 1 ? finish_with_payload : finish_with;
    MUST_OK(weft_future_add_done_callback(last, finish, weft_call_defer(call), NULL));
    weft_future_unref(last);
    return WEFT_DEFERRED;
}

/* (to, x, y): an async function that asks another async function. */
static weft_status serve_async_nested(weft_call *call, void *user)
{
    weft_target to = weft_to_rank((int)weft_call_i64(call, 0));
    weft_future *asked = start(weft_call_agent(call), to, "async add",
                               WEFT_VALUES(weft_of_i64(weft_agent_rank(weft_call_agent(call))),
                                           weft_of_i64(weft_call_i64(call, 1)), weft_of_i64(weft_call_i64(call, 2))));
    MUST_OK(weft_future_add_done_callback(asked, finish_with, weft_call_defer(call), NULL));
    weft_future_unref(asked);
    return WEFT_DEFERRED;
}

enum { FAN = 12 };

static void finish_with_sum(weft_future *future, void *arg)
{
    weft_call *call = arg;
    weft_future **parts = weft_future_payload(future);
    int64_t sum = 0;
    for (int i = 0; i < FAN; i++)
        sum += value_of(parts[i]);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(sum)));
    weft_call_finish(call, WEFT_OK);
}

/* (x): the sum of x + i over all i, each from another worker. */
static weft_status serve_async_fanout(weft_call *call, void *user)
{
    weft_future *parts[FAN];
    weft_agent *agent = weft_call_agent(call);
    for (int i = 0; i < FAN; i++)
        parts[i] = start(agent, weft_to_rank(i % WORKERS), "add",
                         WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0)), weft_of_i64(i)));
    weft_future *all = weft_future_when_all(parts, FAN);
    MUST_OK(weft_future_add_done_callback(all, finish_with_sum, weft_call_defer(call), NULL));
    for (int i = 0; i < FAN; i++)
        weft_future_unref(parts[i]);
    weft_future_unref(all);
    return WEFT_DEFERRED;
}

/* ---- Handlers that another thread answers --------------------------------------------------------------------- */

static void *finish_later(void *arg)
{
    weft_call *call = arg;
    item_sleep_ms(10);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 1) + weft_call_i64(call, 2))));
    weft_call_finish(call, WEFT_OK);
    return NULL;
}

static void finish_in_fiber(weft_sim *sim, int rank, void *arg)
{
    finish_later(arg);
}

/* (unused, x, y) */
static weft_status serve_async_ctor(weft_call *call, void *user)
{
    pthread_t thread;
    weft_call_defer_keeping(call); /* the arguments too are for the other */
    if (item_sim()) {
        int rank = weft_agent_rank(weft_call_agent(call));
        MUST_OK(weft_sim_spawn(item_sim(), rank, finish_in_fiber, call));
    } else {
        MUST(!pthread_create(&thread, NULL, finish_later, call));
        pthread_detach(thread);
    }
    return WEFT_DEFERRED;
}

/* ---- Handlers that do it wrong -------------------------------------------------------------------------------- */

static weft_status serve_raise_before(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_FORMAT, "raised before");
    return WEFT_ERR_FORMAT;
}

static weft_status serve_raise_later(weft_call *call, void *user)
{
    weft_call *taken = weft_call_defer(call);
    weft_call_fail(taken, WEFT_ERR_FORMAT, "raised later");
    weft_call_finish(taken, WEFT_ERR_FORMAT);
    return WEFT_DEFERRED;
}

static weft_status serve_wrong_type(weft_call *call, void *user)
{
    weft_call *taken = weft_call_defer(call);
    weft_call_give(taken, WEFT_VALUES(weft_of_string("no number")));
    weft_call_finish(taken, WEFT_OK);
    return WEFT_DEFERRED;
}

static weft_status serve_no_result(weft_call *call, void *user)
{
    weft_call_finish(weft_call_defer(call), WEFT_OK);
    return WEFT_DEFERRED;
}

static weft_status serve_not_deferred(weft_call *call, void *user)
{
    return WEFT_DEFERRED;
}

/* ---- A method ------------------------------------------------------------------------------------------------- */

static void drop_nothing(void *object) {}
static const weft_object_type adder_type = {.name = "adder", .drop = drop_nothing};
static int64_t adder_base = 100;

static weft_status serve_new_adder(weft_call *call, void *user)
{
    weft_call_give_object(call, &adder_type, &adder_base);
    return WEFT_OK;
}

/* (self, to, x): base + x, from worker `to`. */
static weft_status serve_method(weft_call *call, void *user)
{
    int64_t *base = NULL;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &adder_type, ITEM_PATIENCE_MS, (void **)&base);
    if (status)
        return status;
    weft_future *asked = start(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 1)), "add",
                               WEFT_VALUES(weft_of_i64(*base), weft_of_i64(weft_call_i64(call, 2))));
    MUST_OK(weft_future_add_done_callback(asked, finish_with, weft_call_defer(call), NULL));
    weft_future_unref(asked);
    return WEFT_DEFERRED;
}

#define THREE_IN WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64
static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "async add", .takes = {THREE_IN}, .gives = {WEFT_TYPE_I64}, .run = serve_async_add},
    {.name = "async chain", .takes = {THREE_IN, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_async_chain},
    {.name = "async nested", .takes = {THREE_IN}, .gives = {WEFT_TYPE_I64}, .run = serve_async_nested},
    {.name = "async fanout", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_async_fanout},
    {.name = "async ctor", .takes = {THREE_IN}, .gives = {WEFT_TYPE_I64}, .run = serve_async_ctor},
    {.name = "raise before", .gives = {WEFT_TYPE_I64}, .run = serve_raise_before},
    {.name = "raise later", .gives = {WEFT_TYPE_I64}, .run = serve_raise_later},
    {.name = "wrong type", .gives = {WEFT_TYPE_I64}, .run = serve_wrong_type},
    {.name = "no result", .gives = {WEFT_TYPE_I64}, .run = serve_no_result},
    {.name = "not deferred", .gives = {WEFT_TYPE_I64}, .run = serve_not_deferred},
    {.name = "new adder", .gives = {WEFT_TYPE_ANY}, .run = serve_new_adder},
    {.name = "method",
     .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = serve_method},
};

/* ---- In the three ways of calling ----------------------------------------------------------------------------- */

static void in_three_ways(weft_agent *agent, int to, const char *function, weft_args args, int64_t wanted)
{
    MUST(ask(agent, weft_to_rank(to), function, args) == wanted);
    MUST(future_i64(start(agent, weft_to_rank(to), function, args)) == wanted);
    weft_rref *made = make(agent, weft_to_rank(to), function, args);
    MUST(read_i64(made) == wanted);
    weft_rref_unref(made);
}

static void fail_in_three_ways(weft_agent *agent, const char *function, weft_status remote, const char *text)
{
    for (int to = 0; to < WORKERS; to++) { /* ourselves too */
        weft_values *values = NULL;
        weft_error *error = fail_of(agent, weft_to_rank(to), function, WEFT_NO_VALUES, WEFT_ERR_REMOTE);
        MUST_BE(weft_error_handler_code(error), remote);
        MUST(says(error, text) && weft_error_worker(error) == to);
        weft_error_unref(error);
        weft_future *future = start(agent, weft_to_rank(to), function, WEFT_NO_VALUES);
        MUST_BE(weft_future_wait(future, ITEM_PATIENCE_MS), WEFT_ERR_REMOTE);
        MUST_BE(weft_error_handler_code(weft_future_error(future)), remote);
        MUST(says(weft_future_error(future), text));
        weft_future_unref(future);
        weft_rref *made = make(agent, weft_to_rank(to), function, WEFT_NO_VALUES);
        MUST_BE(weft_rref_to_here(made, ITEM_PATIENCE_MS, &values, NULL), WEFT_ERR_REMOTE);
        weft_rref_unref(made);
    }
}

/* One executor thread a worker: a function that waited for another would be stuck. */
static void one_worker(weft_agent_options *options)
{
    options->threads = 1;
}

static void async_functions(weft_agent *agent, void *arg)
{
    int a = next_rank(agent), b = (a + 1) % WORKERS;
    in_three_ways(agent, a, "async add", WEFT_VALUES(weft_of_i64(b), weft_of_i64(1), weft_of_i64(2)), 3);
    in_three_ways(agent, a, "async add", WEFT_VALUES(weft_of_i64(a), weft_of_i64(1), weft_of_i64(2)), 3);
    in_three_ways(agent, a, "async chain", WEFT_VALUES(weft_of_i64(b), weft_of_i64(1), weft_of_i64(2), weft_of_i64(1)),
                  3);
    in_three_ways(agent, a, "async chain", WEFT_VALUES(weft_of_i64(b), weft_of_i64(1), weft_of_i64(2), weft_of_i64(20)),
                  41);
    in_three_ways(agent, a, "async nested", WEFT_VALUES(weft_of_i64(b), weft_of_i64(5), weft_of_i64(6)), 11);
    in_three_ways(agent, a, "async fanout", WEFT_VALUES(weft_of_i64(10)), 10 * FAN + FAN * (FAN - 1) / 2);
    in_three_ways(agent, weft_agent_rank(agent), "async nested",
                  WEFT_VALUES(weft_of_i64(a), weft_of_i64(5), weft_of_i64(6)), 11);
}

ITEM(item_35_async_functions, .program = async_functions, .adjust = one_worker, ITEM_FUNCTIONS(functions))

static void finished_elsewhere(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++)
        in_three_ways(agent, to, "async ctor", WEFT_VALUES(weft_of_i64(0), weft_of_i64(to), weft_of_i64(2)), to + 2);
}

ITEM(item_36_async_function_finished_by_another_thread, .program = finished_elsewhere, .adjust = one_worker,
     ITEM_FUNCTIONS(functions))

static void failing_async(weft_agent *agent, void *arg)
{
    fail_in_three_ways(agent, "raise before", WEFT_ERR_FORMAT, "raised before");
    fail_in_three_ways(agent, "raise later", WEFT_ERR_FORMAT, "raised later");
    fail_in_three_ways(agent, "wrong type", WEFT_ERR_TYPE, "string where the signature says int64");
    fail_in_three_ways(agent, "no result", WEFT_ERR_STATE, "no results");
}

ITEM(item_37_async_functions_that_raise_or_give_the_wrong_type, .program = failing_async, ITEM_FUNCTIONS(functions))

/* Methods are functions that take a reference first; by the reference's helpers, in three ways. */
static void async_methods(weft_agent *agent, void *arg)
{
    int a = next_rank(agent), b = (a + 1) % WORKERS;
    weft_args args = WEFT_VALUES(weft_of_i64(b), weft_of_i64(7));
    weft_rref *object = make(agent, weft_to_rank(a), "new adder", WEFT_NO_VALUES), *made = NULL;
    weft_values *got = NULL;
    weft_future *future = NULL;
    int64_t n = 0;
    MUST_OK(weft_rref_rpc_sync(object, "method", args, NULL, &got));
    MUST(!weft_values_get_i64(got, 0, &n) && n == 107);
    weft_values_unref(got);
    MUST_OK(weft_rref_rpc_async(object, "method", args, NULL, &future));
    MUST(future_i64(future) == 107);
    MUST_OK(weft_rref_rpc_remote(object, "method", args, NULL, &made));
    weft_rref_unref(object);
    MUST(read_i64(made) == 107);
    weft_rref_unref(made);
}

ITEM(item_38_async_methods, .program = async_methods, .adjust = one_worker, ITEM_FUNCTIONS(functions))

/* A future is no value: none can be passed or given. What remains of the mistake is to promise an answer and not
 * take the call. */
static void not_deferred(weft_agent *agent, void *arg)
{
    fail_in_three_ways(agent, "not deferred", WEFT_ERR_STATE, "weft_call_defer");
}

ITEM(item_39_deferred_without_taking_the_call, .program = not_deferred, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_35_async_functions, item_36_async_function_finished_by_another_thread,
          item_37_async_functions_that_raise_or_give_the_wrong_type, item_38_async_methods,
          item_39_deferred_without_taking_the_call)
