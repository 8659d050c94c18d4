/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse.c - calls that are refused with nothing kept of them, as too much is held already, or as there is no memory.
 *
 * Every call is answered, and an answer is kept until the caller has acknowledged it. A caller that acknowledges nothing and calls on
 * would make us keep any number of refusals, each small. So from some point on they are told together: the ids of the calls that go
 * from one worker to another only grow, so that those which come one after the other lie between two ids, and none that was let in
 * does. One notification to each caller is under way at a time; the calls that are refused meanwhile wait for the next one as one more
 * range, and while they wait none is let in. So what a caller makes us keep does not depend on how many calls it makes.
 */
#include "rpc/server/server.h"
#include "rpc/agent/notify.h"

#include "rpc/agent/budget.h"
#include "rpc/server/stream.h"

#include <string.h>

bool wfi_refuses_calls_of(const weft_agent *agent, const wfi_peer *from)
{
    return agent->peers[wfi_peer_rank(from)].refused.first || wfi_budget_is_exhausted(agent);
}

static void tell_refused(weft_agent *agent, int rank);

static void refusal_arrived(weft_agent *agent, int rank)
{
    agent->peers[rank].refused.telling = false;
    tell_refused(agent, rank);
}

static void tell_refused(weft_agent *agent, int rank)
{
    wfi_rpc_peer *peer = &agent->peers[rank];
    uint8_t room[17];
    wfi_writer writer;
    if (!peer->refused.first || peer->refused.telling)
        return;
    wfi_writer_init(&writer, room, sizeof room);
    wfi_write_u64(&writer, peer->refused.first);
    wfi_write_u64(&writer, peer->refused.last);
    wfi_write_u8(&writer, peer->refused.no_memory);
    /* It answers a message that was just taken in, or follows a notification that just came back: there is memory for it. */
    if (wfi_post_and_hear(agent, wfi_net_peer(agent->net, rank), WFI_RPC_REFUSED, &writer, refusal_arrived))
        return;
    peer->refused.telling = true;
    peer->refused.first = peer->refused.last = 0;
    peer->refused.no_memory = false;
}

void wfi_refuse_call(weft_agent *agent, wfi_peer *from, uint64_t id, bool no_memory)
{
    wfi_rpc_peer *peer = &agent->peers[wfi_peer_rank(from)];
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (!peer->refused.first || id < peer->refused.first)
        peer->refused.first = id;
    if (id > peer->refused.last)
        peer->refused.last = id;
    peer->refused.no_memory |= no_memory;
    agent->stats.calls_refused++;
    tell_refused(agent, wfi_peer_rank(from));
}

void wfi_refusals_forget(weft_agent *agent, int rank)
{
    memset(&agent->peers[rank].refused, 0, sizeof agent->peers[rank].refused);
}
