/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_within.c - calls made for the sake of a call being served: the time limit that travels, cancelling that
 * travels, and failures that arrive with the whole way they came.
 */
#include "rpc/world.h"

#include <time.h>

#define SIZE 4

static world *the_world;
static weft_call *_Atomic held[SIZE];
static atomic_int relays_begun, relays_done, inner_status, bystander_ok;

/* ---- Handlers ------------------------------------------------------------------------------------------------- */

static weft_status run_hold(weft_call *call, void *user)
{
    atomic_store(&held[weft_agent_rank(weft_call_agent(call))], weft_call_defer(call));
    return WEFT_DEFERRED;
}

/* Waits until the call that is held here is wanted no more, finishes it, and says why that was. */
static weft_status run_await_unwanted(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_call *one = atomic_load(&held[weft_agent_rank(agent)]);
    MUST(one);
    weft_future *unwanted = weft_call_cancellation(one);
    weft_status why = weft_future_wait(unwanted, 20000);
    MUST(weft_call_cancelled(one));
    weft_future_unref(unwanted);
    atomic_store(&held[weft_agent_rank(agent)], NULL);
    weft_call_finish(one, WEFT_OK);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(why)));
    return WEFT_OK;
}

static weft_status run_is_held(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_bool(atomic_load(&held[weft_agent_rank(weft_call_agent(call))]) != NULL)));
    return WEFT_OK;
}

static weft_status run_time_left(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_time_left(call))));
    return WEFT_OK;
}

/* Calls argument 1 at the rank of argument 0, for this call, as long as it takes. */
static weft_status run_relay(weft_call *call, void *user)
{
    weft_rpc_options options = {.parent = call, .timeout_ms = WEFT_FOREVER};
    weft_values *out = NULL;
    weft_status status = weft_rpc_sync(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 0)),
                                       weft_call_string(call, 1), WEFT_NO_VALUES, &options, &out);
    atomic_store(&inner_status, status);
    atomic_fetch_add(&relays_done, 1);
    if (!status)
        weft_call_give(call, weft_values_args(out));
    weft_values_unref(out);
    return status;
}

/* The same without a worker that waits. */
static void relayed(weft_future *future, void *arg)
{
    atomic_store(&inner_status, weft_error_code(weft_future_error(future)));
    weft_call_fail_with(arg, weft_future_error(future));
    if (weft_future_values(future))
        weft_call_give(arg, weft_values_args(weft_future_values(future)));
    atomic_fetch_add(&relays_done, 1);
    weft_call_finish(arg, WEFT_OK);
}

static weft_status run_fail_with_own(weft_call *call, void *user)
{
    weft_error *own = weft_error_create(WEFT_ERR_STATE, "not today");
    weft_call_fail_with(call, own);
    weft_error_unref(own);
    return WEFT_OK;
}

static weft_status run_relay_later(weft_call *call, void *user)
{
    weft_rpc_options options = {.parent = call, .timeout_ms = WEFT_FOREVER};
    weft_future *inner;
    weft_status status = weft_rpc_async(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 0)),
                                        weft_call_string(call, 1), WEFT_NO_VALUES, &options, &inner);
    if (status)
        return status;
    status = weft_future_add_done_callback(inner, relayed, weft_call_defer(call), NULL);
    MUST_OK(status);
    weft_future_unref(inner);
    return WEFT_DEFERRED;
}

/* Does not wait for what it starts: that goes on alone. */
static void went_on(weft_future *future, void *arg)
{
    atomic_fetch_add(&bystander_ok, !weft_future_error(future));
}

static weft_status run_start_and_go(weft_call *call, void *user)
{
    weft_rpc_options options = {.parent = call, .timeout_ms = WEFT_FOREVER};
    weft_future *inner;
    MUST_OK(weft_rpc_async(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 0)), weft_call_string(call, 1),
                           WEFT_NO_VALUES, &options, &inner));
    MUST_OK(weft_future_add_done_callback(inner, went_on, NULL, NULL));
    weft_future_unref(inner);
    return WEFT_OK;
}

/* Starts a call for itself when nobody wants it any more: argument 0, whether at its own worker. */
static weft_status run_too_late(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_future *unwanted = weft_call_cancellation(call), *inner = NULL;
    weft_rpc_options options = {.parent = call, .retry = {.attempts = weft_call_i64(call, 0) == 2 ? 3 : 0}};
    weft_rref *rref = NULL;
    atomic_fetch_add(&relays_begun, 1);
    weft_status why = weft_future_wait(unwanted, 20000);
    int to = weft_call_i64(call, 0) ? weft_agent_rank(agent) : 2;
    MUST(why == WEFT_ERR_TIMEOUT || why == WEFT_ERR_CANCELLED);
    MUST_BE(weft_rpc_async(agent, weft_to_rank(to), "time left", WEFT_NO_VALUES, &options, &inner), why);
    MUST_BE(weft_rpc_remote(agent, weft_to_rank(to), "time left", WEFT_NO_VALUES, &options, &rref), why);
    MUST(!inner && !rref);
    atomic_store(&inner_status, why);
    atomic_fetch_add(&relays_done, 1);
    weft_future_unref(unwanted);
    return WEFT_OK;
}

