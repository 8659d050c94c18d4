/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closing.c - weft_agent_serve, and the wait of weft_agent_close until the agent may end.
 *
 * In a static job, and on rank 0 of an elastic job: every worker that closes or serves answers the store's probes when
 * it is idle. The store (src/job/store/termination.c) detects that nothing is outstanding anywhere, and tells all
 * workers at once.
 *
 * The other workers of an elastic job leave one by one: when their own calls are answered, the calls that they serve
 * are finished, and all replies have reached the callers. Meanwhile they continue to serve; but a worker that others
 * keep busy for LEAVE_SERVING_MS refuses new calls.
 */
#include "rpc/agent/agent.h"

#include "base/text/refuse.h"

#define LEAVE_SERVING_MS 500
#define LEAVE_REFUSING_MS 500 /* the longest wait for the delivery of refusals and other messages */
#define CHECK_AGAIN_MS 1      /* a busy probed worker checks again: no event marks the end of continuations */

static bool is_idle(weft_agent *agent)
{
    if (!wfi_agent_is_ending(agent))
        return false;
    WFI_FOR_COMPONENTS (component, busy)
        if (component->busy(agent))
            return false;
    /* Does not wait for messages to workers that cannot be reached: these may be alive, so the wait might never end. */
    if (agent->notifications > 0 && !wfi_net_is_flushed(agent->net))
        return false;
    /* In this order: releasing an object may give the executor a task. */
    return wfi_net_is_released(agent->net) && wfi_executor_idle(agent->executor);
}

static void answer_if_idle(weft_agent *agent);

static void check_again(wfi_timer *timer)
{
    answer_if_idle(wfi_container_of(timer, weft_agent, probe_timer));
}

static void answer_if_idle(weft_agent *agent)
{
    agent->probed &= wfi_agent_is_ending(agent);
    if (!agent->probed)
        return;
    if (!is_idle(agent)) {
        agent->probe_timer.fire = check_again;
        uint64_t soon = wfi_deadline(wfi_net_clock(agent->net), CHECK_AGAIN_MS);
        if (wfi_net_timer_set(agent->net, &agent->probe_timer, soon))
            wfi_on_terminated(agent); /* no memory for a timer: leaving is better than hanging */
        return;
    }
    agent->probed = false;
    wfi_idle_report report = {.idle = true,
                              .started = agent->stats.calls_started,
                              .finished = agent->stats.calls_finished,
                              .served = agent->answered};
    wfi_net_report_idle(agent->net, agent->probe_wave, &report);
}

/* ---- Leaving an elastic job ------------------------------------------------------------------------------------ */

static bool owes_nothing(weft_agent *agent, uint64_t now_ns)
{
    WFI_FOR_COMPONENTS (component, serves)
        if (component->serves(agent))
            return false;
    bool refused_for_long = agent->refuses_calls && now_ns - agent->serves_until_ns >= LEAVE_REFUSING_MS * 1000000ull;
    return refused_for_long || wfi_net_is_flushed(agent->net);
}

static void leave_when_idle(weft_agent *agent)
{
    uint64_t now_ns = wfi_now(wfi_net_clock(agent->net));
    if (is_idle(agent) && owes_nothing(agent, now_ns)) {
        wfi_on_terminated(agent);
        return;
    }
    agent->refuses_calls = now_ns >= agent->serves_until_ns;
    if (wfi_net_timer_set(agent->net, &agent->probe_timer, now_ns + CHECK_AGAIN_MS * 1000000ull))
        wfi_on_terminated(agent); /* no memory for a timer: leaving is better than hanging */
}

static void leave_timer_fired(wfi_timer *timer)
{
    leave_when_idle(wfi_container_of(timer, weft_agent, probe_timer));
}

/* ---- The end of a job -------------------------------------------------------------------------------------------- */

void wfi_on_probe(void *arg, uint64_t wave)
{
    weft_agent *agent = arg;
    agent->probed = wfi_agent_is_ending(agent); /* otherwise the wave is void: this worker no longer serves */
    agent->probe_wave = wave;
    answer_if_idle(agent);
}

void wfi_on_terminated(void *arg)
{
    weft_agent *agent = arg;
    wfi_complete_future(agent->terminated, NULL, NULL); /* no-op if it is complete */
    if (agent->served)
        wfi_complete_future(agent->served, NULL, NULL);
}

