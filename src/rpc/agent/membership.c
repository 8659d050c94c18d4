/* SPDX-License-Identifier: Apache-2.0 */
/*
 * membership.c - reports membership events to the user (joined, leaving, dead, left): in order, on the executor.
 *
 * If there is no memory for an event, wfi_rpc_peer.unreported has it, and all later events of that rank, until the
 * events in the list have been reported. It has room for two, which is enough: joins and ends alternate, so a third
 * event undoes the second, and both are dropped. WEFT_MEMBER_LEAVING is not kept, because the end of the worker
 * follows.
 */
#include "base/alloc.h"
#include "rpc/agent/agent.h"

#include <stdlib.h>

typedef struct wfi_member_news {
    wfi_list link;
    weft_member_event event;
    int rank;
    char why[128];
} wfi_member_news;

static void note_unreported(weft_agent *agent, weft_member_event event, int rank)
{
    wfi_rpc_peer *peer = &agent->peers[rank];
    if (event == WEFT_MEMBER_LEAVING)
        return;
    if (peer->unreported_count == 2) {
        peer->unreported_count = 1;
        agent->membership.unreported--;
        return;
    }
    peer->unreported[peer->unreported_count++] = event;
    agent->membership.unreported++;
}

static bool take_unreported(weft_agent *agent, wfi_member_news *out)
{
    if (!agent->membership.unreported)
        return false;
    int rank = 0;
    while (!agent->peers[rank].unreported_count)
        rank++;
    wfi_rpc_peer *peer = &agent->peers[rank];
    *out = (wfi_member_news){.event = peer->unreported[0], .rank = rank, .why = "memory was out when it was noticed"};
    peer->unreported[0] = peer->unreported[1];
    peer->unreported_count--;
    agent->membership.unreported--;
    return true;
}

static bool next_news(weft_agent *agent, wfi_member_news *out)
{
    wfi_net_lock(agent->net);
    wfi_list *link = wfi_list_pop_front(&agent->membership.events);
    bool more = link || take_unreported(agent, out);
    agent->membership.running = more;
    wfi_net_unlock(agent->net);
    if (link) {
        wfi_member_news *news = wfi_container_of(link, wfi_member_news, link);
        *out = *news;
        free(news);
    }
    return more;
}

static void report_events(wfi_task *task)
{
    weft_agent *agent = wfi_container_of(task, weft_agent, membership.task);
    const weft_agent_options *options = &agent->options.values;
    for (wfi_member_news news; next_news(agent, &news);)
        options->on_membership(agent, news.event, news.rank, news.why, options->membership_arg);
}

void wfi_membership_notify(weft_agent *agent, weft_member_event event, int rank, const char *why)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (!agent->options.values.on_membership)
        return;
    wfi_member_news *news = agent->peers[rank].unreported_count ? NULL : wfi_calloc(1, sizeof(*news));
    if (news) {
        news->event = event;
        news->rank = rank;
        snprintf(news->why, sizeof(news->why), "%s", why ? why : "");
        wfi_list_push_back(&agent->membership.events, &news->link);
    } else {
        note_unreported(agent, event, rank);
    }
    if (agent->membership.running)
        return;
    agent->membership.running = true;
    agent->membership.task.run = report_events;
    wfi_net_defer(agent->net, &agent->membership.task, WFI_DEFER_WORKER);
}

void wfi_membership_fini(weft_agent *agent)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&agent->membership.events));)
        free(wfi_container_of(link, wfi_member_news, link));
}
