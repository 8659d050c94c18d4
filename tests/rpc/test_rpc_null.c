/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_null.c - NULL for agents, handles, calls and outputs: nothing is started, made or left undropped, nothing
 * crashes, and who asked for the sentence gets it.
 */
#include "rpc/world.h"

static weft_status run_count(weft_call *call, void *user)
{
    MUST(false); /* nobody can call it */
    return WEFT_OK;
}

static void count_drop(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void must_say(weft_error *error, weft_status code, const char *words)
{
    MUST(error);
    MUST_BE(weft_error_code(error), code);
    if (!strstr(weft_error_message(error), words))
        fprintf(stderr, "\"%s\" lacks \"%s\"\n", weft_error_message(error), words);
    MUST(strstr(weft_error_message(error), words));
    weft_error_unref(error);
}

static void must_refuse_call(weft_status status, weft_error **error, const char *words)
{
    MUST_BE(status, WEFT_ERR_INVALID);
    MUST(strcmp(weft_error_function(*error), "count") == 0);
    must_say(*error, WEFT_ERR_INVALID, words);
    *error = NULL;
}

/* Without an agent, a handle, or a target's name: nothing is started, and the sentence goes where it was asked for. */
static void calls_of_nobody(weft_agent *agent)
{
    weft_error *error = NULL;
    weft_rref *rref;
    weft_future *future;
    const weft_rpc_options told = {.error = &error};
    const weft_target to = weft_to_rank(1);
    const weft_args nothing = WEFT_NO_VALUES;
    must_refuse_call(weft_rpc_async(NULL, to, "count", nothing, &told, &future), &error, "agent is NULL");
    must_refuse_call(weft_rpc_sync(NULL, to, "count", nothing, &told, NULL), &error, "agent is NULL");
    must_refuse_call(weft_rpc_remote(NULL, to, "count", nothing, &told, &rref), &error, "agent is NULL");
    must_refuse_call(weft_rpc_multicast(NULL, &to, 1, "count", nothing, &told, NULL), &error, "agent is NULL");
    must_refuse_call(weft_rref_rpc_async(NULL, "count", nothing, &told, NULL), &error, "handle is NULL");
    must_refuse_call(weft_rref_rpc_sync(NULL, "count", nothing, &told, NULL), &error, "handle is NULL");
    must_refuse_call(weft_rref_rpc_remote(NULL, "count", nothing, &told, &rref), &error, "handle is NULL");
    for (int attempts = 0; attempts <= 3; attempts += 3) {
        weft_rpc_options options = {.error = &error, .retry.attempts = attempts};
        must_refuse_call(weft_rpc_sync(agent, weft_to_name(NULL), "count", nothing, &options, NULL), &error,
                         "name of the worker to be called is NULL");
    }
    must_refuse_call(weft_rpc_remote(agent, weft_to_name(NULL), "count", nothing, &told, &rref), &error,
                     "name of the worker to be called is NULL");
    MUST_BE(weft_agent_open(&(weft_agent_options){0}, NULL, &error), WEFT_ERR_INVALID);
    must_say(error, WEFT_ERR_INVALID, "out is NULL");
}

static void agents_at_null(weft_agent *agent)
{
    weft_worker workers[2];
    MUST_BE(weft_agent_status(NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_set_call_timeout(NULL, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_register(NULL, &(weft_function){.name = "f", .run = run_count}), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_watch(NULL, 0), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_unwatch(NULL, 0), WEFT_ERR_INVALID);
    MUST_OK(weft_agent_close(NULL, WEFT_FOREVER));
    weft_agent_stop(NULL);
    MUST(weft_agent_rank(NULL) == -1 && weft_agent_world_size(NULL) == 0);
    MUST(!weft_agent_name(NULL, 0) && weft_agent_find(NULL, "a") == -1 && weft_agent_find(agent, NULL) == -1);
    MUST(!weft_agent_alive(NULL, 0) && weft_agent_worker(NULL, 1).incarnation == 0);
    MUST(weft_agent_workers(NULL, workers, 2) == 0 && weft_agent_workers(agent, NULL, 2) == 2);
    MUST(weft_agent_progress(NULL, 0) == 0 && weft_agent_now_ns(NULL) == 0);
}

static void handles_at_null(weft_agent *agent)
{
    static const weft_object_type type = {.name = "counted", .drop = count_drop};
    atomic_int drops = 0;
    void *object;
    weft_value value;
    weft_rref *rref = NULL, *mine;
    MUST_BE(weft_rref_create(NULL, weft_of_i64(1), &rref, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_create(agent, weft_of_i64(1), NULL, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_create_object(NULL, &drops, count_drop, &rref, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_create_object(agent, &drops, count_drop, NULL, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_create_typed(NULL, &type, &drops, &rref, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_create_typed(agent, &type, &drops, NULL, NULL), WEFT_ERR_INVALID);
    MUST(drops == 4 && !rref);
    MUST_BE(weft_rref_create_typed(agent, NULL, &drops, &rref, NULL), WEFT_ERR_INVALID);
    MUST_OK(weft_rref_create_typed(agent, &type, &drops, &mine, NULL));
    MUST_BE(weft_rref_local_value(NULL, 0, &value), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_local_value(mine, 0, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_local_object(NULL, &object), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_local_object(mine, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_local_typed(NULL, &type, 0, &object), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_local_typed(mine, NULL, 0, &object), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_local_typed(mine, &type, 0, NULL), WEFT_ERR_INVALID);
    MUST(weft_rref_owner(NULL) == -1 && !weft_rref_is_owner(NULL) && !weft_rref_confirmed(NULL));
    MUST(!weft_rref_ref(NULL));
    weft_future *created = weft_rref_created(NULL);
    MUST_BE(weft_future_wait(created, 0), WEFT_ERR_INVALID);
    weft_future_unref(created);
    weft_rref_unref(NULL);
    weft_rref_unref(mine);
}

/* What a handler may ask of its call, asked of none. */
static void served_by_nobody(void)
{
    static const weft_object_type type = {.name = "counted", .drop = count_drop};
    atomic_int drops = 0;
    MUST(!weft_call_agent(NULL) && weft_call_from(NULL) == -1 && weft_call_count(NULL) == 0);
    MUST(weft_call_time_left(NULL) == 0 && weft_call_cancelled(NULL) && !weft_call_cancellation(NULL));
    MUST(!weft_call_tape(NULL) && !weft_call_defer(NULL) && !weft_call_defer_keeping(NULL));
    MUST(weft_call_type(NULL, 0) == WEFT_TYPE_NONE);
    MUST_BE(weft_call_status(NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_call_send_item(NULL, WEFT_NO_VALUES), WEFT_ERR_INVALID);
    weft_call_give(NULL, WEFT_NO_VALUES);
    weft_call_give_object(NULL, &type, &drops);
    MUST(drops == 1);
    weft_call_fail(NULL, WEFT_ERR_STATE, "no call");
    weft_call_fail_with(NULL, NULL);
    weft_call_finish(NULL, WEFT_OK);
}

/* ---- Together ------------------------------------------------------------------------------------------------- */

static void without_objects(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    calls_of_nobody(agent);
    agents_at_null(agent);
    handles_at_null(agent);
    served_by_nobody();
}

WORLD_TEST(without_objects, 1, 1, .size = 2)

UNIT_MAIN(test_without_objects)
