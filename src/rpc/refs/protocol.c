/* SPDX-License-Identifier: Apache-2.0 */
/* protocol.c - announces received references to their owners (FORK, FORKED, DROP), and handles the end of owners. */
#include "rpc/agent/notify.h"
#include "rpc/refs/internal.h"

#include "base/error.h"

#include <stdlib.h>

#define AWAIT_OWNER_MS 10000 /* if death_timeout_ms is switched off */

/* ---- Received handles -------------------------------------------------------------------------------------------- */

/* Sends FORK with the next number: the numbers of FORKs grow in the order in which they are sent. The table of forks
 * holds the handle until its owner answers. [agent lock] */
static weft_status announce_fork(weft_rref *rref)
{
    weft_agent *agent = rref->agent;
    uint8_t room[64];
    wfi_writer writer;
    rref->fork = ++wfi_refs_of(agent)->next_fork;
    weft_status status = wfi_map_put(&wfi_refs_of(agent)->forks, rref->fork, rref);
    if (status)
        return status;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_rref_write_fork(rref, &writer);
    status = wfi_post(agent, rref->owner, WFI_RPC_FORK, &writer, &rref->notifications);
    if (status)
        wfi_map_take(&wfi_refs_of(agent)->forks, rref->fork);
    return status;
}

weft_status wfi_rref_announce(weft_rref *rref, wfi_peer *owner)
{
    uint8_t room[64];
    wfi_writer writer;
    weft_status status = wfi_rref_launch(rref, owner);
    if (status || rref->launched)
        return status;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_rref_write_fork(rref, &writer);
    status = wfi_post(rref->agent, owner, WFI_RPC_FORK, &writer, NULL); /* the answer is not needed */
    if (!status)
        wfi_rref_launched(rref);
    return status;
}

static void owner_answered(weft_rref *rref, weft_status why, weft_error *error);

static void owner_did_not_come(wfi_timer *timer)
{
    weft_rref *rref = wfi_container_of(timer, weft_rref, timer);
    weft_status why = WEFT_ERR_UNREACHABLE;
    owner_answered(rref, why, weft_error_create(why, "rank %u, the owner, has not joined this job", rref->name.owner));
}

/* This worker does not know yet that the owner has joined: waits until the store reports it. [agent lock] */
static weft_status await_owner(weft_rref *rref)
{
    weft_agent *agent = rref->agent;
    int64_t bound_ms = wfi_net_death_timeout_ms(agent->net);
    rref->timer.fire = owner_did_not_come;
    rref->fork = ++wfi_refs_of(agent)->next_fork;
    weft_status status = wfi_map_put(&wfi_refs_of(agent)->forks, rref->fork, rref);
    if (status)
        return status;
    bound_ms = bound_ms > 0 ? bound_ms : AWAIT_OWNER_MS;
    status = wfi_net_timer_set(agent->net, &rref->timer, wfi_deadline(wfi_net_clock(agent->net), bound_ms));
    if (status)
        wfi_map_take(&wfi_refs_of(agent)->forks, rref->fork);
    return status;
}

static weft_status import_from_owner(weft_agent *agent, const wfi_rref_name *name, wfi_ref_waiter *waiter,
                                     weft_rref **out)
{
    if (name->owner >= (uint32_t)agent->options.values.world_size || !name->owner_incarnation)
        return WEFT_ERR_PROTOCOL;
    wfi_peer *owner = wfi_net_peer(agent->net, (int)name->owner);
    uint32_t known = owner ? wfi_peer_incarnation(owner) : 0;
    if (known > name->owner_incarnation)
        return wfi_net_former_status(agent->net, (int)name->owner, name->owner_incarnation);
    weft_status status = known == name->owner_incarnation ? wfi_peer_status(owner) : WEFT_OK;
    if (status)
        return status;
    weft_rref *rref = wfi_rref_make(agent, name, known == name->owner_incarnation ? owner : NULL);
    if (!rref)
        return WEFT_ERR_MEMORY;
    rref->launched = true;
    status = rref->owner ? announce_fork(rref) : await_owner(rref);
    if (status) { /* the owner was not told of the handle, so no DROP is needed */
        wfi_rref_set_owner(rref, NULL);
        wfi_notifications_release(agent, &rref->notifications);
        wfi_list_remove(&rref->link);
        wfi_agent_unref(agent);
        free(rref);
        return status;
    }
    weft_rref_ref(rref); /* the table's */
    rref->waiter = waiter;
    *out = rref;
    return WEFT_OK;
}

