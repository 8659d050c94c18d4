/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse.c - refuses calls: with an error, or, if the budget is exhausted or memory is out, without allocating memory.
 *
 * Every call is answered, and an answer is kept until the caller has acknowledged it. A caller that acknowledges
 * nothing and keeps calling could make this worker store any number of refusals. So when the budget is exhausted one
 * REFUSED message names a range of ids, for many calls. The ids of a caller's calls only grow, so the range contains
 * only refused calls. One REFUSED to each caller is in flight at a time. Calls that are refused meanwhile form one more
 * range, which waits for the acknowledgement; while it waits, all further calls of that caller are refused too. So the
 * memory for a caller's refusals does not grow with the number of its calls.
 */
#include "rpc/server/server.h"
#include "rpc/agent/notify.h"

#include "rpc/agent/budget.h"

#include <string.h>

/* ---- Without memory ---------------------------------------------------------------------------------------------- */

bool wfi_serve_refuses_all_of(const weft_agent *agent, const wfi_peer *from)
{
    return agent->peers[wfi_peer_rank(from)].refused.first || wfi_budget_is_exhausted(agent);
}

static void send_refused(weft_agent *agent, int rank);

static void refusal_arrived(weft_agent *agent, int rank)
{
    agent->peers[rank].refused.in_flight = false;
    send_refused(agent, rank);
}

static void send_refused(weft_agent *agent, int rank)
{
    wfi_rpc_peer *peer = &agent->peers[rank];
    uint8_t room[17];
    wfi_writer writer;
    if (!peer->refused.first || peer->refused.in_flight)
        return;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_write_u64(&writer, peer->refused.first);
    wfi_write_u64(&writer, peer->refused.last);
    wfi_write_u8(&writer, peer->refused.no_memory);
    /* There is a notification for it: it answers a message that just arrived, or another one was just acknowledged. */
    if (wfi_post_then(agent, wfi_net_peer(agent->net, rank), WFI_RPC_REFUSED, &writer, refusal_arrived))
        return;
    peer->refused.in_flight = true;
    peer->refused.first = peer->refused.last = 0;
    peer->refused.no_memory = false;
}

void wfi_serve_refuse_by_id(weft_agent *agent, wfi_peer *from, uint64_t id, bool no_memory)
{
    wfi_rpc_peer *peer = &agent->peers[wfi_peer_rank(from)];
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (!peer->refused.first || id < peer->refused.first)
        peer->refused.first = id;
    if (id > peer->refused.last)
        peer->refused.last = id;
    peer->refused.no_memory |= no_memory;
    agent->stats.calls_refused++;
    send_refused(agent, wfi_peer_rank(from));
}

void wfi_refusals_forget(weft_agent *agent, int rank)
{
    memset(&agent->peers[rank].refused, 0, sizeof(agent->peers[rank].refused));
}

/* ---- With an error ----------------------------------------------------------------------------------------------- */

static void refuse_task(wfi_task *task)
{
    weft_call *call = wfi_container_of(task, weft_call, task);
    call->responder->respond(call);
}

void wfi_serve_withdraw(weft_call *call, weft_error *error)
{
    wfi_order_leave(call);
    call->error = error;
    call->task.run = refuse_task;
    wfi_net_defer(call->agent->net, &call->task, WFI_DEFER_RELEASE);
}

void wfi_serve_refuse_queued(weft_call *call)
{
    wfi_serve_withdraw(call, wfi_call_error(call, WEFT_ERR_BUSY, "all threads for handlers of %s wait: it did not run",
                                            call->agent->options.name));
}

void wfi_serve_refuse(weft_call *call, weft_error *error)
{
    wfi_order_leave(call);
    call->error = error;
    call->stage = WFI_SERVE_SERVING;
    call->span.ready_ns = wfi_net_now(call->agent->net);
    call->holds += 2; /* as in wfi_serve_run */
    call->task.run = refuse_task;
    call->task.urgency = WFI_NORMAL;
    wfi_net_defer(call->agent->net, &call->task, WFI_DEFER_RELEASE);
}
