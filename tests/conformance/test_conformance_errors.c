/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_errors.c - items 17 to 23: handlers that fail, functions and workers that are not there, time
 * limits, and what is left to ask after the end. */
#include "conformance/conformance.h"

#include <stdlib.h>

#include "unit.h"

#define ESCAPES "it said: \"100%s\\n'\n\t{caf\xc3\xa9} \x01\x7f%n\""
#define NOT_WEFTS (-4242) /* a code of the application's own */

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_status serve_raise(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "%s", ESCAPES);
    return WEFT_ERR_SHAPE;
}

/* A failure without a word. */
static weft_status serve_fail_quietly(weft_call *call, void *user)
{
    return (weft_status)weft_call_i64(call, 0);
}

static weft_status serve_fail_at_length(weft_call *call, void *user)
{
    char text[9000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    weft_call_fail(call, WEFT_ERR_IO, "%s", text);
    return WEFT_ERR_IO;
}

/* Asks the next worker, and passes on what it gets. */
static weft_status serve_ask_next(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_error *error = NULL;
    weft_status status = weft_rpc_sync(agent, weft_to_rank(next_rank(agent)), "raise", WEFT_NO_VALUES,
                                       &(weft_rpc_options){.error = &error, .parent = call}, NULL);
    weft_call_fail(call, status, "%s", weft_error_message(error));
    weft_error_unref(error);
    return status;
}

static weft_status serve_time_left(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_time_left(call))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "raise", .gives = {WEFT_TYPE_I64}, .run = serve_raise},
    {.name = "fail quietly", .takes = {WEFT_TYPE_I64}, .run = serve_fail_quietly},
    {.name = "fail at length", .run = serve_fail_at_length},
    {.name = "ask next", .gives = {WEFT_TYPE_I64}, .run = serve_ask_next},
    {.name = "time left", .gives = {WEFT_TYPE_I64}, .run = serve_time_left},
};

/* ---- 17: a handler fails -------------------------------------------------------------------------------------- */

static void must_be_raised(const weft_error *error, int worker)
{
    char line[1024] = "";
    MUST_BE(weft_error_code(error), WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_SHAPE);
    MUST(strcmp(weft_error_message(error), ESCAPES) == 0); /* to the byte */
    MUST(strcmp(weft_error_function(error), "raise") == 0 && weft_error_worker(error) == worker);
    FILE *text = fmemopen(line, sizeof(line), "w");
    MUST(text);
    weft_error_print(error, text);
    fclose(text);
    MUST(strchr(line, '\n') == line + strlen(line) - 1 && strstr(line, "raise")); /* printed, it is one line */
}

static void raise_everywhere(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++) {
        weft_error *error = fail_of(agent, weft_to_rank(to), "raise", WEFT_NO_VALUES, WEFT_ERR_REMOTE);
        must_be_raised(error, to);
        weft_error_unref(error);
        weft_future *future = start(agent, weft_to_rank(to), "raise", WEFT_NO_VALUES);
        MUST_BE(weft_future_wait(future, ITEM_PATIENCE_MS), WEFT_ERR_REMOTE);
        must_be_raised(weft_future_error(future), to);
        weft_future_unref(future);
        error = fail_of(agent, weft_to_rank(to), "fail at length", WEFT_NO_VALUES, WEFT_ERR_REMOTE);
        MUST_BE(weft_error_handler_code(error), WEFT_ERR_IO);
        MUST(strlen(weft_error_message(error)) == 1023 && says(error, "xxxxxxxx")); /* cut, but there */
        weft_error_unref(error);
    }
    /* One further: the text arrives, and who said it first. */
    weft_error *error = fail_of(agent, weft_to_rank(next_rank(agent)), "ask next", WEFT_NO_VALUES, WEFT_ERR_REMOTE);
    MUST(says(error, "it said"));
    weft_error_unref(error);
}

ITEM(item_17_raise_in_user_function, .program = raise_everywhere, ITEM_FUNCTIONS(functions))

