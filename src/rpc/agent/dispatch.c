/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c - net's upcalls: passes messages and membership events to the components. All [agent lock]. */
#include "rpc/agent/agent.h"
#include "rpc/agent/notify.h"

static void deliver(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    for (const wfi_component *const *at = wfi_components; *at; at++)
        if (type < 64 && (*at)->messages & WFI_TAKES(type)) {
            (*at)->message(agent, from, type, reader);
            return;
        }
    wfi_agent_log(agent, WEFT_LOG_WARN, 0, "rank %d sent a message of unknown type %u", wfi_peer_rank(from), type);
}

void wfi_on_message(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    weft_agent *agent = arg;
    wfi_reader reader;
    if (agent->stopped)
        return;
    if (!wfi_notifications_ready(agent)) {
        wfi_net_untake(agent->net); /* no memory to answer it with */
        return;
    }
    wfi_reader_init(&reader, bytes, size);
    deliver(agent, from, type, &reader);
}

void wfi_on_peer_gone(void *arg, wfi_peer *peer, weft_status why, const char *text)
{
    weft_agent *agent = arg;
    WFI_FOR_COMPONENTS (component, peer_gone)
        component->peer_gone(agent, peer, why, text);
    if (why == WEFT_ERR_PEER_DEAD)
        wfi_membership_notify(agent, WEFT_MEMBER_DEAD, wfi_peer_rank(peer), text);
    else if (why == WEFT_ERR_PEER_LEFT)
        wfi_membership_notify(agent, WEFT_MEMBER_LEFT, wfi_peer_rank(peer), text);
}

void wfi_on_peer_unreachable(void *arg, wfi_peer *peer, const char *text)
{
    WFI_FOR_COMPONENTS (component, unreachable)
        component->unreachable(arg, peer, text);
}

void wfi_on_peer_joined(void *arg, wfi_peer *peer)
{
    WFI_FOR_COMPONENTS (component, peer_joined)
        component->peer_joined(arg, peer);
    wfi_membership_notify(arg, WEFT_MEMBER_JOINED, wfi_peer_rank(peer), "it joined the job");
}

void wfi_on_peer_ending(void *arg, wfi_peer *peer)
{
    (void)peer;
    WFI_FOR_COMPONENTS (component, peer_ending)
        component->peer_ending(arg);
}

void wfi_on_peer_leaving(void *arg, wfi_peer *peer)
{
    wfi_on_peer_ending(arg, peer);
    wfi_membership_notify(arg, WEFT_MEMBER_LEAVING, wfi_peer_rank(peer), "it closes its agent");
}

void wfi_on_passed(void *arg, wfi_peer *from, int fd, const uint8_t *data, size_t size)
{
    weft_agent *agent = arg;
    if (agent->stopped)
        return;
    WFI_FOR_COMPONENTS (component, passed)
        component->passed(agent, from, fd, data, size);
}

void wfi_on_synced(void *arg)
{
    WFI_FOR_COMPONENTS (component, synced)
        component->synced(arg);
}

void wfi_on_self_gone(void *arg, weft_status why, const char *text)
{
    weft_agent *agent = arg;
    agent->gone = why;
    WFI_FOR_COMPONENTS (component, self_gone)
        component->self_gone(agent, why, text);
    weft_member_event event = why == WEFT_ERR_EVICTED     ? WEFT_MEMBER_SELF_EVICTED
                              : why == WEFT_ERR_JOB_ENDED ? WEFT_MEMBER_JOB_ENDED
                                                          : WEFT_MEMBER_STORE_LOST;
    wfi_membership_notify(agent, event, event == WEFT_MEMBER_SELF_EVICTED ? wfi_agent_rank(agent) : 0, text);
    wfi_on_terminated(agent);
}
