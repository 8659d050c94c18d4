/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/fetch.c - fetches the value that a handle names.
 *
 * Both sides are here: the calls, and the owner's two functions. "weft:fetch" answers with the value, "weft:made"
 * answers when the value was made.
 */
#include "rpc/client/client.h"

#include "base/error.h"
#include "value/value.h"

/* `arg` is the call. */
static void answer(weft_future *value, void *arg, bool with_value)
{
    weft_call *call = arg;
    int rank = wfi_agent_rank(call->agent);
    const weft_error *error = weft_future_error(value);
    const wfi_object *object = wfi_object_of(value);
    if (error) /* unchanged, so that the caller learns why the value could not be made */
        call->error = wfi_error_with_hop(error, rank);
    else if (with_value && object)
        call->error = wfi_object_stays(object, rank);
    else
        weft_call_give(call, with_value ? WEFT_VALUES(wfi_made_value(value)) : WEFT_NO_VALUES);
    weft_call_finish(call, WEFT_OK);
}

static void answer_fetch(weft_future *value, void *arg)
{
    answer(value, arg, true);
}

static void answer_made(weft_future *value, void *arg)
{
    answer(value, arg, false);
}

static weft_status await_value(weft_call *call, weft_done_fn then)
{
    size_t size;
    wfi_reader reader;
    weft_agent *agent = weft_call_agent(call);
    const void *bytes = weft_call_bytes(call, 0, &size);
    wfi_reader_init(&reader, bytes, size);
    wfi_rref_name name = wfi_reference_read_name(&reader);
    if (reader.failed)
        return WEFT_ERR_PROTOCOL;
    wfi_net_lock(agent->net);
    wfi_owned *owned = wfi_owned_find(agent, &name);
    weft_future *value = owned ? weft_future_ref(owned->value) : NULL;
    wfi_net_unlock(agent->net);
    if (!value) {
        weft_call_fail(call, WEFT_ERR_NOT_FOUND, "rank %d does not have the value of this reference, or has freed it",
                       wfi_agent_rank(agent));
        return WEFT_ERR_NOT_FOUND;
    }
    weft_call_defer(call);
    if (weft_future_add_done_callback(value, then, call, NULL)) {
        weft_call_fail(call, WEFT_ERR_MEMORY, "no memory to wait for the value");
        weft_call_finish(call, WEFT_ERR_MEMORY);
    }
    weft_future_unref(value);
    return WEFT_DEFERRED;
}

static weft_status run_fetch(weft_call *call, void *user)
{
    (void)user;
    return await_value(call, answer_fetch);
}

static weft_status run_made(weft_call *call, void *user)
{
    (void)user;
    return await_value(call, answer_made);
}

const weft_function wfi_fetch_function = {.name = "weft:fetch",
                                          .takes = {WEFT_TYPE_BYTES},
                                          .gives = {WEFT_TYPE_ANY},
                                          .run = run_fetch,
                                          .flags = WEFT_FUNCTION_INLINE};

const weft_function wfi_made_function = {
    .name = "weft:made", .takes = {WEFT_TYPE_BYTES}, .run = run_made, .flags = WEFT_FUNCTION_INLINE};

/* ---- Calling the owner ------------------------------------------------------------------------------------------- */

static void only_keep(weft_future *future, void *arg)
{
    (void)future;
    (void)arg;
}

static void drop_handle(void *arg)
{
    weft_rref_unref(arg);
}

/* The future holds the handle until the answer: otherwise DROP could arrive before the call. */
static weft_status ask_owner(weft_rref *rref, const char *function, const weft_rpc_options *options, weft_future **out)
{
    uint8_t room[64];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_reference_write_name(&writer, &rref->name);
    weft_worker owner = {(int)rref->name.owner, rref->name.owner_incarnation};
    weft_future *future = NULL;
    weft_status status = weft_rpc_async(rref->agent, weft_to_worker(owner), function,
                                        WEFT_VALUES(weft_of_bytes(room, writer.size)), options, &future);
    if (status || !weft_future_add_done_callback(future, only_keep, weft_rref_ref(rref), drop_handle)) {
        *out = future;
        return status;
    }
    weft_status cancelled = weft_future_cancel(future);
    (void)cancelled; /* it may have been answered already */
    weft_future_unref(future);
    return WEFT_ERR_MEMORY;
}

/* The known error of the handle, with a reference; NULL: none. */
static weft_error *known_error(weft_rref *rref)
{
    weft_agent *agent = rref->agent;
    wfi_net_lock(agent->net);
    weft_error *error = weft_error_ref(rref->error);
    wfi_net_unlock(agent->net);
    return error;
}

/* On the owner, if the value was made or has failed: gives the answer that other workers get. `agent` is NULL if it is
 * closed. */
static weft_status answer_here(weft_agent *agent, weft_future *value, int owner, weft_future **out)
{
    const wfi_object *object = wfi_object_of(value);
    weft_values *one = NULL;
    if (weft_future_error(value) || weft_values_count(weft_future_values(value)) == 1) {
        *out = weft_future_ref(value);
        return WEFT_OK;
    }
    weft_future *answer = wfi_agent_future(agent);
    weft_error *error = object ? wfi_object_stays(object, owner) : NULL;
    weft_status status = answer ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!status && !error)
        status = wfi_values_create(WEFT_VALUES(wfi_made_value(value)), &one);
    if (status) {
        weft_future_unref(answer);
    } else {
        wfi_complete_future(answer, one, error);
        *out = answer;
    }
    weft_values_unref(one);
    weft_error_unref(error);
    return status;
}