/* ---- 18: errors that the caller has no word for --------------------------------------------------------------- */

/* What arrives is WEFT_ERR_REMOTE and the handler's own code, though the caller does not know that code, and though
 * it is one that weft itself uses for something else: no handler can fake the death of its worker. */
static void unknown_errors(weft_agent *agent, void *arg)
{
    static const int codes[] = {NOT_WEFTS, WEFT_ERR_PEER_DEAD, WEFT_ERR_CLOSED, WEFT_ERR_TIMEOUT, WEFT_ERR_REMOTE};
    for (int to = 0; to < WORKERS; to++)
        for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
            weft_error *error =
                fail_of(agent, weft_to_rank(to), "fail quietly", WEFT_VALUES(weft_of_i64(codes[i])), WEFT_ERR_REMOTE);
            MUST((int)weft_error_handler_code(error) == codes[i]);
            MUST(weft_error_message(error)[0] && weft_error_worker(error) == to);
            MUST(weft_status_name(weft_error_handler_code(error))[0]);
            weft_error_unref(error);
        }
    tell(agent, weft_to_rank(next_rank(agent)), "nothing", WEFT_NO_VALUES);
}

ITEM(item_18_errors_that_the_caller_does_not_know, .program = unknown_errors, ITEM_FUNCTIONS(functions))

/* ---- 19: no such function on the callee ----------------------------------------------------------------------- */

static void must_be_missing(const weft_error *error, int worker)
{
    char name[16];
    snprintf(name, sizeof(name), "worker%d", worker);
    MUST_BE(weft_error_code(error), WEFT_ERR_NOT_FOUND);
    MUST(says(error, "no such thing") && says(error, name) && weft_error_worker(error) == worker);
}

static void missing_functions(weft_agent *agent, void *arg)
{
    static const weft_function late = {.name = "late", .gives = {WEFT_TYPE_I64}, .run = serve_rank};
    for (int to = 0; to < WORKERS; to++) {
        weft_error *error =
            fail_of(agent, weft_to_rank(to), "no such thing", WEFT_VALUES(weft_of_i64(1)), WEFT_ERR_NOT_FOUND);
        must_be_missing(error, to);
        weft_error_unref(error);
        error = fail_of(agent, weft_to_rank(to), "add", WEFT_VALUES(weft_of_string("two")), WEFT_ERR_TYPE);
        MUST(says(error, "has the type string where the signature says int64")); /* there is one, for other arguments */
        weft_error_unref(error);
        weft_future *future = start(agent, weft_to_rank(to), "no such thing", WEFT_NO_VALUES);
        MUST_BE(weft_future_wait(future, ITEM_PATIENCE_MS), WEFT_ERR_NOT_FOUND);
        must_be_missing(weft_future_error(future), to);
        weft_future_unref(future);
        weft_values *values = NULL;
        weft_rref *made = make(agent, weft_to_rank(to), "no such thing", WEFT_NO_VALUES);
        MUST_BE(weft_rref_to_here(made, ITEM_PATIENCE_MS, &values, NULL), WEFT_ERR_NOT_FOUND);
        weft_rref_unref(made);
    }
    MUST_OK(weft_agent_register(agent, &late));
    MUST_BE(weft_agent_register(agent, &late), WEFT_ERR_EXISTS);
    MUST(ask(agent, weft_to_rank(weft_agent_rank(agent)), "late", WEFT_NO_VALUES) == weft_agent_rank(agent));
}

ITEM(item_19_function_not_on_callee, .program = missing_functions, ITEM_FUNCTIONS(functions))

/* ---- 20: the callee is gone ----------------------------------------------------------------------------------- */

enum { VICTIM = WORKERS - 1 };
static atomic_int gone_seen;