weft_status wfi_rref_import(weft_agent *agent, const wfi_rref_name *name, wfi_ref_waiter *waiter, weft_rref **out)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (name->owner != (uint32_t)wfi_agent_rank(agent))
        return import_from_owner(agent, name, waiter, out);
    wfi_owned *owned = wfi_owned_find(agent, name);
    if (!owned)
        return WEFT_ERR_NOT_FOUND;
    weft_rref *rref = wfi_owned_handle(owned);
    if (!rref)
        return WEFT_ERR_MEMORY;
    *out = rref;
    waiter->confirmed(waiter, WEFT_OK);
    return WEFT_OK;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* The owner has answered, or never will. If it has not counted the handle, `error` (taken over) says why. */
static void owner_answered(weft_rref *rref, weft_status why, weft_error *error)
{
    wfi_ref_waiter *waiter = rref->waiter;
    wfi_map_take(&wfi_refs_of(rref->agent)->forks, rref->fork);
    wfi_net_timer_clear(rref->agent->net, &rref->timer);
    rref->waiter = NULL;
    rref->confirmed = !error;
    if (error) {
        rref->lost = true;
        rref->needs_drop = false;
        weft_error_unref(rref->error);
        rref->error = error;
    }
    if (waiter)
        waiter->confirmed(waiter, why);
    wfi_rref_unref_locked(rref);
}

static void on_forked(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t fork, uint32_t status)
{
    weft_rref *rref = wfi_map_get(&wfi_refs_of(agent)->forks, fork);
    if (!rref || rref->owner != from || !wfi_rref_same_name(&rref->name, name))
        return;
    if (status == 0) {
        owner_answered(rref, WEFT_OK, NULL);
        return;
    }
    weft_status why = (int32_t)status == WEFT_ERR_MEMORY ? WEFT_ERR_MEMORY : WEFT_ERR_NOT_FOUND;
    wfi_error_detail detail = {.code = why, .worker = wfi_peer_rank(from)};
    owner_answered(
        rref, why,
        wfi_error_create(&detail, why == WEFT_ERR_MEMORY
                                      ? "the owner of the reference has no memory to count it"
                                      : "the owner of the reference has freed the value: the worker that passed it on "
                                        "died, or gave up"));
}

static void on_fork(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t fork)
{
    uint8_t room[64];
    wfi_writer writer;
    if (!wfi_post_may_answer(agent, from)) /* the fork is not counted either */
        return;
    weft_status status = wfi_owned_take_fork(agent, from, name, fork);
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_reference_write_name(&writer, name);
    wfi_write_u64(&writer, fork);
    wfi_write_u32(&writer, (uint32_t)status);
    wfi_post_answer(agent, from, WFI_RPC_FORKED, &writer, NULL);
}

void wfi_on_rref_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    wfi_rref_name name = wfi_reference_read_name(reader);
    uint64_t fork = wfi_read_u64(reader);
    uint32_t status = type == WFI_RPC_FORKED ? wfi_read_u32(reader) : 0;
    bool gave_up = type == WFI_RPC_DROP && wfi_read_u8(reader);
    if (reader->failed)
        return;
    if (type == WFI_RPC_DROP)
        wfi_owned_take_drop(agent, from, &name, fork, gave_up);
    else if (type == WFI_RPC_FORK)
        on_fork(agent, from, &name, fork);
    else
        on_forked(agent, from, &name, fork, status);
}

/* ---- Owners that end or join ------------------------------------------------------------------------------------- */

