/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c - what net tells us: messages by type, and who is gone. All with the agent's lock held. */
#include "rpc/agent/agent.h"
#include "rpc/client/client.h"
#include "rpc/group/group.h"
#include "rpc/server/stream.h"
#include "rpc/refs/refs.h"
#include "rpc/batch/batch.h"

#include "base/text/log.h"

static void on_known_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    switch (type) {
    case WFI_RPC_CALL:
        wfi_serve_on_call(agent, from, reader);
        break;
    case WFI_RPC_REPLY:
        wfi_call_on_reply(agent, from, reader);
        break;
    case WFI_RPC_DONE:
        wfi_serve_on_done(agent, from, wfi_read_u64(reader));
        break;
    case WFI_RPC_CANCEL:
        wfi_serve_on_cancel(agent, from, reader);
        break;
    case WFI_RPC_PART:
        wfi_parts_in_on_part(agent, from, reader);
        break;
    case WFI_RPC_TOOK:
        wfi_serve_on_took(agent, from, reader);
        break;
    case WFI_RPC_REFUSED:
        wfi_calls_on_refused(agent, from, reader);
        break;
    case WFI_RPC_FORK:
    case WFI_RPC_FORKED:
    case WFI_RPC_DROP:
        wfi_on_rref_message(agent, from, type, reader);
        break;
    default:
        wfi_log_agent(agent, WEFT_LOG_WARN, 0, "rank %d sent a message of unknown type %u", wfi_peer_rank(from), type);
    }
}

void wfi_on_message(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    weft_agent *agent = arg;
    wfi_reader reader;
    if (agent->stopped)
        return;
    if (!wfi_letters_ready(agent)) {
        wfi_net_untake(agent->net); /* no memory to answer it with */
        return;
    }
    wfi_reader_init(&reader, bytes, size);
    on_known_message(agent, from, type, &reader);
}

void wfi_on_peer_gone(void *arg, wfi_peer *peer, weft_status why, const char *text)
{
    weft_agent *agent = arg;
    int rank = wfi_peer_rank(peer);
    wfi_calls_fail_all(agent, peer, why, text);
    wfi_serve_peer_gone(agent, rank, why, text);
    wfi_refusals_forget(agent, rank);
    wfi_rrefs_peer_gone(agent, peer, why, text);
    wfi_groups_peer_gone(agent, peer, why);
    wfi_batchers_pump(agent);
    if (why == WEFT_ERR_PEER_DEAD)
        wfi_membership_tell(agent, WEFT_MEMBER_DEAD, rank, text);
    else if (why == WEFT_ERR_PEER_LEFT)
        wfi_membership_tell(agent, WEFT_MEMBER_LEFT, rank, text);
}

void wfi_on_peer_unreachable(void *arg, wfi_peer *peer, const char *text)
{
    weft_agent *agent = arg;
    wfi_calls_fail_all(agent, peer, WEFT_ERR_UNREACHABLE, text);
    wfi_rrefs_peer_unreachable(agent, peer);
}

void wfi_on_peer_joined(void *arg, wfi_peer *peer)
{
    wfi_rrefs_peer_joined(arg, peer);
    wfi_groups_peer_joined(arg, peer);
    wfi_membership_tell(arg, WEFT_MEMBER_JOINED, wfi_peer_rank(peer), "it joined the job");
}

void wfi_on_self_gone(void *arg, weft_status why, const char *text)
{
    weft_agent *agent = arg;
    agent->gone = why;
    wfi_calls_fail_all(agent, NULL, why, text);
    wfi_membership_tell(agent, why == WEFT_ERR_EVICTED ? WEFT_SELF_EVICTED : WEFT_STORE_LOST,
                        why == WEFT_ERR_EVICTED ? wfi_agent_rank(agent) : 0, text);
    wfi_on_terminated(agent);
}
