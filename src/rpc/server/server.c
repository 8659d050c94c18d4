/* SPDX-License-Identifier: Apache-2.0 */
/* server.c - the callee's side as a component of the agent: which messages it takes, and when it is done. */
#include "rpc/server/server.h"

#include "rpc/refs/refs.h"

static void on_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    switch (type) {
    case WFI_RPC_CALL:
        wfi_serve_on_call(agent, from, reader);
        break;
    case WFI_RPC_DONE:
        wfi_serve_on_done(agent, from, wfi_read_u64(reader));
        break;
    case WFI_RPC_CANCEL:
        wfi_serve_on_cancel(agent, from, reader);
        break;
    default:
        wfi_serve_on_took(agent, from, reader);
    }
}

static void on_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    int rank = wfi_peer_rank(peer);
    wfi_serve_peer_gone(agent, rank, why, text);
    wfi_refusals_forget(agent, rank);
}

static size_t turn_away(weft_agent *agent)
{
    size_t count = 0;
    for (wfi_task *task; (task = wfi_executor_withdraw(agent->executor, wfi_serve_handler_task)); count++)
        wfi_serve_turn_away(wfi_container_of(task, weft_call, task));
    return count;
}

/* ---- The end ----------------------------------------------------------------------------------------------------------- */

static bool is_busy(weft_agent *agent)
{
    return agent->serving > 0;
}

/* A call in it is served, its answer on its way, or kept until the caller has it. What nobody waits for any more, perhaps a
 * deferred call that is never finished, keeps nobody; nor does one whose caller cannot be reached, once it is answered. */
static bool serves_somebody(const wfi_map *serving)
{
    size_t cursor = 0;
    const weft_call *call = wfi_map_next(serving, &cursor, NULL);
    while (call && ((call->stage == WFI_SERVE_SERVING && atomic_load(&call->cancel_reason)) ||
                    (call->stage != WFI_SERVE_SERVING && call->peer && wfi_peer_is_unreachable(call->peer))))
        call = wfi_map_next(serving, &cursor, NULL);
    return call != NULL;
}

static bool serves_others(weft_agent *agent)
{
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (serves_somebody(&agent->peers[rank].serving))
            return true;
    return false;
}

/* Those who wait here for values hear why these will not be made before the calls that would make them end. */
static void fail_all(weft_agent *agent, weft_status why, const char *text)
{
    wfi_owned_fail_all(agent, why, "the owner closed its agent before the value was made");
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        wfi_serve_peer_gone(agent, rank, why, text);
}

static void close_server(weft_agent *agent)
{
    if (agent->peers)
        wfi_serve_orphan_all(agent);
}

const wfi_component wfi_server_component = {
    .messages = WFI_TAKES(WFI_RPC_CALL) | WFI_TAKES(WFI_RPC_DONE) | WFI_TAKES(WFI_RPC_CANCEL) | WFI_TAKES(WFI_RPC_TOOK),
    .message = on_message,
    .peer_gone = on_peer_gone,
    .turn_away = turn_away,
    .busy = is_busy,
    .serves = serves_others,
    .fail = fail_all,
    .drain = wfi_inbound_await,
    .close = close_server,
};
