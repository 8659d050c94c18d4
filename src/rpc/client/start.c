/* SPDX-License-Identifier: Apache-2.0 */
/* start.c - starts one call: finds its target's rank, and makes it a call to another worker (request.c) or to this one
 * (loopback.c). */
#include "rpc/client/client.h"

int wfi_target_resolve(weft_agent *agent, weft_target to, weft_error **error)
{
    int rank = to.name ? weft_agent_find(agent, to.name) : to.rank;
    if (rank >= 0 && rank < wfi_net_world_size(agent->net))
        return rank;
    weft_status gone = weft_agent_status(agent); /* then nobody has a name any more */
    if (to.name && gone)
        *error = weft_error_create(gone, "worker \"%s\" cannot be called: %s", to.name, weft_status_text(gone));
    else if (to.name)
        *error = weft_error_create(WEFT_ERR_NOT_FOUND, "no worker is named \"%s\"", to.name);
    else
        *error = weft_error_create(WEFT_ERR_NOT_FOUND, "no worker has rank %d: the world size is %d", to.rank,
                                   wfi_net_world_size(agent->net));
    return -1;
}

weft_status wfi_call_begin(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error)
{
    int rank = wfi_target_resolve(agent, spec->to, error);
    if (rank < 0)
        return weft_error_code(*error);
    bool home = rank == wfi_agent_rank(agent);
    weft_status st = home ? wfi_call_start_local(agent, spec, out) : wfi_call_start(agent, rank, spec, out);
    if (st)
        *error = wfi_spec_explain(agent, spec, st, rank);
    return st;
}