static void call_the_gone(weft_agent *agent, weft_status why)
{
    weft_error *error = fail_of(agent, weft_to_rank(VICTIM), "nothing", WEFT_NO_VALUES, why);
    MUST(weft_error_message(error)[0]);
    weft_error_unref(error);
    weft_future *future = NULL;
    weft_rref *made = NULL;
    MUST_BE(weft_rpc_async(agent, weft_to_rank(VICTIM), "nothing", WEFT_NO_VALUES, NULL, &future), why);
    MUST_BE(weft_rpc_remote(agent, weft_to_rank(VICTIM), "nothing", WEFT_NO_VALUES, NULL, &made), why);
    MUST(!weft_agent_alive(agent, VICTIM));
    /* The others go on. */
    for (int to = 0; to < VICTIM; to++)
        tell(agent, weft_to_rank(to), "nothing", WEFT_NO_VALUES);
}

/* Each of the others has a call, and a reference, at the victim when it goes. */
static void callee_goes(int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_status why = item_sim() ? WEFT_ERR_PEER_DEAD : WEFT_ERR_PEER_LEFT;
    MUST_OK(item_open(rank, NULL, &agent, &error));
    if (rank == VICTIM) {
        item_await(&held_count, 2 * VICTIM);
        if (item_sim()) {
            forget_held();
            weft_sim_kill(item_sim(), VICTIM); /* does not return */
        }
        weft_agent_stop(agent);
        release_held(0); /* too late, and nobody is answered */
        return;
    }
    weft_future *waiting = start_for(agent, weft_to_rank(VICTIM), "hold", WEFT_NO_VALUES, WEFT_FOREVER);
    weft_rref *made = NULL;
    weft_values *values = NULL;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(VICTIM), "hold", WEFT_NO_VALUES,
                            &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &made));
    MUST_BE(weft_rref_to_here(made, ITEM_PATIENCE_MS, &values, NULL), why);
    weft_rref_unref(made);
    must_end(waiting, why);
    call_the_gone(agent, why);
    atomic_fetch_add(&gone_seen, 1);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

static void all_saw_it(void)
{
    assert_int_equal(atomic_exchange(&gone_seen, 0), VICTIM);
}

ITEM(item_20_callee_is_gone, .body = callee_goes, .after = all_saw_it, ITEM_FUNCTIONS(functions))

/* ---- 21: time limits ------------------------------------------------------------------------------------------ */

static void must_time_out(weft_agent *agent, int to, int64_t timeout_ms)
{
    weft_future *future = start_for(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES, timeout_ms);
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    const weft_error *error = weft_future_error(future);
    MUST_BE(weft_error_code(error), WEFT_ERR_TIMEOUT);
    MUST(weft_error_message(error)[0] && strcmp(weft_error_function(error), "hold") == 0);
    weft_future_unref(future);
}

static void time_limits(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int to = 0; to < 2; to++) { /* ourselves too */
        must_time_out(agent, to, 10);
        MUST_OK(weft_agent_set_call_timeout(agent, 20));
        must_time_out(agent, to, 0);
        /* Longer than the default, and without an end: both outlive it, and see what is left of their time. */
        weft_future *longer = start_for(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES, ITEM_PATIENCE_MS),
                    *never = start_for(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES, WEFT_FOREVER);
        MUST_BE(weft_future_wait(never, 60), WEFT_ERR_TIMEOUT); /* the waiting's, not the call's */
        MUST(!weft_future_done(never) && !weft_future_done(longer));
        answer_held_until(longer, 5); /* those that timed out too: their answers come too late, and go nowhere */
        answer_held_until(never, 5);
        MUST(future_i64(longer) == 5 && future_i64(never) == 5);
        MUST_OK(weft_agent_set_call_timeout(agent, ITEM_PATIENCE_MS));
        int64_t left = ask(agent, weft_to_rank(to), "time left", WEFT_NO_VALUES);
        MUST(left > 0 && left <= ITEM_PATIENCE_MS);
        MUST(future_i64(start_for(agent, weft_to_rank(to), "time left", WEFT_NO_VALUES, WEFT_FOREVER)) == WEFT_FOREVER);
    }
    weft_future *future = NULL;
    MUST_BE(weft_rpc_async(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = -2},
                           &future),
            WEFT_ERR_INVALID);
}

