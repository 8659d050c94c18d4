/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.c - the same call to many workers: packs it once (shared.c), starts the calls, joins their futures. */
#include "base/alloc.h"
#include "rpc/client/client.h"

#include <stdlib.h>

static weft_status start_all(weft_agent *agent, const weft_target *to, size_t count, const wfi_call_spec *spec,
                             weft_future **out)
{
    weft_future **futures = wfi_calloc(count, sizeof(*futures)), *all = NULL;
    bool whole = futures != NULL;
    for (size_t i = 0; i < count && whole; i++) {
        wfi_call_spec one = *spec;
        weft_error *error = NULL;
        one.to = to[i];
        one.source = NULL; /* each call has its own place in the order of the tape */
        if (wfi_rpc_start(agent, &one, &futures[i], &error))
            futures[i] = wfi_failed_future(agent, error); /* this target cannot be called; the others can */
        weft_error_unref(error);
        whole = futures[i] != NULL;
    }
    if (whole)
        all = weft_future_when_all(futures, count);
    for (size_t i = 0; futures && i < count && futures[i]; i++) {
        weft_status unwanted = all ? WEFT_OK : weft_future_cancel(futures[i]);
        (void)unwanted;
        weft_future_unref(futures[i]);
    }
    free(futures);
    *out = all;
    return all ? WEFT_OK : WEFT_ERR_MEMORY;
}

weft_status weft_rpc_multicast_sized(weft_agent *agent, const weft_target *to, size_t count, const char *function,
                                     weft_args arguments, const weft_rpc_options *options, size_t size,
                                     weft_future **out)
{
    WFI_CHECK_HANDLE(agent);
    weft_rpc_options own;
    wfi_shared_body *packed = NULL;
    weft_future *all = NULL;
    options = wfi_rpc_options(options, size, function, &own);
    if (!options)
        return WEFT_ERR_INVALID;
    wfi_call_spec spec = {.function = function,
                          .arguments = arguments,
                          .options = options,
                          .packed = &packed,
                          .parent = &options->parent};
    if (!agent)
        return wfi_rpc_refuse_null(options, function, "the agent");
    if (options->land.count || options->on_item || (count && !to)) {
        weft_error *error =
            count && !to ? weft_error_create(WEFT_ERR_INVALID, "%zu targets at NULL", count)
                         : weft_error_create(WEFT_ERR_INVALID, "a multicast takes neither landing places nor items");
        wfi_rpc_give_error(agent, options, error);
        return WEFT_ERR_INVALID;
    }
    weft_error *error = NULL;
    weft_status status = agent->forked ? WEFT_ERR_STATE : wfi_spec_check(agent, &spec);
    if (!status)
        status = wfi_spec_find_source(agent, &spec, &error);
    if (!status)
        status = wfi_spec_pack(agent, &spec); /* invalid arguments fail the multicast as a whole */
    if (!status)
        status = start_all(agent, to, count, &spec, &all);
    wfi_shared_body_unref(packed);
    if (spec.source)
        wfi_recording_ops_get()->unref(spec.source);
    if (status)
        wfi_rpc_give_error(agent, options, error ? error : wfi_spec_explain(agent, &spec, status, -1));
    else if (out)
        *out = all;
    else
        weft_future_unref(all); /* the calls continue */
    return status;
}
