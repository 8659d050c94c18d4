/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c - weft_rpc_remote, whose result stays on the callee, and the weft_rref_rpc_ functions, which call a function
 * on a handle's owner with the handle as argument 0.
 */

#include "base/error.h"
#include "rpc/client/client.h"

#include <stdlib.h>
#include <string.h>

weft_status weft_rpc_remote_sized(weft_agent *agent, weft_target to, const char *function, weft_args arguments,
                                  const weft_rpc_options *options, size_t size, weft_rref **out)
{
    WFI_CHECK_HANDLE(agent);
    weft_rpc_options own;
    weft_error *error = NULL;
    weft_rref *rref;
    weft_future *making = NULL;
    options = wfi_rpc_options(options, size, function, &own);
    if (!options)
        return WEFT_ERR_INVALID;
    if (!agent || !out)
        return wfi_rpc_refuse_null(options, function, agent ? "out" : "the agent");
    if (agent->forked) {
        wfi_rpc_give_error(agent, options, weft_error_create(WEFT_ERR_STATE, "%s", WFI_FORKED_TEXT));
        return WEFT_ERR_STATE;
    }
    int rank = wfi_target_resolve(agent, to, function, &error);
    if (rank < 0) {
        weft_status status = weft_error_code(error);
        wfi_rpc_give_error(agent, options, error);
        return status;
    }
    weft_worker owner = {rank, to.name ? 0 : to.incarnation};
    weft_status status = wfi_rref_create_pending(agent, owner, &rref);
    if (status) {
        wfi_rpc_give_error(agent, options,
                           weft_error_create(status, "no handle could be made: %s", weft_status_text(status)));
        return status;
    }
    wfi_call_spec spec = {.to = weft_to_worker(owner),
                          .function = function,
                          .arguments = arguments,
                          .options = options,
                          .remote = rref,
                          .parent = &options->parent};
    status = wfi_rpc_start(agent, &spec, &making, &error);
    if (status) {
        wfi_rpc_give_error(agent, options, error);
        weft_rref_unref(rref);
        return status;
    }
    weft_future_unref(making); /* the end of the call completes the handle */
    *out = rref;
    return WEFT_OK;
}

/* ---- Calls on the owner of a reference --------------------------------------------------------------------------- */

/* The owner's incarnation: a later incarnation does not have the value. */
static weft_target to_owner(const weft_rref *rref)
{
    return weft_to_worker((weft_worker){(int)rref->name.owner, rref->name.owner_incarnation});
}

/* An array of the reference and the arguments, at most WEFT_MAX_VALUES, which the caller frees. NULL: no memory. */
static weft_value *prepend(weft_rref *rref, weft_args arguments)
{
    weft_value *items = malloc((arguments.count + 1) * sizeof(*items));
    if (!items)
        return NULL;
    items[0] = weft_of_rref(rref);
    if (arguments.count)
        memcpy(items + 1, arguments.items, arguments.count * sizeof(*items));
    return items;
}

typedef struct rref_question {
    const char *function;
    weft_args arguments;
    const weft_rpc_options *options;
} rref_question;

/* Makes a call with a future or, if `remote`, one whose result stays on the owner (`made`). */
static weft_status call_on_owner(weft_rref *rref, const rref_question *q, weft_future **future, weft_rref **made,
                                 bool remote)
{
    weft_agent *agent = rref ? rref->agent : NULL;
    if (!rref)
        return wfi_rpc_refuse_null(q->options, q->function, "the handle");
    if (!wfi_agent_enter(agent)) {
        wfi_rpc_give_error(agent, q->options, weft_error_create(WEFT_ERR_CLOSED, "this worker closed its agent"));
        return WEFT_ERR_CLOSED;
    }
    weft_status status = WEFT_OK;
    bool bad = q->arguments.count > WEFT_MAX_VALUES || (q->arguments.count && !q->arguments.items);
    weft_value *items = bad ? NULL : prepend(rref, q->arguments); /* the call fails with bad ones, and reports it */
    if (!bad && !items) {
        status = WEFT_ERR_MEMORY;
        wfi_rpc_give_error(agent, q->options, weft_error_create(status, "no memory for the arguments"));
    }
    weft_args args = bad ? q->arguments : (weft_args){items, q->arguments.count + 1};
    if (!status && remote)
        status = weft_rpc_remote(agent, to_owner(rref), q->function, args, q->options, made);
    else if (!status)
        status = weft_rpc_async(agent, to_owner(rref), q->function, args, q->options, future);
    wfi_agent_leave(agent);
    free(items);
    return status;
}

weft_status wfi_rref_start_reserved(weft_rref *rref, const wfi_reserved_call *call, weft_future **out,
                                    weft_error **error)
{
    weft_agent *agent = rref->agent;
    if (!wfi_agent_enter(agent)) {
        *error = weft_error_create(WEFT_ERR_CLOSED, "this worker closed its agent");
        return WEFT_ERR_CLOSED;
    }
    weft_value *items = prepend(rref, call->arguments);
    wfi_reserved_call whole = *call;
    whole.arguments = (weft_args){items, call->arguments.count + 1};
    weft_status status = items ? wfi_rpc_start_reserved(agent, to_owner(rref), &whole, out, error) : WEFT_ERR_MEMORY;
    if (!items)
        *error = weft_error_create(status, "no memory for the arguments");
    wfi_agent_leave(agent);
    free(items);
    return status;
}

weft_status weft_rref_rpc_async_sized(weft_rref *rref, const char *function, weft_args arguments,
                                      const weft_rpc_options *options, size_t size, weft_future **out)
{
    WFI_CHECK_HANDLE(rref);
    weft_rpc_options own;
    options = wfi_rpc_options(options, size, function, &own);
    return options ? call_on_owner(rref, &(rref_question){function, arguments, options}, out, NULL, false)
                   : WEFT_ERR_INVALID;
}

weft_status weft_rref_rpc_remote_sized(weft_rref *rref, const char *function, weft_args arguments,
                                       const weft_rpc_options *options, size_t size, weft_rref **out)
{
    WFI_CHECK_HANDLE(rref);
    weft_rpc_options own;
    options = wfi_rpc_options(options, size, function, &own);
    return options ? call_on_owner(rref, &(rref_question){function, arguments, options}, NULL, out, true)
                   : WEFT_ERR_INVALID;
}

weft_status weft_rref_rpc_sync_sized(weft_rref *rref, const char *function, weft_args arguments,
                                     const weft_rpc_options *options, size_t size, weft_values **out)
{
    WFI_CHECK_HANDLE(rref);
    weft_rpc_options own;
    weft_future *future;
    weft_status status = WEFT_OK;
    options = wfi_rpc_options(options, size, function, &own);
    if (!options)
        return WEFT_ERR_INVALID;
    if (rref && wfi_agent_enter(rref->agent)) { /* otherwise weft_rref_rpc_async reports it */
        status = wfi_rpc_may_wait(rref->agent, function, options);
        wfi_agent_leave(rref->agent);
    }
    if (!status)
        status = weft_rref_rpc_async(rref, function, arguments, options, &future);
    return status || !rref ? status : wfi_rpc_await(rref->agent, future, options, out);
}
