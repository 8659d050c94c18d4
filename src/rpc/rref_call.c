/* SPDX-License-Identifier: Apache-2.0 */
/* rref_call.c - calling a function on what a reference names: on its owner, with the reference as argument 0. */
#include "rpc/rref.h"
#include "rpc/rref_internal.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static bool are_of(const weft_agent *agent, weft_args values, int depth)
{
    for (size_t i = 0; i < values.count; i++) {
        const weft_value *value = &values.items[i];
        if (value->type == WEFT_RREF && value->as.rref && value->as.rref->agent != agent)
            return false;
        if (value->type == WEFT_LIST && depth < WEFT_MAX_LIST_DEPTH && !are_of(agent, value->as.list, depth + 1))
            return false;
    }
    return true;
}

bool wfi_rrefs_are_of(const weft_agent *agent, weft_args values)
{
    return are_of(agent, values, 0);
}

/* The owner's incarnation: a reborn one has no such value, and shall not be asked. */
static weft_target to_owner(const weft_rref *rref)
{
    return weft_to_worker((weft_worker){(int)rref->name.owner, rref->name.owner_incarnation});
}

/* The reference, then the arguments; to be freed. NULL: no memory. */
static weft_value *prepend(weft_rref *rref, weft_args arguments)
{
    weft_value *items = malloc((arguments.count + 1) * sizeof *items);
    if (!items)
        return NULL;
    items[0] = weft_of_rref(rref);
    if (arguments.count)
        memcpy(items + 1, arguments.items, arguments.count * sizeof *items);
    return items;
}

/* Why it cannot be called, with the detail where the caller wants it. The agent is entered. */
static weft_status check(weft_rref *rref, const weft_rpc_options *options)
{
    weft_agent *agent = rref->agent;
    wfi_net_lock(agent->net);
    weft_error *error = rref->lost ? weft_error_ref(rref->error) : NULL;
    wfi_net_unlock(agent->net);
    weft_status st = error ? weft_error_code(error) : WEFT_OK;
    if (error)
        wfi_error_give(options ? options->error : NULL, error);
    return st;
}

typedef struct rref_question {
    const char *function;
    weft_args arguments;
    const weft_rpc_options *options;
} rref_question;

/* As a call whose future comes, or one whose result stays there. One of the outs. */
static weft_status start(weft_rref *rref, const rref_question *q, weft_future **future, weft_rref **made)
{
    weft_agent *agent = rref->agent;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    weft_status st = check(rref, q->options);
    weft_value *items = st ? NULL : prepend(rref, q->arguments);
    if (!st && !items)
        st = WEFT_ERR_MEMORY;
    weft_args args = {items, q->arguments.count + 1};
    if (!st && future)
        st = weft_rpc_async(agent, to_owner(rref), q->function, args, q->options, future);
    else if (!st)
        st = weft_rpc_remote(agent, to_owner(rref), q->function, args, q->options, made);
    wfi_agent_leave(agent);
    free(items);
    return st;
}

weft_status weft_rref_rpc_async(weft_rref *rref, const char *function, weft_args arguments,
                                const weft_rpc_options *options, weft_future **out)
{
    return start(rref, &(rref_question){function, arguments, options}, out, NULL);
}

weft_status weft_rref_rpc_remote(weft_rref *rref, const char *function, weft_args arguments,
                                 const weft_rpc_options *options, weft_rref **out)
{
    return start(rref, &(rref_question){function, arguments, options}, NULL, out);
}

weft_status weft_rref_rpc_sync(weft_rref *rref, const char *function, weft_args arguments,
                               const weft_rpc_options *options, weft_values **out)
{
    weft_future *future;
    weft_status st = weft_rref_rpc_async(rref, function, arguments, options, &future);
    if (st)
        return st;
    st = weft_future_wait(future, WEFT_FOREVER); /* the call has the time limit */
    if (st) {
        const weft_error *error = weft_future_error(future);
        wfi_error_give(options ? options->error : NULL,
                       error ? weft_error_ref(error) : weft_error_create(st, "%s", weft_status_text(st)));
    } else if (out) {
        *out = weft_values_ref((weft_values *)weft_future_values(future));
    }
    weft_future_unref(future);
    return st;
}