static void release_late(void)
{
    release_held(0);
}

ITEM(item_21_rpc_timeouts, .program = time_limits, .after = release_late, ITEM_FUNCTIONS(functions))

/* ---- 22: a new default is for calls to come ------------------------------------------------------------------- */

static void default_changes(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int to = 0; to < 2; to++) {
        MUST_OK(weft_agent_set_call_timeout(agent, ITEM_PATIENCE_MS));
        weft_future *before = start(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES);
        MUST_OK(weft_agent_set_call_timeout(agent, 10));
        weft_future *after = start(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES);
        must_end(after, WEFT_ERR_TIMEOUT);
        MUST_BE(weft_future_wait(before, 30), WEFT_ERR_TIMEOUT);
        MUST(!weft_future_done(before));
        answer_held_until(before, 6);
        MUST(future_i64(before) == 6);
    }
}

ITEM(item_22_default_timeout_is_not_retroactive, .program = default_changes, .after = release_late,
     ITEM_FUNCTIONS(functions))

/* ---- 23: after the end ---------------------------------------------------------------------------------------- */

static weft_rref *left_over[WORKERS];
static weft_future *asked[WORKERS];
static atomic_int waiting;

/* The agent itself is freed by closing it; what may outlive it says so. */
static void ask_after_the_end(int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_values *values = NULL;
    weft_future *future = NULL;
    weft_rref *made = NULL;
    MUST_OK(item_open(rank, NULL, &agent, &error));
    int next = next_rank(agent);
    left_over[rank] = make(agent, weft_to_rank(next), "rank", WEFT_NO_VALUES);
    MUST(read_i64(left_over[rank]) == next);
    asked[rank] = start_for(agent, weft_to_rank(next), "hold", WEFT_NO_VALUES, WEFT_FOREVER);
    atomic_fetch_add(&waiting, 1);
    item_await(&waiting, WORKERS);
    item_await(&held_count, WORKERS);
    weft_agent_stop(agent);
    weft_status status = weft_future_wait(asked[rank], 0);
    MUST(status == WEFT_ERR_CLOSED || status == WEFT_ERR_PEER_LEFT); /* whoever was the first to stop */
    weft_future_unref(asked[rank]);
    weft_rref *rref = left_over[rank];
    MUST_BE(weft_rref_to_here(rref, ITEM_PATIENCE_MS, &values, NULL), WEFT_ERR_CLOSED);
    MUST_BE(weft_rref_to_here_async(rref, ITEM_PATIENCE_MS, &future), WEFT_ERR_CLOSED);
    MUST_BE(weft_rref_rpc_async(rref, "nothing", WEFT_NO_VALUES, NULL, &future), WEFT_ERR_CLOSED);
    MUST_BE(weft_rref_rpc_sync(rref, "nothing", WEFT_NO_VALUES, NULL, &values), WEFT_ERR_CLOSED);
    MUST_BE(weft_rref_rpc_remote(rref, "nothing", WEFT_NO_VALUES, NULL, &made), WEFT_ERR_CLOSED);
    MUST(weft_rref_owner(rref) == next);
    weft_rref_unref(rref);
}

static void nobody_is_answered(void)
{
    release_held(7); /* finishing a call whose agent is gone is allowed, and does nothing */
    atomic_store(&waiting, 0);
}

ITEM(item_23_calls_after_shutdown, .body = ask_after_the_end, .after = nobody_is_answered, .leaks = true,
     ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_17_raise_in_user_function, item_18_errors_that_the_caller_does_not_know, item_19_function_not_on_callee,
          item_20_callee_is_gone, item_21_rpc_timeouts, item_22_default_timeout_is_not_retroactive,
          item_23_calls_after_shutdown)
