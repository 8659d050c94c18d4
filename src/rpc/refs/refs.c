/* SPDX-License-Identifier: Apache-2.0 */
/* refs.c - remote references as a component of the agent. */
#include "rpc/refs/refs.h"

#include "base/alloc.h"
#include "rpc/refs/internal.h"

#include <stdlib.h>

static weft_status open_refs(weft_agent *agent, weft_error **error)
{
    wfi_refs *refs = wfi_calloc(1, sizeof(*refs));
    (void)error;
    if (!refs)
        return WEFT_ERR_MEMORY;
    agent->state[WFI_STATE_REFS] = refs;
    wfi_map_init(&refs->owned);
    wfi_map_init(&refs->forks);
    wfi_map_init_keyed(&refs->fork_index, &agent->hash_key);
    wfi_list_init(&refs->references);
    refs->peers = wfi_calloc((size_t)agent->options.values.world_size, sizeof(*refs->peers));
    return refs->peers ? WEFT_OK : WEFT_ERR_MEMORY;
}

static void close_refs(weft_agent *agent)
{
    if (wfi_refs_of(agent))
        wfi_rrefs_fini(agent);
}

/* Called when the last handle of the user is gone: handles hold the agent. */
static void free_refs(weft_agent *agent)
{
    wfi_refs *refs = wfi_refs_of(agent);
    if (refs)
        free(refs->peers);
    free(refs);
}

const wfi_component wfi_refs_component = {
    .messages = WFI_TAKES(WFI_RPC_FORK) | WFI_TAKES(WFI_RPC_FORKED) | WFI_TAKES(WFI_RPC_DROP),
    .open = open_refs,
    .message = wfi_on_rref_message,
    .peer_gone = wfi_rrefs_peer_gone,
    .peer_joined = wfi_rrefs_peer_joined,
    .unreachable = wfi_rrefs_peer_unreachable,
    .serves = wfi_rrefs_await_owners,
    .leaks = wfi_rrefs_report_leaks,
    .fail = wfi_rrefs_end,
    .close = close_refs,
    .free = free_refs,
};
