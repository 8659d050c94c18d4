/* SPDX-License-Identifier: Apache-2.0 */
/*
 * awaited.c - logs what weft_agent_close waits for: after 5 s, then every minute, and when its time limit passes.
 *
 * A server waits in weft_agent_close until the others close. So the lines are at level info in the first minute, and at
 * warn from then on.
 *
 * The components describe what is in flight here (`awaits`). Only the store knows which workers have not closed. It is
 * queried, and its answer is logged when it arrives. If the wait has a limit, the query is sent before the limit
 * passes, so that the answer has usually arrived when the wait ends.
 */
#include "rpc/agent/agent.h"

#include "base/error.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <string.h>

#define FIRST_NS (5ull * 1000 * 1000 * 1000)
#define EVERY_NS (60ull * 1000 * 1000 * 1000)
#define WARN_NS EVERY_NS
#define ASK_BEFORE_NS (1000ull * 1000 * 1000) /* before the limit; at most half of the wait */

void wfi_awaits_add(wfi_awaits *out, const char *format, ...)
{
    va_list args;
    if (out->used + 2 >= sizeof(out->text))
        return;
    if (out->kinds++)
        out->used += (size_t)snprintf(out->text + out->used, sizeof(out->text) - out->used, "; ");
    va_start(args, format);
    wfi_utf8_print_v(out->text + out->used, sizeof(out->text) - out->used, format, args);
    va_end(args);
    out->used += strlen(out->text + out->used);
}

/* [agent lock] */
static void describe(weft_agent *agent, wfi_awaits *out)
{
    out->now_ns = wfi_now(wfi_net_clock(agent->net));
    WFI_FOR_COMPONENTS (component, awaits)
        component->awaits(agent, out);
    if (!out->kinds && !wfi_net_is_flushed(agent->net))
        wfi_awaits_add(out, "messages or transfers that another worker has not taken");
    if (!out->kinds && !wfi_executor_idle(agent->executor))
        wfi_awaits_add(out, "handlers or continuations that run or are queued");
}

static bool asks_store(const weft_agent *agent)
{
    return !agent->options.values.elastic || wfi_agent_rank(agent) == 0;
}

static weft_log_level level_of(double seconds)
{
    return seconds * 1e9 < (double)WARN_NS ? WEFT_LOG_INFO : WEFT_LOG_WARN;
}

static double seconds_of(const weft_agent *agent)
{
    return (double)(wfi_now(wfi_net_clock(agent->net)) - agent->closing_ns) / 1e9;
}

static void log_here(weft_agent *agent, weft_log_level level, const char *verb)
{
    wfi_awaits here = {.used = 0};
    double seconds = seconds_of(agent);
    describe(agent, &here);
    if (here.kinds)
        wfi_agent_log(agent, level, 0, "weft_agent_close %s %.1f s; in flight here: %s", verb, seconds, here.text);
    else if (!asks_store(agent))
        wfi_agent_log(agent, level, 0, "weft_agent_close %s %.1f s; nothing is in flight here", verb, seconds);
}

static void log_others(weft_agent *agent, weft_log_level level, const char *verb)
{
    wfi_agent_log(agent, level, 0, "weft_agent_close %s %.1f s; it waits for %s", verb, seconds_of(agent),
                  *agent->awaited ? agent->awaited : "other workers, and the store has not said which");
}

void wfi_on_awaited(void *arg, const char *whom)
{
    weft_agent *agent = arg;
    snprintf(agent->awaited, sizeof(agent->awaited), "%s", whom);
    if (agent->awaits_answer && !weft_future_done(agent->terminated))
        log_others(agent, level_of(seconds_of(agent)), "has waited");
    agent->awaits_answer = false;
}

static uint64_t log_due_ns(const weft_agent *agent)
{
    return agent->awaits_logged_ns ? agent->awaits_logged_ns + EVERY_NS : agent->closing_ns + FIRST_NS;
}

static void await_timer_fired(wfi_timer *timer);

/* Sets the timer for the next log line, or for the query before the limit if that is earlier. */
static void set_timer(weft_agent *agent)
{
    uint64_t when_ns = log_due_ns(agent);
    if (agent->awaits_ask_ns && agent->awaits_ask_ns < when_ns)
        when_ns = agent->awaits_ask_ns;
    agent->await_timer.fire = await_timer_fired;
    if (wfi_net_timer_set(agent->net, &agent->await_timer, when_ns))
        wfi_agent_log(agent, WEFT_LOG_DEBUG, 0, "no memory for a timer: what weft_agent_close waits for is not logged");
}

static void await_timer_fired(wfi_timer *timer)
{
    weft_agent *agent = wfi_container_of(timer, weft_agent, await_timer);
    uint64_t now_ns = wfi_now(wfi_net_clock(agent->net));
    bool logs = now_ns >= log_due_ns(agent);
    if (weft_future_done(agent->terminated))
        return;
    if (agent->awaits_ask_ns <= now_ns)
        agent->awaits_ask_ns = 0;
    if (asks_store(agent)) {
        agent->awaits_answer |= logs;
        wfi_net_await(agent->net);
    }
    if (logs) {
        agent->awaits_logged_ns = now_ns;
        log_here(agent, level_of(seconds_of(agent)), "has waited");
    }
    set_timer(agent);
}

void wfi_awaited_watch(weft_agent *agent, uint64_t until_ns)
{
    uint64_t now_ns = wfi_now(wfi_net_clock(agent->net));
    wfi_assert_held(wfi_net_mutex(agent->net));
    agent->awaits_ask_ns = 0;
    if (until_ns != WFI_NEVER && until_ns > now_ns && asks_store(agent)) {
        uint64_t before_ns = (until_ns - now_ns) / 2;
        agent->awaits_ask_ns = until_ns - (before_ns < ASK_BEFORE_NS ? before_ns : ASK_BEFORE_NS);
    }
    if (!weft_future_done(agent->terminated))
        set_timer(agent);
}

void wfi_awaited_log(weft_agent *agent)
{
    log_here(agent, WEFT_LOG_ERROR, "gave up after");
    if (asks_store(agent))
        log_others(agent, WEFT_LOG_ERROR, "gave up after");
    wfi_status_logged(WEFT_ERR_TIMEOUT);
}