/* Starts a call for itself past its time limit, before its agent has seen that: nothing fires while it runs. */
static weft_status run_oversleep(weft_call *call, void *user)
{
    weft_rpc_options options = {.parent = call};
    weft_future *inner = NULL;
    while (weft_call_time_left(call) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* what is left of the last millisecond */
    MUST_BE(weft_rpc_async(weft_call_agent(call), weft_to_rank(0), "time left", WEFT_NO_VALUES, &options, &inner),
            WEFT_ERR_TIMEOUT);
    atomic_fetch_add(&relays_done, 1);
    return WEFT_OK;
}

static weft_status run_break(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "broken at the far end");
    return WEFT_OK;
}

static weft_status run_forget_the_way(weft_call *call, void *user)
{
    return weft_rpc_sync(weft_call_agent(call), weft_to_rank(2), "break", WEFT_NO_VALUES, NULL, NULL);
}

/* rank 1 -> 2 -> 3, each for the one before. */
static weft_status run_down_the_line(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    int rank = weft_agent_rank(agent);
    weft_rpc_options options = {.parent = call};
    return weft_rpc_sync(agent, weft_to_rank(rank + 1), rank + 1 == SIZE - 1 ? "break" : "down the line",
                         WEFT_NO_VALUES, &options, NULL);
}

#define ANY_RESULTS .gives = {WEFT_TYPE_REST}
static const weft_function functions[] = {
    {.name = "hold", .run = run_hold, ANY_RESULTS},
    {.name = "await unwanted", .run = run_await_unwanted, ANY_RESULTS},
    {.name = "is held", .run = run_is_held, ANY_RESULTS},
    {.name = "time left", .run = run_time_left, ANY_RESULTS},
    {.name = "fail with own", .run = run_fail_with_own},
    {.name = "relay", .takes = {WEFT_TYPE_I64, WEFT_TYPE_STRING}, .run = run_relay, ANY_RESULTS},
    {.name = "relay later", .takes = {WEFT_TYPE_I64, WEFT_TYPE_STRING}, .run = run_relay_later, ANY_RESULTS},
    {.name = "start and go", .takes = {WEFT_TYPE_I64, WEFT_TYPE_STRING}, .run = run_start_and_go, ANY_RESULTS},
    {.name = "too late", .takes = {WEFT_TYPE_I64}, .run = run_too_late, ANY_RESULTS},
    {.name = "oversleep", .run = run_oversleep},
    {.name = "break", .run = run_break, ANY_RESULTS},
    {.name = "forget the way", .run = run_forget_the_way, ANY_RESULTS},
    {.name = "down the line", .run = run_down_the_line, ANY_RESULTS},
};

/* ---- What rank 0 does ----------------------------------------------------------------------------------------- */

static int64_t ask(weft_agent *agent, int rank, const char *function)
{
    weft_values *out;
    int64_t answer = 0;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), function, WEFT_NO_VALUES, NULL, &out));
    if (weft_values_type(out, 0) == WEFT_TYPE_I64)
        MUST_OK(weft_values_get_i64(out, 0, &answer));
    else {
        bool is;
        MUST_OK(weft_values_get_bool(out, 0, &is));
        answer = is;
    }
    weft_values_unref(out);
    return answer;
}

static void wait_until_held(weft_agent *agent, int rank)
{
    while (!ask(agent, rank, "is held"))
        world_sleep_ms(the_world, 1);
}

static void wait_for_relays(int count)
{
    while (atomic_load(&relays_done) < count)
        world_sleep_ms(the_world, 1);
}

static const char *const relays[] = {"relay", "relay later"};

/* Through a worker to another, through it to itself, and through ourselves. */
static const int ways[][2] = {{1, 2}, {1, 1}, {0, 1}, {0, 0}};

