/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.c - messages from the store to a member: decodes each one and makes its upcall. Also the ways in which a
 * link ends (evicted, store lost). The rules are in link.h.
 */
#include "job/link/link.h"

#include "base/text/log.h"

#include <stdlib.h>

#define GRACE_MS 2000 /* if the bound is switched off */

bool wfi_link_is_out(wfi_rendezvous *link)
{
    wfi_mutex_lock(&link->lock);
    bool out = link->state == WFI_LINK_OUT;
    wfi_mutex_unlock(&link->lock);
    return out;
}

bool wfi_link_is_steady(const wfi_rendezvous *link)
{
    return link->wires[WFI_CURRENT].stage == WFI_WIRE_LIVE && link->wires[WFI_NEXT].stage == WFI_WIRE_NONE;
}

/* Returns true to the caller that ends the link: only this one makes the last upcall. */
static bool go_out(wfi_rendezvous *link)
{
    wfi_mutex_lock(&link->lock);
    bool was_member = link->state == WFI_LINK_MEMBER;
    link->state = WFI_LINK_OUT;
    wfi_mutex_unlock(&link->lock);
    return was_member;
}

void wfi_link_lost(wfi_rendezvous *link, const char *why)
{
    if (!go_out(link))
        return;
    wfi_log_in(&(wfi_log_context){.rank = link->rank, .clock = link->clock}, WEFT_LOG_INFO, "the store is lost: %s",
               why);
    link->events.store_lost(link->events.arg, why);
}

void wfi_link_evicted(wfi_rendezvous *link, const char *why)
{
    if (!go_out(link))
        return;
    wfi_log_in(&(wfi_log_context){.rank = link->rank, .clock = link->clock}, WEFT_LOG_INFO, "evicted: %s", why);
    link->events.evicted(link->events.arg, why);
}

/* A message about a rank that does not exist, or about this worker itself, is malformed. */
static bool names_another(const wfi_rendezvous *link, const wfi_store_message *message)
{
    return message->rank >= 0 && message->rank < link->world_size && message->rank != link->rank;
}

static void joined(wfi_rendezvous *link, const wfi_store_message *message)
{
    wfi_member member;
    if (!names_another(link, message))
        return;
    wfi_store_member_of_message(&member, message);
    wfi_mutex_lock(&link->lock);
    link->incarnations[member.rank] = member.incarnation;
    wfi_mutex_unlock(&link->lock);
    if (link->events.joined)
        link->events.joined(link->events.arg, &member);
}

bool wfi_link_flip_interest(wfi_rendezvous *link, int rank, bool on)
{
    uint8_t bit = (uint8_t)(1u << (rank % 8));
    wfi_assert_held(&link->lock);
    if (on == ((link->interests[rank / 8] & bit) != 0))
        return false;
    link->interests[rank / 8] ^= bit;
    link->interest_count += on ? 1 : -1;
    return true;
}

/* A member has ended: the interest in it ends too. Returns false if the message names an unknown member. */
static bool forget(wfi_rendezvous *link, const wfi_store_message *message)
{
    if (!names_another(link, message))
        return false;
    wfi_mutex_lock(&link->lock);
    link->incarnations[message->rank] = 0;
    (void)wfi_link_flip_interest(link, message->rank, false);
    wfi_mutex_unlock(&link->lock);
    return true;
}

void wfi_link_dispatch(wfi_rendezvous *link, const wfi_store_message *message)
{
    const wfi_rendezvous_events *events = &link->events;
    switch (message->type) {
    case WFI_STORE_SPEAK:
        wfi_link_post(link, &(wfi_store_message){.type = WFI_STORE_HEARTBEAT, .received = link->received});
        break;
    case WFI_STORE_BEAT:
        link->heartbeats_wanted = message->on;
        break;
    case WFI_STORE_JOINED:
        joined(link, message);
        break;
    case WFI_STORE_DIED:
        if (forget(link, message))
            events->died(events->arg, message->rank, message->incarnation, message->text);
        break;
    case WFI_STORE_LEFT:
        if (forget(link, message))
            events->left(events->arg, message->rank, message->incarnation);
        break;
    case WFI_STORE_LEAVING:
        if (names_another(link, message))
            events->leaving(events->arg, message->rank, message->incarnation);
        break;
    case WFI_STORE_ENDING:
        if (events->ending && names_another(link, message))
            events->ending(events->arg, message->rank, message->incarnation, message->on);
        break;
    case WFI_STORE_SERVING:
        wfi_mutex_lock(&link->lock);
        link->serving = link->serving == message->wave ? 0 : link->serving;
        wfi_mutex_unlock(&link->lock);
        if (events->served)
            events->served(events->arg, message->wave);
        break;
    case WFI_STORE_DIAL:
        events->dial(events->arg, message->rank, message->incarnation);
        break;
    case WFI_STORE_EVICTED:
        wfi_link_evicted(link, message->text);
        break;
    case WFI_STORE_PROBE:
        events->probe(events->arg, message->wave);
        break;
    case WFI_STORE_SYNCED:
        if (events->synced)
            events->synced(events->arg, message->wave);
        break;
    case WFI_STORE_TERMINATED:
        events->terminated(events->arg);
        break;
    case WFI_STORE_END:
        events->job_ended(events->arg, message->text);
        break;
    case WFI_STORE_AWAIT:
        if (events->awaited)
            events->awaited(events->arg, message->text);
        break;
    default: /* no meaning in this state; its arrival still counts as a sign of life */
        break;
    }
}

bool wfi_link_send_goodbye(wfi_rendezvous *link)
{
    wfi_store_message message = {.type = WFI_STORE_GOODBYE};
    wfi_mutex_lock(&link->lock);
    bool is_connected = link->state == WFI_LINK_MEMBER && link->wires[WFI_CURRENT].stage == WFI_WIRE_LIVE;
    (void)wfi_link_post_locked(link, &message);
    /* in one step: the store closes the connection after that message, which is no loss of the store */
    link->state = WFI_LINK_OUT;
    wfi_mutex_unlock(&link->lock);
    return is_connected;
}

int64_t wfi_link_grace_ms(const wfi_rendezvous *link)
{
    int64_t bound_ms = link->world.death_timeout_ms;
    return bound_ms < 0 || bound_ms > GRACE_MS ? GRACE_MS : bound_ms;
}
