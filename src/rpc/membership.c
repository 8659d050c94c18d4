/* SPDX-License-Identifier: Apache-2.0 */
/* membership.c - telling the user who died or left: one at a time, in order, on the executor. */
#include "rpc/agent.h"

#include <stdlib.h>
#include <string.h>

typedef struct wfi_member_news {
    wfi_list link;
    weft_member_event event;
    int rank;
    char why[128];
} wfi_member_news;

static wfi_member_news *next_news(weft_agent *agent)
{
    wfi_net_lock(agent->net);
    wfi_list *link = wfi_list_pop_front(&agent->membership.events);
    agent->membership.running = link != NULL;
    wfi_net_unlock(agent->net);
    return link ? wfi_container_of(link, wfi_member_news, link) : NULL;
}

static void tell_all(wfi_task *task)
{
    weft_agent *agent = wfi_container_of(task, weft_agent, membership.task);
    const weft_agent_options *options = &agent->options.values;
    for (wfi_member_news *news; (news = next_news(agent)); free(news))
        options->on_membership(agent, news->event, news->rank, news->why, options->membership_arg);
}

void wfi_membership_tell(weft_agent *agent, weft_member_event event, int rank, const char *why)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (!agent->options.values.on_membership)
        return;
    wfi_member_news *news = calloc(1, sizeof *news);
    if (!news)
        return; /* memory is out; every call to that worker still fails with the same news */
    news->event = event;
    news->rank = rank;
    snprintf(news->why, sizeof news->why, "%s", why ? why : "");
    wfi_list_push_back(&agent->membership.events, &news->link);
    if (agent->membership.running)
        return;
    agent->membership.running = true;
    agent->membership.task.run = tell_all;
    wfi_net_defer(agent->net, &agent->membership.task, WFI_DEFER_WORKER);
}

void wfi_membership_fini(weft_agent *agent)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&agent->membership.events));)
        free(wfi_container_of(link, wfi_member_news, link));
}