/* [agent lock] */
static void begin_closing(weft_agent *agent)
{
    agent->closing = true;
    agent->closing_ns = wfi_now(wfi_net_clock(agent->net));
    WFI_FOR_COMPONENTS (component, closing)
        component->closing(agent);
    if (agent->gone) {
        wfi_on_terminated(agent);
    } else if (agent->options.values.elastic && wfi_agent_rank(agent) != 0) {
        wfi_net_leave(agent->net);
        agent->serves_until_ns = wfi_deadline(wfi_net_clock(agent->net), LEAVE_SERVING_MS);
        agent->probe_timer.fire = leave_timer_fired;
        leave_when_idle(agent);
    } else {
        wfi_net_begin_closing(agent->net);
    }
}

bool wfi_agent_await_end(weft_agent *agent, int64_t timeout_ms)
{
    const wfi_clock *clock = wfi_net_clock(agent->net);
    uint64_t until_ns = timeout_ms > 0 ? wfi_deadline(clock, timeout_ms) : WFI_NEVER;
    wfi_net_lock(agent->net);
    begin_closing(agent);
    wfi_awaited_watch(agent, until_ns);
    wfi_net_unlock(agent->net);
    if (agent->options.values.no_threads) {
        do {
            wfi_agent_progress(agent, 1); /* returns soon, so that the limit is checked */
        } while (!weft_future_done(agent->terminated) && wfi_now(clock) < until_ns);
    } else {
        (void)!wfi_future_wait_until(agent->terminated, until_ns); /* the future never fails */
    }
    wfi_net_lock(agent->net);
    bool has_ended = weft_future_done(agent->terminated);
    if (!has_ended)
        wfi_awaited_log(agent);
    wfi_net_unlock(agent->net);
    return has_ended;
}

/* ---- Serving ----------------------------------------------------------------------------------------------------- */

/* [agent lock] */
void wfi_on_served(void *arg, uint64_t number)
{
    weft_agent *agent = arg;
    if (agent->served && number == agent->serve_number)
        wfi_complete_future(agent->served, NULL, NULL);
}

/* Serves until `served` is complete, or the wait for it fails. Without a wait the store is not told: it could not
 * answer in time, and a loop of such calls would send more than it takes. */
static weft_status serve(weft_agent *agent, weft_future *served, int64_t wait_ms)
{
    wfi_net_lock(agent->net);
    weft_status status = wfi_agent_usable(agent);
    if (!status && (agent->closing || agent->serve_number)) {
        status = wfi_refuse(WEFT_ERR_STATE, "weft_agent_serve: %s",
                            agent->closing ? "this agent is closing, and serves until weft_agent_close returns"
                                           : "another thread serves with this agent: one at a time can");
    }
    if (status) {
        wfi_net_unlock(agent->net);
        return status;
    }
    agent->serve_number = ++agent->serves;
    agent->served = served;
    if (wait_ms)
        wfi_net_serve(agent->net, agent->serve_number);
    WFI_FOR_COMPONENTS (component, closing)
        component->closing(agent);
    wfi_net_unlock(agent->net);

    status = weft_future_wait(served, wait_ms);

    wfi_net_lock(agent->net);
    if (weft_future_done(served))
        status = wfi_agent_usable(agent);
    else if (wait_ms)
        wfi_net_serve(agent->net, 0);
    agent->serve_number = 0;
    agent->served = NULL;
    wfi_net_unlock(agent->net);
    return status;
}

weft_status weft_agent_serve(weft_agent *agent, int64_t wait_ms)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return wfi_refuse_null("weft_agent_serve", "the agent");
    if (wait_ms < WEFT_FOREVER)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_agent_serve: wait_ms is %lld: 0, more, or WEFT_FOREVER",
                          (long long)wait_ms);
    if (agent->forked)
        return WEFT_ERR_STATE;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    weft_status status = WEFT_ERR_DEADLOCK; /* in a handler it would wait for itself */
    weft_future *served = NULL;
    if (!wfi_agent_is_inside(agent)) {
        served = wfi_agent_future(agent);
        status = served ? serve(agent, served, wait_ms) : WEFT_ERR_MEMORY;
    }
    weft_future_unref(served);
    wfi_agent_leave(agent);
    return status == WEFT_ERR_JOB_ENDED ? WEFT_OK : status;
}
