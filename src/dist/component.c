/* SPDX-License-Identifier: Apache-2.0 */
/* component.c - src/dist as a component of the agent (rpc/agent/component.h). */
#include "dist/contexts.h"
#include "dist/pass_impl.h"

static weft_status open_all(weft_agent *agent, weft_error **error)
{
    (void)error;
    weft_status st = wfi_contexts_open(agent);
    if (!st)
        st = wfi_passes_register(agent);
    return st ? st : wfi_remote_roots_register(agent);
}

const wfi_component wfi_dist_component = {
    .open = open_all,
    .peer_gone = wfi_contexts_peer_gone,
    .busy = wfi_contexts_are_busy,
    .awaits = wfi_contexts_await,
    .dump = wfi_contexts_dump,
    .metrics = wfi_contexts_write_metrics,
    .leaks = wfi_contexts_leaks,
    .fail = wfi_contexts_fail_all,
    .close = wfi_contexts_close,
};
