/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overload.c - refuses queued calls when all threads of the executor wait.
 *
 * If a handler waits, the executor starts another thread, up to a limit. At the limit all threads may wait for calls
 * that are in the same queue, or in the full queue of another worker: a deadlock until some deadline passes. So if all
 * threads wait and none has taken a task for a second, the queued calls, which have not run, are refused with
 * WEFT_ERR_BUSY.
 */
#include "rpc/agent/agent.h"

#define LOOK_AFTER_MS 1000

static void check_workers(wfi_timer *timer)
{
    weft_agent *agent = wfi_container_of(timer, weft_agent, overload_timer);
    uint64_t taken, before = agent->overload_taken;
    bool stuck = wfi_executor_is_stuck(agent->executor, &taken);
    if (stuck && agent->overload_seen && taken == before) {
        size_t count = 0;
        WFI_FOR_COMPONENTS (component, refuse_queued)
            count += component->refuse_queued(agent);
        agent->stats.calls_refused += count;
        wfi_agent_log(agent, WEFT_LOG_WARN, 0,
                      "all threads for handlers wait, and none took a call for a second: %zu calls refused", count);
    }
    agent->overload_seen = stuck;
    agent->overload_taken = taken;
    wfi_overload_watch(agent);
}

/* Sets no timer while there is a thread for each call, and no handler waits. */
void wfi_overload_watch(weft_agent *agent)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (agent->stopped || agent->overload_timer.heap_index)
        return;
    /* handlers wait, too, whose callers have given up: such calls do not count as being served */
    if (agent->serving <= (size_t)agent->options.values.threads && !wfi_executor_has_waiting(agent->executor))
        return;
    agent->overload_timer.fire = check_workers;
    uint64_t when = wfi_deadline(wfi_net_clock(agent->net), LOOK_AFTER_MS);
    if (wfi_net_timer_set(agent->net, &agent->overload_timer, when))
        wfi_agent_log(agent, WEFT_LOG_WARN, 0,
                      "no memory to watch over a queue of calls: it is tried again with the next call");
}
