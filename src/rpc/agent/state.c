/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - simple queries of an agent (rank, clock, statistics), and wfi_agent_enter for calls after it was closed. */
#include "base/text/sized.h"
#include "rpc/agent/agent.h"

/* This increments the counter and then reads the flag; closing sets the flag and then reads the counter. So at least
 * one of the two sees the other. */
bool wfi_agent_enter(weft_agent *agent)
{
    atomic_fetch_add(&agent->late_users, 1);
    if (!atomic_load(&agent->closed))
        return true;
    atomic_fetch_sub(&agent->late_users, 1);
    return false;
}

void wfi_agent_leave(weft_agent *agent)
{
    atomic_fetch_sub(&agent->late_users, 1);
}

bool wfi_agent_enter_locked(weft_agent *agent)
{
    if (!wfi_agent_enter(agent))
        return false;
    wfi_net_lock(agent->net);
    return true;
}

void wfi_agent_leave_locked(weft_agent *agent)
{
    wfi_net_unlock(agent->net);
    wfi_agent_leave(agent);
}

bool wfi_agent_is_inside(weft_agent *agent)
{
    wfi_driver *driver = wfi_net_driver(agent->net);
    wfi_parker nobody;
    if (wfi_executor_current() == agent->executor)
        return true;
    wfi_parker_init(&nobody);
    return !driver->drive(driver, &nobody, 0); /* refused on the thread of inline handlers */
}

weft_status wfi_agent_usable(const weft_agent *agent)
{
    return agent->stopped ? WEFT_ERR_CLOSED : agent->gone;
}

int weft_agent_rank(const weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    return agent ? agent->options.values.rank : -1;
}

int weft_agent_world_size(const weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    return agent ? agent->options.values.world_size : 0;
}

_Static_assert((int)WEFT_LANE_CONTROL == (int)WFI_CONTROL && (int)WEFT_LANE_BULK == (int)WFI_BULK, "the same lanes");

weft_status weft_agent_fabric(const weft_agent *agent, int rank, weft_lane lane, char *out, size_t room)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return wfi_refuse_null("weft_agent_fabric", "the agent");
    if (!out)
        return wfi_refuse_null("weft_agent_fabric", "out");
    if (lane != WEFT_LANE_CONTROL && lane != WEFT_LANE_BULK)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_agent_fabric: lane is %d: WEFT_LANE_CONTROL or WEFT_LANE_BULK",
                          (int)lane);
    if (rank < 0 || rank >= agent->options.values.world_size || rank == agent->options.values.rank)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_agent_fabric: rank is %d: the rank of another worker, below %d", rank,
                          agent->options.values.world_size);
    wfi_net_lock(agent->net);
    const wfi_peer *peer = wfi_net_peer(agent->net, rank);
    if (peer)
        wfi_peer_fabric_text(peer, (wfi_lane_kind)lane, out, room);
    wfi_net_unlock(agent->net);
    if (!peer)
        return wfi_refuse(WEFT_ERR_NOT_FOUND, "weft_agent_fabric: rank %d: " WFI_UNKNOWN_RANK_TEXT, rank,
                          agent->options.name);
    return WEFT_OK;
}

int weft_agent_store_port(const weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    return agent && !agent->options.values.sim ? agent->options.values.master_port : 0;
}

/* Called by signal handlers: takes no lock, allocates nothing. */
void weft_agent_wake(weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    if (agent && !agent->forked)
        wfi_net_call_program(agent->net);
}

bool weft_agent_clear_wake(weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    return agent && wfi_net_clear_call(agent->net);
}

uint64_t weft_agent_now_ns(const weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    return agent ? wfi_now(wfi_net_clock(agent->net)) : 0;
}

weft_status weft_agent_status(const weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return wfi_refuse_null("weft_agent_status", "the agent");
    if (agent->forked)
        return WEFT_ERR_STATE;
    wfi_net_lock(agent->net);
    weft_status status = agent->gone;
    wfi_net_unlock(agent->net);
    return status;
}

static size_t run_handlers(weft_agent *agent)
{
    const wfi_clock *clock = wfi_net_clock(agent->net);
    return wfi_executor_run_some(agent->executor, clock, wfi_now(clock) + WFI_HANDLERS_NS);
}

size_t wfi_agent_progress(weft_agent *agent, int64_t wait_ms)
{
    if (!agent->options.values.no_threads || agent->forked)
        return 0;
    size_t ran = run_handlers(agent);
    size_t handled = wfi_net_progress(agent->net, ran ? 0 : wait_ms);
    return ran + handled + run_handlers(agent);
}

size_t weft_agent_progress(weft_agent *agent, int64_t wait_ms)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent || !agent->options.values.no_threads || agent->forked)
        return 0;
    size_t ran = run_handlers(agent);
    size_t handled = wfi_net_progress_of_program(agent->net, ran ? 0 : wait_ms);
    return ran + handled + run_handlers(agent);
}

weft_status weft_agent_set_call_timeout(weft_agent *agent, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return wfi_refuse_null("weft_agent_set_call_timeout", "the agent");
    if (timeout_ms < WEFT_FOREVER)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_agent_set_call_timeout: timeout_ms is %lld: 0, more, or WEFT_FOREVER",
                          (long long)timeout_ms);
    if (agent->forked)
        return WEFT_ERR_STATE;
    wfi_net_lock(agent->net);
    agent->call_timeout_ms = timeout_ms ? timeout_ms : 60000;
    wfi_net_unlock(agent->net);
    return WEFT_OK;
}

void weft_agent_stats_sized(const weft_agent *agent, weft_stats *out, size_t size)
{
    WFI_CHECK_HANDLE(agent);
    weft_stats stats = {0};
    if (!out)
        return;
    if (agent && !agent->forked) {
        wfi_net_lock(agent->net);
        stats = agent->stats;
        stats.bytes_held = agent->held_bytes;
        wfi_net_stats(agent->net, &stats); /* sets net's counters; the lines below add bytes that net cannot count */
        stats.bytes_sent += agent->stats.bytes_sent;
        stats.bytes_received += agent->stats.bytes_received;
        wfi_net_unlock(agent->net);
    }
    wfi_sized_give(out, size, &stats, sizeof(stats));
}
