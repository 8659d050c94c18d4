/* SPDX-License-Identifier: Apache-2.0 */
/* refs.c - remote references as a component of the agent. */
#include "rpc/refs/refs.h"

static void on_unreachable(weft_agent *agent, wfi_peer *peer, const char *text)
{
    (void)text;
    wfi_rrefs_peer_unreachable(agent, peer);
}

static bool awaits_owners(weft_agent *agent)
{
    return wfi_rrefs_await_owners(agent);
}

/* Nobody will be confirmed any more. */
static void fail_all(weft_agent *agent, weft_status why, const char *text)
{
    (void)why;
    (void)text;
    wfi_rrefs_end(agent);
}

const wfi_component wfi_refs_component = {
    .messages = WFI_TAKES(WFI_RPC_FORK) | WFI_TAKES(WFI_RPC_FORKED) | WFI_TAKES(WFI_RPC_DROP),
    .message = wfi_on_rref_message,
    .peer_gone = wfi_rrefs_peer_gone,
    .peer_joined = wfi_rrefs_peer_joined,
    .unreachable = on_unreachable,
    .serves = awaits_owners,
    .leaks = wfi_rrefs_report_leaks,
    .fail = fail_all,
    .close = wfi_rrefs_fini,
};
