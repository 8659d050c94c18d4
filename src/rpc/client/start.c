/* SPDX-License-Identifier: Apache-2.0 */
/* start.c - starts one call: finds the rank of its target (request.c does the rest). */
#include "rpc/client/client.h"

#include "base/error.h"

int wfi_target_resolve(weft_agent *agent, weft_target to, const char *function, weft_error **error)
{
    wfi_error_detail unknown = {.code = WEFT_ERR_NOT_FOUND, .function = function, .worker = -1};
    int rank = to.name && !agent->forked ? wfi_agent_find(agent, to.name, true) : to.name ? -1 : to.rank;
    if (rank >= 0 && rank < wfi_net_world_size(agent->net))
        return rank;
    if (!to.name && to.rank == WEFT_NAME_NULL) {
        wfi_error_detail no_name = {.code = WEFT_ERR_INVALID, .function = function, .worker = -1};
        *error = wfi_error_create(&no_name, "the name of the worker to be called is NULL");
        return -1;
    }
    weft_status gone = weft_agent_status(agent); /* out of the job no worker can be found by name */
    wfi_error_detail out_of_job = {.code = gone, .function = function, .worker = -1};
    if (to.name && gone)
        *error = wfi_error_create(&out_of_job, "worker \"%s\" cannot be called: %s", to.name, weft_status_text(gone));
    else if (to.name)
        *error = wfi_error_create(&unknown, "no worker is named \"%s\"", to.name);
    else
        *error = wfi_error_create(&unknown, "no worker has rank %d: the world size is %d", to.rank,
                                  wfi_net_world_size(agent->net));
    return -1;
}

weft_status wfi_call_begin(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error)
{
    int rank = wfi_target_resolve(agent, spec->to, spec->function, error);
    if (rank < 0)
        return weft_error_code(*error);
    weft_status st = wfi_call_start(agent, rank, spec, out);
    if (st)
        *error = wfi_spec_explain(agent, spec, st, rank);
    return st;
}
