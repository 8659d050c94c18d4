/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse.c - calls that are refused with nothing kept of them, as too much is held already, or as there is no memory.
 *
 * Every call is answered, and an answer is kept until the caller has acknowledged it. A caller that acknowledges nothing and calls on
 * would make us keep any number of refusals, each small. So from some point on they are told together: the ids of the calls that go
 * from one worker to another only grow, so that those which come one after the other lie between two ids, and none that was let in
 * does. One letter to each caller is under way at a time; the calls that are refused meanwhile wait for the next one as one more
 * range, and while they wait none is let in. So what a caller makes us keep does not depend on how many calls it makes.
 */
#include "rpc/server/server.h"
#include "rpc/agent/notify.h"

#include "base/error.h"
#include "rpc/agent/budget.h"
#include "rpc/server/stream.h"

#include <stdlib.h>
#include <string.h>

/* ---- The callee's side --------------------------------------------------------------------------------------------- */

bool wfi_refuses_calls_of(const weft_agent *agent, const wfi_peer *from)
{
    return agent->peers[wfi_peer_rank(from)].refused.first || wfi_budget_is_exhausted(agent);
}

static void tell(weft_agent *agent, int rank);

static void arrived(weft_agent *agent, int rank)
{
    agent->peers[rank].refused.telling = false;
    tell(agent, rank);
}

static void tell(weft_agent *agent, int rank)
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
    /* It answers a message that was just taken in, or follows a letter that just came back: there is memory for it. */
    if (wfi_post_and_hear(agent, wfi_net_peer(agent->net, rank), WFI_RPC_REFUSED, &writer, arrived))
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
    tell(agent, wfi_peer_rank(from));
}

void wfi_refusals_forget(weft_agent *agent, int rank)
{
    memset(&agent->peers[rank].refused, 0, sizeof agent->peers[rank].refused);
}

/* ---- The caller's --------------------------------------------------------------------------------------------------- */

/*
 * A result that is to stay there has a name, which is left open only where its owner knows it (WEFT_ERR_BUSY): here it does not.
 */
static void refuse(wfi_outcall *call, bool no_memory)
{
    wfi_error_detail detail = {.code = call->remote || no_memory ? WEFT_ERR_MEMORY : WEFT_ERR_BUSY,
                               .function = call->function,
                               .worker = wfi_peer_rank(call->peer)};
    weft_error *error = wfi_error_create(&detail, "that worker is %s: the call did not run",
                                         no_memory ? "out of memory" : "over its memory budget");
    wfi_observe_answered(call);
    if (call->parts)
        (void)wfi_parts_in_expect(call->parts, 0);
    wfi_call_complete(call, NULL, error, !call->land_exposed); /* as after a REPLY with an error */
    weft_error_unref(error);
}

/* Whether it may be one of those: it has left, and was not answered. */
static bool is_open_to(const wfi_outcall *call, const wfi_peer *from)
{
    return call && call->peer == from && call->message.net.sequence && call->results.state == WFI_INTAKE_NEW &&
           !call->failure && !call->completed;
}

static void refuse_by_ids(weft_agent *agent, const wfi_peer *from, uint64_t first, uint64_t last, bool no_memory)
{
    for (uint64_t id = first; id <= last; id++) {
        wfi_outcall *call = wfi_map_get(&agent->calls, id);
        if (is_open_to(call, from))
            refuse(call, no_memory);
    }
}

/* The table changes as calls end: they are listed first. False: no memory for that. */
static bool refuse_by_table(weft_agent *agent, const wfi_peer *from, uint64_t first, uint64_t last, bool no_memory)
{
    size_t cursor = 0, count = 0;
    uint64_t id;
    wfi_outcall *call, **list = malloc((agent->calls.count + 1) * sizeof *list);
    while (list && (call = wfi_map_next(&agent->calls, &cursor, &id)))
        if (id >= first && id <= last && is_open_to(call, from))
            list[count++] = call;
    for (size_t i = 0; i < count; i++)
        refuse(list[i], no_memory);
    free(list);
    return list != NULL;
}

void wfi_calls_on_refused(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    uint64_t *heard = &agent->peers[wfi_peer_rank(from)].refused.heard;
    uint64_t first = wfi_read_u64(reader), last = wfi_read_u64(reader);
    bool no_memory = wfi_read_u8(reader);
    uint64_t none_below = agent->next_call_id >> 40 << 40; /* of this life of ours */
    if (last > agent->next_call_id)
        last = agent->next_call_id;
    if (first < none_below)
        first = none_below;
    if (first <= *heard) /* each id once, so that nobody can have us look for them again and again */
        first = *heard + 1;
    if (reader->failed || first > last)
        return;
    *heard = last;
    if (last - first < agent->calls.count || !refuse_by_table(agent, from, first, last, no_memory))
        refuse_by_ids(agent, from, first, last, no_memory);
}
