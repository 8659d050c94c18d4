/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closing.c - the graceful end of a job. Every worker that closes answers the store's probes when it is idle; the store
 * (src/net/store_end.c) finds out that nothing is outstanding anywhere, and says so to all at once.
 */
#include "rpc/agent.h"
#include "rpc/group.h"

#include "base/error.h"

#define LOOK_AGAIN_MS 1 /* a worker that is busy when probed looks again: continuations have no common end to hook on */

static bool is_idle(const weft_agent *agent)
{
    return agent->closing && agent->calls.count == 0 && wfi_list_empty(&agent->retries) && agent->serving == 0 &&
           agent->letters == 0 && wfi_executor_idle(agent->executor);
}

static void answer_if_idle(weft_agent *agent);

static void look_again(wfi_timer *timer)
{
    answer_if_idle(wfi_container_of(timer, weft_agent, probe_timer));
}

static void answer_if_idle(weft_agent *agent)
{
    if (!agent->probed)
        return;
    if (!is_idle(agent)) {
        agent->probe_timer.fire = look_again;
        uint64_t soon = wfi_deadline(wfi_net_clock(agent->net), LOOK_AGAIN_MS);
        if (wfi_net_timer_set(agent->net, &agent->probe_timer, soon))
            wfi_on_terminated(agent); /* no memory even for a timer: leave rather than hang */
        return;
    }
    agent->probed = false;
    wfi_idle_report report = {.idle = true,
                              .started = agent->stats.calls_started,
                              .finished = agent->stats.calls_finished,
                              .served = agent->stats.calls_served};
    wfi_net_report_idle(agent->net, agent->probe_round, &report);
}

void wfi_on_probe(void *arg, uint64_t round)
{
    weft_agent *agent = arg;
    agent->probed = true;
    agent->probe_round = round;
    answer_if_idle(agent);
}

void wfi_on_terminated(void *arg)
{
    weft_agent *agent = arg;
    weft_status st = weft_future_complete(agent->terminated, NULL, NULL);
    (void)st; /* once is enough */
}

weft_status wfi_agent_await_end(weft_agent *agent)
{
    wfi_net_lock(agent->net);
    agent->closing = true;
    wfi_groups_closing(agent);
    if (agent->gone)
        wfi_on_terminated(agent);
    else
        wfi_net_begin_closing(agent->net);
    wfi_net_unlock(agent->net);
    weft_status st = WEFT_OK;
    if (agent->options.values.no_threads) {
        while (!weft_future_done(agent->terminated))
            weft_agent_progress(agent, 10);
    } else {
        st = weft_future_wait(agent->terminated, WEFT_FOREVER);
    }
    return st ? st : weft_agent_status(agent);
}