/* `waits`: the caller will wait for the future. options->error may get the reason of a failure. */
static weft_status start_to_here(weft_rref *rref, const weft_rpc_options *options, bool waits, weft_future **out)
{
    weft_agent *agent = rref->agent;
    weft_future *value = rref->value;
    int owner = (int)rref->name.owner;
    bool is_here = value && weft_future_done(value);
    if (!wfi_agent_enter(agent)) /* on its owner the value outlives the agent */
        return is_here ? answer_here(NULL, value, owner, out) : WEFT_ERR_CLOSED;
    weft_error *error = known_error(rref);
    weft_status status = waits && !error && !is_here ? wfi_rpc_may_wait(agent, "weft_rref_to_here", options) : WEFT_OK;
    if (error) {
        *out = wfi_failed_future(agent, error);
        status = *out ? WEFT_OK : WEFT_ERR_MEMORY;
    } else if (is_here) {
        status = answer_here(agent, value, owner, out);
    } else if (!status) {
        status = ask_owner(rref, wfi_fetch_function.name, options, out);
    }
    weft_error_unref(error);
    wfi_agent_leave(agent);
    return status;
}

weft_status weft_rref_to_here_async(weft_rref *rref, int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(rref);
    weft_future *future = NULL;
    if (!rref || !out)
        return wfi_refuse_null("weft_rref_to_here_async", rref ? "out" : "the handle");
    weft_status status = start_to_here(rref, &(weft_rpc_options){.timeout_ms = timeout_ms}, false, &future);
    if (!status)
        *out = future;
    return status;
}

weft_status weft_rref_to_here(weft_rref *rref, int64_t timeout_ms, weft_values **out, weft_error **error)
{
    WFI_CHECK_HANDLE(rref);
    weft_future *future = NULL;
    weft_error *why = NULL;
    weft_rpc_options options = {.timeout_ms = timeout_ms, .error = &why};
    if (!rref || !out)
        return wfi_refuse_null_to(error, "weft_rref_to_here", rref ? "out" : "the handle");
    weft_status status = start_to_here(rref, &options, true, &future);
    if (!status)
        status = wfi_rpc_await(NULL, future, &options, out);
    else if (!why)
        return wfi_refuse_to(error, status, "weft_rref_to_here: %s", weft_status_text(status));
    if (status && wfi_agent_enter(rref->agent)) {
        weft_error *own = known_error(rref); /* this worker gave up making the value, while it waited */
        if (own) {
            weft_error_unref(why);
            why = own;
            status = weft_error_code(own);
        }
        wfi_agent_leave(rref->agent);
    }
    wfi_refuse_with(error, why);
    return status;
}

/* ---- weft_rref_created ------------------------------------------------------------------------------------------- */

static weft_status follow(weft_future *value, weft_future *made, void *arg)
{
    (void)arg;
    wfi_complete_future(made, NULL, weft_future_error(value));
    return WEFT_OK;
}

static weft_future *created(weft_rref *rref)
{
    weft_future *future = NULL, *made = NULL;
    wfi_net_lock(rref->agent->net);
    bool is_being_made = rref->making; /* by a call of this worker: wfi_rref_created completes `made` */
    if (is_being_made && !rref->made)
        rref->made = wfi_agent_future(rref->agent);
    if (is_being_made)
        made = weft_future_ref(rref->made);
    wfi_net_unlock(rref->agent->net);
    if (made) /* each caller gets its own future, because it may cancel it */
        future = wfi_future_then(made, follow, NULL, NULL);
    weft_future_unref(made);
    if (is_being_made)
        return future;
    weft_error *error = known_error(rref);
    if (!error && rref->value)
        return wfi_future_then(rref->value, follow, NULL, NULL);
    weft_status status =
        error ? WEFT_OK
              : ask_owner(rref, wfi_made_function.name, &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &future);
    if (status && status != WEFT_ERR_MEMORY) /* the call could not be started */
        error = weft_error_create(status, "the owner of the reference cannot be asked: %s", weft_status_text(status));
    if (error)
        future = wfi_failed_future(rref->agent, error);
    weft_error_unref(error);
    return future;
}

weft_future *weft_rref_created(weft_rref *rref)
{
    WFI_CHECK_HANDLE(rref);
    weft_future *future = NULL;
    if (!rref) {
        weft_error *error = weft_error_create(WEFT_ERR_INVALID, "weft_rref_created: the handle is NULL");
        future = wfi_failed_future(NULL, error);
        weft_error_unref(error);
        return future;
    }
    if (wfi_agent_enter(rref->agent)) {
        future = created(rref);
        wfi_agent_leave(rref->agent);
        return future;
    }
    future = wfi_agent_future(NULL);
    if (!future)
        return NULL;
    bool is_here = rref->value && weft_future_done(rref->value);
    weft_error *closed = is_here ? NULL : weft_error_create(WEFT_ERR_CLOSED, "this worker closed its agent");
    wfi_complete_future(future, NULL, is_here ? weft_future_error(rref->value) : closed);
    weft_error_unref(closed);
    return future;
}