static void time_travels(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_rpc_options limited = {.timeout_ms =
                                    the_world->sim ? 300 : 900}; /* a busy machine gets to the inner call in time */
    for (int i = 0; i < 8; i += the_world->sim ? 1 : 3) {        /* where time is real, three of them */
        const int *way = ways[i / 2];
        weft_values *out;
        int64_t left;
        weft_args question = WEFT_VALUES(weft_of_i64(way[1]), weft_of_string("time left"));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(way[0]), relays[i % 2], question,
                              &(weft_rpc_options){.timeout_ms = 30000}, &out));
        MUST_OK(weft_values_get_i64(out, 0, &left));
        MUST(left > 0 && left <= 30000);
        weft_values_unref(out);
        weft_args args = WEFT_VALUES(weft_of_i64(way[1]), weft_of_string("hold"));
        atomic_store(&relays_done, 0);
        uint64_t begun = weft_agent_now_ns(agent);
        weft_status status = weft_rpc_sync(agent, weft_to_rank(way[0]), relays[i % 2], args, &limited, NULL);
        MUST(status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_REMOTE); /* a relay that timed out may say so in time */
        MUST(weft_agent_now_ns(agent) - begun >= (uint64_t)limited.timeout_ms * 1000000u);
        wait_for_relays(1);
        /* The caller's word that it gives up and the callee's own clock come at the same time. */
        MUST(atomic_load(&inner_status) == WEFT_ERR_TIMEOUT || atomic_load(&inner_status) == WEFT_ERR_CANCELLED);
        MUST(ask(agent, way[1], "await unwanted") != WEFT_OK);
    }
}

static void cancelling_travels(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int i = 0; i < 8; i++) {
        const int *way = ways[i / 2];
        weft_future *future;
        weft_args args = WEFT_VALUES(weft_of_i64(way[1]), weft_of_string("hold"));
        atomic_store(&relays_done, 0);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(way[0]), relays[i % 2], args, NULL, &future));
        wait_until_held(agent, way[1]);
        MUST_OK(weft_future_cancel(future));
        MUST_BE(weft_future_wait(future, 10000), WEFT_ERR_CANCELLED);
        MUST_BE((weft_status)ask(agent, way[1], "await unwanted"), WEFT_ERR_CANCELLED);
        wait_for_relays(1);
        MUST_BE(atomic_load(&inner_status), WEFT_ERR_CANCELLED);
        weft_future_unref(future);
    }
}

static void nothing_starts_too_late(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int i = 0; i < 6; i++) {
        weft_future *future;
        bool cancel = i % 2;
        weft_rpc_options options = {.timeout_ms = cancel ? WEFT_FOREVER : 50};
        atomic_store(&relays_done, 0);
        atomic_store(&relays_begun, 0);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "too late", WEFT_VALUES(weft_of_i64(i / 2)), &options, &future));
        while (cancel && !atomic_load(&relays_begun))
            world_sleep_ms(the_world, 1);
        if (cancel)
            MUST_OK(weft_future_cancel(future));
        weft_status status = weft_future_wait(future, WEFT_FOREVER);
        MUST(status == (cancel ? WEFT_ERR_CANCELLED : WEFT_ERR_TIMEOUT) ||
             (!cancel && !status)); /* an answer may be as quick */
        weft_future_unref(future);
        if (atomic_load(&relays_begun)) /* it may have been given up before it ran at all */
            wait_for_relays(1);
    }
}

/* On a busy machine its time may be over before it runs, and then it never does: it gets more. */
static void no_time_is_left(weft_agent *agent, void *arg)
{
    atomic_store(&relays_done, 0);
    for (int64_t ms = 10; !atomic_load(&relays_done); ms *= 4) {
        MUST(ms < 20000);
        weft_status status = weft_rpc_sync(agent, weft_to_rank(0), "oversleep", WEFT_NO_VALUES,
                                           &(weft_rpc_options){.timeout_ms = ms}, NULL);
        MUST(status == WEFT_OK || status == WEFT_ERR_TIMEOUT); /* the answer may be as quick as its own agent */
    }
}

static void what_is_answered_lets_go(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    atomic_store(&bystander_ok, 0);
    weft_rpc_options options = {.timeout_ms = 20000};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "start and go", WEFT_VALUES(weft_of_i64(2), weft_of_string("hold")),
                          &options, NULL));
    wait_until_held(agent, 2);
    weft_call *one = atomic_exchange(&held[2], NULL);
    MUST(!weft_call_cancelled(one));
    weft_call_finish(one, WEFT_OK);
    while (!atomic_load(&bystander_ok))
        world_sleep_ms(the_world, 1);
}

static void check_way(const weft_error *error, int origin, size_t hops, const int *way)
{
    MUST_BE(weft_error_code(error), WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_SHAPE);
    MUST(strcmp(weft_error_message(error), "broken at the far end") == 0);
    MUST(strcmp(weft_error_function(error), "break") == 0);
    MUST(weft_error_worker(error) == origin && weft_error_hops(error) == hops);
    for (size_t i = 0; i < hops; i++)
        MUST(weft_error_hop(error, i) == way[i]);
}

