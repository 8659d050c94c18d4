/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.c - the same call to many workers: packed once (shared.c), started one by one, joined in one future. */
#include "base/alloc.h"
#include "rpc/client/client.h"

#include <stdlib.h>

/* A target that cannot be called is a failed future among the others. NULL: no memory. */
static weft_future *failed_future(weft_agent *agent, const weft_error *error)
{
    weft_future *future = wfi_agent_future(agent);
    if (future && wfi_future_fail(future, error)) {
        weft_future_unref(future);
        return NULL;
    }
    return future;
}

static weft_future *start_one(weft_agent *agent, const wfi_call_spec *like, weft_target to)
{
    wfi_call_spec spec = *like;
    weft_future *future = NULL;
    weft_error *error = NULL;
    spec.to = to;
    if (wfi_rpc_start(agent, &spec, &future, &error))
        future = failed_future(agent, error);
    weft_error_unref(error);
    return future;
}

static weft_status start_all(weft_agent *agent, const weft_target *to, size_t count, const wfi_call_spec *spec,
                             weft_future **out)
{
    weft_future **futures = wfi_calloc(count + 1, sizeof *futures), *all = NULL;
    bool whole = futures != NULL;
    for (size_t i = 0; i < count && whole; i++) {
        futures[i] = start_one(agent, spec, to[i]);
        whole = futures[i] != NULL;
    }
    if (whole)
        all = weft_future_collect_all(futures, count);
    for (size_t i = 0; futures && i < count && futures[i]; i++) {
        weft_status unwanted = all ? WEFT_OK : weft_future_cancel(futures[i]);
        (void)unwanted;
        weft_future_unref(futures[i]);
    }
    free(futures);
    *out = all;
    return all ? WEFT_OK : WEFT_ERR_MEMORY;
}

static weft_status refuse(const weft_agent *agent, const weft_rpc_options *options, size_t targets_at_null)
{
    weft_error *error = targets_at_null
                            ? weft_error_create(WEFT_ERR_INVALID, "%zu targets at NULL", targets_at_null)
                            : weft_error_create(WEFT_ERR_INVALID, "a multicast takes neither landing places nor items");
    wfi_rpc_give_error(agent, options, error);
    return WEFT_ERR_INVALID;
}

weft_status weft_rpc_multicast(weft_agent *agent, const weft_target *to, size_t count, const char *function,
                               weft_args arguments, const weft_rpc_options *options, weft_future **out)
{
    static const weft_rpc_options defaults;
    wfi_shared_body *packed = NULL;
    weft_future *all = NULL;
    options = options ? options : &defaults;
    wfi_call_spec spec = {.function = function,
                          .arguments = arguments,
                          .options = options,
                          .packed = &packed,
                          .parent = &options->parent};
    if (!agent)
        return WEFT_ERR_INVALID;
    if (options->land.count || options->on_item || (count && !to))
        return refuse(agent, options, count && !to ? count : 0);
    weft_status st = wfi_spec_check(agent, &spec);
    if (!st)
        st = wfi_spec_pack(agent, &spec); /* what is wrong with the arguments is wrong for all */
    if (!st)
        st = start_all(agent, to, count, &spec, &all);
    wfi_shared_body_unref(packed);
    if (st)
        wfi_rpc_give_error(agent, options, wfi_spec_explain(agent, &spec, st, -1));
    else if (out)
        *out = all;
    else
        weft_future_unref(all); /* the calls go on alone */
    return st;
}
