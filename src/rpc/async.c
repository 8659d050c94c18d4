/* SPDX-License-Identifier: Apache-2.0 */
/* async.c - the public ways to call: async, sync, remote. They resolve the target and choose between wire and home. */
#include "rpc/call.h"

#include "base/error.h"
#include "rpc/rref.h"

#include <string.h>

static const weft_rpc_options defaults;

/* The target's rank, or -1 with the error. */
static int resolve(weft_agent *agent, weft_target to, weft_error **error)
{
    int rank = to.name ? weft_agent_find(agent, to.name) : to.rank;
    if (rank >= 0 && rank < agent->options.values.world_size)
        return rank;
    if (to.name)
        *error = weft_error_create(WEFT_ERR_NOT_FOUND, "no worker is named \"%s\"", to.name);
    else
        *error = weft_error_create(WEFT_ERR_NOT_FOUND, "no worker has rank %d: the world size is %d", to.rank,
                                   agent->options.values.world_size);
    return -1;
}

static weft_error *explain(weft_status st, const char *function, int rank)
{
    wfi_error_detail detail = {.code = st, .function = function, .worker = rank};
    return wfi_error_create(&detail, "the call could not be started: %s", weft_status_text(st));
}

static weft_status start(weft_agent *agent, int rank, const char *function, weft_args arguments,
                         const weft_rpc_options *options, weft_rref *remote, weft_future **out)
{
    weft_status st;
    size_t length = function ? strlen(function) : 0;
    if (length == 0 || length > WFI_FUNCTION_NAME_MAX || options->timeout_ms < WEFT_FOREVER)
        st = WEFT_ERR_INVALID;
    else if (rank == wfi_agent_rank(agent))
        st = wfi_call_start_local(agent, function, arguments, options, remote, out);
    else
        st = wfi_call_start(agent, rank, function, arguments, options, remote, out);
    if (st)
        wfi_error_give(options->error, explain(st, function, rank));
    return st;
}

weft_status weft_rpc_async(weft_agent *agent, weft_target to, const char *function, weft_args arguments,
                           const weft_rpc_options *options, weft_future **out)
{
    weft_error *error;
    options = options ? options : &defaults;
    int rank = resolve(agent, to, &error);
    if (rank < 0) {
        wfi_error_give(options->error, error);
        return WEFT_ERR_NOT_FOUND;
    }
    return start(agent, rank, function, arguments, options, NULL, out);
}

weft_status weft_rpc_sync(weft_agent *agent, weft_target to, const char *function, weft_args arguments,
                          const weft_rpc_options *options, weft_values **out)
{
    weft_future *future;
    weft_status st = weft_rpc_async(agent, to, function, arguments, options, &future);
    if (st)
        return st;
    st = weft_future_wait(future, WEFT_FOREVER);
    if (st) {
        const weft_error *error = weft_future_error(future);
        weft_error *detail = error ? weft_error_ref(error) : weft_error_create(st, "%s", weft_status_text(st));
        wfi_error_give(options ? options->error : NULL, detail);
    } else if (out) {
        *out = weft_values_ref((weft_values *)weft_future_values(future));
    }
    weft_future_unref(future);
    return st;
}

weft_status weft_rpc_remote(weft_agent *agent, weft_target to, const char *function, weft_args arguments,
                            const weft_rpc_options *options, weft_rref **out)
{
    weft_error *error;
    weft_rref *rref;
    weft_future *making;
    options = options ? options : &defaults;
    int rank = resolve(agent, to, &error);
    if (rank < 0) {
        wfi_error_give(options->error, error);
        return WEFT_ERR_NOT_FOUND;
    }
    weft_status st = wfi_rref_create_pending(agent, rank, &rref);
    if (st)
        return st;
    weft_rpc_options how = *options;
    how.land = (weft_tensors){NULL, 0}; /* the result stays there */
    st = start(agent, rank, function, arguments, &how, rref, &making);
    if (st) {
        weft_rref_unref(rref);
        return st;
    }
    weft_future_unref(making); /* the call itself tells the handle how it ended */
    *out = rref;
    return WEFT_OK;
}