static void failures_with_their_way(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_error *error = NULL;
    weft_rpc_options options = {.error = &error};
    for (int i = 0; i < 2; i++) {
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), relays[i], WEFT_VALUES(weft_of_i64(2), weft_of_string("break")),
                              &options, NULL),
                WEFT_ERR_REMOTE);
        check_way(error, 2, 1, (int[]){1}); /* 0 <- 1 <- 2 */
        weft_error_unref(error);
        /* Through ourselves: 0 <- 0 <- 1, where the hop over ourselves shows as well. */
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), relays[i], WEFT_VALUES(weft_of_i64(1), weft_of_string("break")),
                              &options, NULL),
                WEFT_ERR_REMOTE);
        check_way(error, 1, 1, (int[]){0});
        weft_error_unref(error);
    }
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "down the line", WEFT_NO_VALUES, &options, NULL), WEFT_ERR_REMOTE);
    check_way(error, 3, 2, (int[]){2, 1}); /* 0 <- 1 <- 2 <- 3 */
    weft_error_unref(error);
    /* One that could not even start, and one whose handler says nothing of where its failure came from. */
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "relay", WEFT_VALUES(weft_of_i64(77), weft_of_string("break")),
                          &options, NULL),
            WEFT_ERR_REMOTE);
    MUST(weft_error_handler_code(error) == WEFT_ERR_NOT_FOUND && strstr(weft_error_message(error), "rank 77"));
    weft_error_unref(error);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "forget the way", WEFT_NO_VALUES, &options, NULL), WEFT_ERR_REMOTE);
    MUST(weft_error_worker(error) == 1 && weft_error_hops(error) == 0);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_REMOTE);
    weft_error_unref(error);
}

/* Whatever becomes of a call: its error says which function was called. */
static void failures_name_the_function(weft_agent *agent, void *arg)
{
    static const struct {
        const char *function;
        int rank;
        weft_status status;
        const char *line;
    } calls[] = {
        {"fail with own", 1, WEFT_ERR_REMOTE, "weft: REMOTE (STATE) in fail with own at worker 1: not today"},
        {"fail with own", 0, WEFT_ERR_REMOTE, "weft: REMOTE (STATE) in fail with own at worker 0: not today"},
        {"nobody's", 1, WEFT_ERR_NOT_FOUND, "weft: NOT_FOUND in nobody's at worker 1: no function \"nobody's\" is"},
        {"nobody's", 0, WEFT_ERR_NOT_FOUND, "weft: NOT_FOUND in nobody's at worker 0: no function \"nobody's\" is"},
        {"fial with own", 1, WEFT_ERR_NOT_FOUND,
         "weft: NOT_FOUND in fial with own at worker 1: no function \"fial with own\" is registered on worker1: did "
         "you mean \"fail with own\"?"},
        {"fial with own", 0, WEFT_ERR_NOT_FOUND,
         "weft: NOT_FOUND in fial with own at worker 0: no function \"fial with own\" is registered on worker0: did "
         "you mean \"fail with own\"?"},
        {"break", 77, WEFT_ERR_NOT_FOUND, "weft: NOT_FOUND in break: no worker has rank 77"},
    };
    if (weft_agent_rank(agent) != 0)
        return;
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        weft_error *error = NULL;
        char *text = NULL;
        size_t size;
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(calls[i].rank), calls[i].function, WEFT_NO_VALUES,
                              &(weft_rpc_options){.error = &error}, NULL),
                calls[i].status);
        FILE *to = open_memstream(&text, &size);
        weft_error_print(error, to);
        fclose(to);
        if (strncmp(text, calls[i].line, strlen(calls[i].line)) != 0)
            fail_msg("%s is not: %s", text, calls[i].line);
        free(text);
        weft_error_unref(error);
    }
}

/* ---- Running -------------------------------------------------------------------------------------------------- */

static void begin(world *w)
{
    the_world = w;
}

WORLD_TEST(time_travels, 25, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(cancelling_travels, 25, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(nothing_starts_too_late, 25, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(no_time_is_left, 0, 1, .size = 1, WORLD_FUNCTIONS(functions), .begin = begin, .adjust = world_no_threads)
WORLD_TEST(what_is_answered_lets_go, 25, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(failures_with_their_way, 25, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(failures_name_the_function, 5, 1, .size = 2, WORLD_FUNCTIONS(functions), .begin = begin)

UNIT_MAIN(test_time_travels, test_cancelling_travels, test_nothing_starts_too_late, test_no_time_is_left,
          test_what_is_answered_lets_go, test_failures_with_their_way, test_failures_name_the_function)