static weft_rref *next_unconfirmed(weft_agent *agent, const wfi_peer *owner)
{
    size_t cursor = 0;
    weft_rref *rref = wfi_map_next(&wfi_refs_of(agent)->forks, &cursor, NULL);
    while (rref && owner && rref->owner != owner)
        rref = wfi_map_next(&wfi_refs_of(agent)->forks, &cursor, NULL);
    return rref;
}

void wfi_rrefs_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    int rank = wfi_peer_rank(peer);
    /* the handler that makes the value may have run */
    wfi_error_detail detail = {.code = why, .remote_code = WEFT_ERR_UNKNOWN, .worker = rank};
    weft_error *error = wfi_error_create(&detail, "rank %d (\"%s\"), the owner of the reference, is gone: %s", rank,
                                         wfi_peer_name(peer), text);
    WFI_FOR_LIST (weft_rref, rref, &wfi_refs_of(agent)->references, link) {
        if (rref->owner != peer)
            continue;
        rref->lost = true;
        rref->needs_drop = false;
        weft_error_unref(rref->error);
        rref->error = weft_error_ref(error);
    }
    for (weft_rref *rref; (rref = next_unconfirmed(agent, peer));)
        owner_answered(rref, why, weft_error_ref(error));
    weft_error_unref(error);
    wfi_owned_peer_gone(agent, peer, why);
}

static weft_rref *next_awaiting(weft_agent *agent, wfi_peer *peer)
{
    size_t cursor = 0;
    weft_rref *rref;
    while ((rref = wfi_map_next(&wfi_refs_of(agent)->forks, &cursor, NULL)))
        if (!rref->owner && rref->name.owner == (uint32_t)wfi_peer_rank(peer) &&
            rref->name.owner_incarnation <= wfi_peer_incarnation(peer))
            break;
    return rref;
}

void wfi_rrefs_peer_joined(weft_agent *agent, wfi_peer *peer)
{
    for (weft_rref *rref; (rref = next_awaiting(agent, peer));) {
        weft_status status = WEFT_ERR_PEER_DEAD;
        if (rref->name.owner_incarnation == wfi_peer_incarnation(peer)) {
            uint64_t waited_as = rref->fork;
            wfi_rref_set_owner(rref, peer);
            status = announce_fork(rref);
            wfi_map_take(&wfi_refs_of(agent)->forks, waited_as);
            wfi_net_timer_clear(agent->net, &rref->timer);
        }
        if (status)
            owner_answered(rref, status, weft_error_create(status, "rank %u, the owner, is gone", rref->name.owner));
    }
}

void wfi_rrefs_end(weft_agent *agent, weft_status why, const char *text)
{
    for (weft_rref *rref; (rref = next_unconfirmed(agent, NULL));)
        owner_answered(rref, why, weft_error_create(why, "%s", text));
    wfi_owned_end(agent);
}

/* ---- Owners that cannot be reached ------------------------------------------------------------------------------- */

/*
 * If an owner is alive but cannot be reached, the waiters fail. The handle stays in the table until the owner answers,
 * so that the owner's count and this worker's agree in the end.
 */

static wfi_ref_waiter *take_waiter(weft_agent *agent, const wfi_peer *owner)
{
    size_t cursor = 0;
    for (weft_rref *rref; (rref = wfi_map_next(&wfi_refs_of(agent)->forks, &cursor, NULL));) {
        wfi_ref_waiter *waiter = rref->owner == owner ? rref->waiter : NULL;
        if (!waiter)
            continue;
        rref->waiter = NULL;
        return waiter;
    }
    return NULL;
}

void wfi_rrefs_peer_unreachable(weft_agent *agent, wfi_peer *peer, const char *text)
{
    (void)text;
    for (wfi_ref_waiter *waiter; (waiter = take_waiter(agent, peer));) /* searches again: the table may change */
        waiter->confirmed(waiter, WEFT_ERR_UNREACHABLE);
}

bool wfi_rrefs_await_owners(weft_agent *agent)
{
    size_t cursor = 0;
    for (const weft_rref *rref; (rref = wfi_map_next(&wfi_refs_of(agent)->forks, &cursor, NULL));)
        if (!rref->owner || !wfi_peer_is_unreachable(rref->owner))
            return true;
    return false;
}
