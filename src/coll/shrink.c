/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shrink.c - a group of the living members.
 *
 * Each member opens a group of those that it believes to live, and passes a barrier there. The store decides which
 * members live, so all come to the same list in the end. If a member of a list dies, the barrier fails for all, and
 * each tries again without it. A member that has made more attempts with one list than others learns that from their
 * answers (their attempt is over); the others try again until the counts are equal.
 */
#include "coll/group.h"

#include "base/error.h"
#include "rpc/client/client.h"

static bool may_try_again(weft_status status)
{
    return status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_CANCELLED;
}

/* Returns the agent's time limit of calls. */
static int64_t end_old(weft_group *group)
{
    weft_agent *agent = group->agent;
    wfi_net_lock(agent->net);
    int64_t limit_ms = agent->call_timeout_ms;
    wfi_group_break_for(group, WEFT_ERR_CANCELLED, wfi_agent_rank(agent), "rank %d has shrunk it",
                        wfi_agent_rank(agent));
    wfi_net_unlock(agent->net);
    return limit_ms;
}

/* Milliseconds until `until_ns`, at least one; 0: none are left. */
static int64_t left_ms(weft_agent *agent, uint64_t until_ns)
{
    uint64_t now = wfi_now(wfi_net_clock(agent->net));
    if (until_ns == WFI_NEVER)
        return WEFT_FOREVER;
    return until_ns <= now ? 0 : (int64_t)((until_ns - now) / 1000000u) + 1;
}

/* The barrier was internal: the user has called no operation yet, and may still set rules and a carrier. */
static void give(weft_group *made, weft_group **out)
{
    wfi_net_lock(made->agent->net);
    made->used = made->shrinks = false;
    wfi_net_unlock(made->agent->net);
    *out = made;
}

static weft_status shrink(weft_group *group, uint64_t until_ns, weft_group **out, weft_error **error)
{
    weft_agent *agent = group->agent;
    for (;;) {
        weft_group *made;
        int64_t left = left_ms(agent, until_ns);
        weft_status status = left ? wfi_group_of_living(group, &made, error) : WEFT_ERR_TIMEOUT;
        if (status)
            return status;
        wfi_net_lock(agent->net);
        made->shrinks = true;
        wfi_net_unlock(agent->net);
        status = wfi_group_take_rules(made, group);
        if (!status)
            status = weft_group_barrier(made, left);
        if (!status) {
            give(made, out);
            return WEFT_OK;
        }
        const weft_error *why = weft_group_error(made);
        if (!may_try_again(status) && error)
            *error = why ? weft_error_ref(why) : NULL;
        else if (!may_try_again(status))
            wfi_log_agent(agent, WEFT_LOG_WARN, 0, "weft_group_shrink: %s",
                          why ? weft_error_message(why) : weft_status_text(status));
        weft_group_close(made);
        if (!may_try_again(status))
            return status;
    }
}

static weft_status shrink_checked(weft_group *group, int64_t timeout_ms, weft_group **out, weft_error **error)
{
    weft_agent *agent = group->agent;
    if (timeout_ms < WEFT_FOREVER) {
        static const char format[] = "weft_group_shrink (\"%s\"): timeout_ms is %lld: 0, more, or WEFT_FOREVER";
        if (error)
            return wfi_error_fail(error, WEFT_ERR_INVALID, format, group->name, (long long)timeout_ms);
        wfi_log_agent(agent, WEFT_LOG_WARN, 0, format, group->name, (long long)timeout_ms);
        return WEFT_ERR_INVALID;
    }
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    weft_status status = wfi_rpc_may_wait(agent, "weft_group_shrink", &(weft_rpc_options){.error = error});
    if (!status) {
        int64_t limit_ms = end_old(group);
        status = shrink(group, wfi_deadline(wfi_net_clock(agent->net), timeout_ms ? timeout_ms : limit_ms), out, error);
    }
    wfi_agent_leave(agent);
    return status;
}

weft_status weft_group_shrink(weft_group *group, int64_t timeout_ms, weft_group **out, weft_error **error)
{
    WFI_LIVE(group);
    if (!group || !out)
        return wfi_refuse_null_to(error, "weft_group_shrink", group ? "out" : "group");
    weft_error *why = NULL;
    weft_status status = shrink_checked(group, timeout_ms, out, error ? &why : NULL);
    if (status && error)
        *error =
            why ? why
                : weft_error_create(status, "weft_group_shrink (\"%s\"): %s", group->name, weft_status_text(status));
    return status;
}
