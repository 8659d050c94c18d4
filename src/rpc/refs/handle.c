/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c - creates, queries and releases handles. protocol.c makes those that are received; refs.h has the rules. */
#include "base/alloc.h"
#include "base/text/sized.h"
#include "rpc/agent/notify.h"
#include "rpc/refs/internal.h"

#include "value/fault.h"
#include "value/value.h"

#include <stdlib.h>

int weft_rref_owner(const weft_rref *rref)
{
    WFI_CHECK_HANDLE(rref);
    return rref ? (int)rref->name.owner : -1;
}

bool weft_rref_is_owner(const weft_rref *rref)
{
    WFI_CHECK_HANDLE(rref);
    return rref && rref->value;
}

bool weft_rref_confirmed(const weft_rref *rref)
{
    WFI_CHECK_HANDLE(rref);
    if (!rref || !wfi_agent_enter_locked(rref->agent))
        return false;
    bool confirmed = rref->confirmed;
    wfi_agent_leave_locked(rref->agent);
    return confirmed;
}

weft_status weft_rref_local_value(weft_rref *rref, int64_t wait_ms, weft_value *out)
{
    WFI_CHECK_HANDLE(rref);
    if (!rref || !out)
        return wfi_refuse_null("weft_rref_local_value", rref ? "out" : "the handle");
    if (!rref->value)
        return wfi_refuse(WEFT_ERR_STATE,
                          "weft_rref_local_value: rank %d owns the value: fetch it with weft_rref_to_here",
                          weft_rref_owner(rref));
    if (wait_ms < WEFT_FOREVER)
        return wfi_refuse_wait("weft_rref_local_value", wait_ms);
    weft_future *value = rref->value;
    weft_status status = weft_future_wait(value, wait_ms);
    if (status)
        return status;
    if (!weft_future_values(value))
        return wfi_refuse(WEFT_ERR_TYPE, "weft_rref_local_value: the reference names an object: read it with "
                                         "weft_rref_local_typed or weft_rref_local_object");
    *out = wfi_made_value(value);
    return WEFT_OK;
}

const weft_error *wfi_rref_failure(const weft_rref *rref)
{
    return rref->value ? weft_future_error(rref->value) : NULL;
}

/* ---- Making handles ---------------------------------------------------------------------------------------------- */

static void release_handle(weft_rref *rref);

static weft_rref *make_handle(weft_agent *agent, const wfi_rref_name *name)
{
    weft_rref *rref = wfi_calloc(1, sizeof(*rref));
    if (!rref)
        return NULL;
    wfi_reference_init(&rref->head, release_handle);
    wfi_list_init(&rref->link);
    rref->agent = wfi_agent_ref(agent);
    rref->name = *name;
    return rref;
}

void wfi_rref_set_owner(weft_rref *rref, wfi_peer *owner)
{
    if (owner)
        wfi_peer_interest(wfi_peer_ref(owner), +1);
    if (rref->owner)
        wfi_peer_interest(rref->owner, -1);
    wfi_peer_unref(rref->owner);
    rref->owner = owner;
}

weft_rref *wfi_rref_make(weft_agent *agent, const wfi_rref_name *name, wfi_peer *owner)
{
    weft_rref *rref = make_handle(agent, name);
    if (!rref)
        return NULL;
    if (wfi_notifications_promise(agent, 2, &rref->notifications)) {
        wfi_agent_unref(agent);
        free(rref);
        return NULL;
    }
    wfi_rref_set_owner(rref, owner);
    rref->needs_drop = true;
    wfi_list_push_back(&wfi_refs_of(agent)->references, &rref->link);
    return rref;
}

weft_rref *wfi_owned_handle(wfi_owned *owned)
{
    weft_rref *rref = make_handle(owned->agent, &owned->name);
    if (!rref)
        return NULL;
    rref->home = owned;
    rref->value = weft_future_ref(owned->value);
    rref->confirmed = true;
    owned->handles++;
    return rref;
}

static uint32_t incarnation_of(weft_agent *agent, int rank)
{
    const wfi_member *member = wfi_net_member(agent->net, rank);
    return member ? member->incarnation : 0;
}

static wfi_rref_name new_name(weft_agent *agent, int owner)
{
    int rank = wfi_agent_rank(agent);
    return (wfi_rref_name){.owner = (uint32_t)owner,
                           .creator = (uint32_t)rank,
                           .owner_incarnation = incarnation_of(agent, owner),
                           .creator_incarnation = incarnation_of(agent, rank)};
}

static weft_status create_home(weft_agent *agent, weft_rref **out)
{
    if (agent->forked)
        return WEFT_ERR_STATE;
    wfi_net_lock(agent->net);
    wfi_rref_name name = new_name(agent, wfi_agent_rank(agent));
    name.number = ++wfi_refs_of(agent)->next_number;
    wfi_owned *owned = wfi_owned_make(agent, &name);
    weft_rref *rref = owned ? wfi_owned_handle(owned) : NULL;
    if (owned && !rref)
        wfi_owned_release_if_unused(owned);
    wfi_net_unlock(agent->net);
    if (!rref)
        return WEFT_ERR_MEMORY;
    *out = rref;
    return WEFT_OK;
}

/* Makes a handle to a value that exists. Takes over `payload`, which is NULL if memory was out. */
static weft_status create_made(weft_agent *agent, void *payload, weft_drop_fn drop, const char *function,
                               weft_rref **out, weft_error **error)
{
    weft_status status = payload ? create_home(agent, out) : WEFT_ERR_MEMORY;
    if (status) {
        drop(payload);
        return wfi_refuse_to(error, status, "%s: %s", function, weft_status_text(status));
    }
    (void)!wfi_future_complete((*out)->value, payload, drop); /* no other thread knows it yet */
    return WEFT_OK;
}

weft_status weft_rref_create(weft_agent *agent, weft_value value, weft_rref **out, weft_error **error)
{
    WFI_CHECK_HANDLE(agent);
    weft_values *values;
    if (!agent || !out)
        return wfi_refuse_null_to(error, "weft_rref_create", agent ? "out" : "the agent");
    bool readable = wfi_args_are_readable((weft_args){&value, 1});
    weft_status status = readable ? wfi_values_create((weft_args){&value, 1}, &values) : WEFT_ERR_INVALID;
    return status ? wfi_values_refuse(error, "weft_rref_create", (weft_args){&value, 1}, status, WEFT_LOG_ERROR)
                  : create_made(agent, values, wfi_values_drop, "weft_rref_create", out, error);
}

weft_status weft_rref_create_object(weft_agent *agent, void *object, weft_drop_fn drop, weft_rref **out,
                                    weft_error **error)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent || !out) {
        if (drop)
            drop(object);
        return wfi_refuse_null_to(error, "weft_rref_create_object", agent ? "out" : "the agent");
    }
    return create_made(agent, wfi_object_create(NULL, object, drop), wfi_object_drop, "weft_rref_create_object", out,
                       error);
}

weft_status weft_rref_create_typed_sized(weft_agent *agent, const weft_object_type *type, size_t size, void *object,
                                         weft_rref **out, weft_error **error)
{
    WFI_CHECK_HANDLE(agent);
    weft_object_type own;
    if (!type || !object)
        return wfi_refuse_null_to(error, "weft_rref_create_typed", type ? "the object" : "the type");
    const weft_object_type *known = WFI_SIZED(type, size, &own);
    weft_drop_fn drop = known ? known->drop : type->drop;
    if (!known || !agent || !out) {
        if (drop)
            drop(object);
        return !known ? wfi_refuse_newer(error, "weft_rref_create_typed", "weft_object_type")
                      : wfi_refuse_null_to(error, "weft_rref_create_typed", agent ? "out" : "the agent");
    }
    return create_made(agent, wfi_object_create(type, object, drop), wfi_object_drop, "weft_rref_create_typed", out,
                       error);
}

/* ---- weft_rpc_remote --------------------------------------------------------------------------------------------- */

weft_status wfi_rref_create_pending(weft_agent *agent, weft_worker owner, weft_rref **out)
{
    weft_status status;
    if (owner.rank == wfi_agent_rank(agent)) {
        status = create_home(agent, out);
        if (!status)
            (*out)->making = true;
        return status;
    }
    wfi_net_lock(agent->net);
    wfi_rref_name name = new_name(agent, owner.rank);
    if (owner.incarnation)
        name.owner_incarnation = owner.incarnation;
    wfi_peer *peer = wfi_net_peer(agent->net, owner.rank);
    bool is_known = peer && wfi_peer_incarnation(peer) == name.owner_incarnation;
    weft_rref *rref = wfi_rref_make(agent, &name, is_known ? peer : NULL);
    if (rref) {
        rref->needs_drop = false; /* until the call is sent */
        rref->making = true;
        *out = rref;
    }
    wfi_net_unlock(agent->net);
    return rref ? WEFT_OK : WEFT_ERR_MEMORY;
}

weft_status wfi_rref_launch(weft_rref *rref, wfi_peer *owner)
{
    weft_agent *agent = rref->agent;
    bool known = rref->launched || rref->passed; /* to others */
    if (known && wfi_peer_incarnation(owner) != rref->name.owner_incarnation)
        return WEFT_ERR_PEER_DEAD;
    if (rref->launched) /* a further attempt */
        return WEFT_OK;
    if (owner != rref->owner) { /* the rank had no worker, or an older incarnation, when the handle was made */
        wfi_rref_set_owner(rref, owner);
        rref->name.owner_incarnation = wfi_peer_incarnation(owner);
        rref->lost = false;
        weft_error_unref(rref->error);
        rref->error = NULL;
    }
    if (!rref->passed)
        rref->name.number = ++wfi_refs_of(agent)->next_number;
    rref->fork = ++wfi_refs_of(agent)->next_fork;
    return WEFT_OK;
}

void wfi_rref_launched(weft_rref *rref)
{
    rref->launched = true;
    rref->needs_drop = true;
}

/* Whether the status means that the owner has answered: then it has the fork, and the value or the error. */
static bool owner_has_it(weft_status code)
{
    switch (code) {
    case WEFT_OK:
    case WEFT_ERR_INVALID:
    case WEFT_ERR_TYPE:
    case WEFT_ERR_SHAPE:
    case WEFT_ERR_NOT_FOUND:
    case WEFT_ERR_REMOTE:
    case WEFT_ERR_TOO_LARGE:
        return true;
    default:
        return false;
    }
}

static void send_drop(weft_rref *rref, bool gave_up);

void wfi_rref_created(weft_rref *rref, const weft_error *error)
{
    wfi_assert_held(wfi_net_mutex(rref->agent->net));
    weft_status code = error ? weft_error_code(error) : WEFT_OK;
    if (!rref->making)
        return;
    rref->making = false;
    if (error && !rref->error)
        rref->error = weft_error_ref(error);
    if (error && rref->home)
        wfi_owned_give_up(rref->home, error);
    bool is_answer = !error || weft_error_worker(error) >= 0; /* otherwise this worker could not send the call */
    if (!rref->home && is_answer && owner_has_it(code)) {
        rref->confirmed = true;
    } else if (!rref->home) { /* the owner may have the value, or get it later: it frees it either way */
        rref->lost = true;
        send_drop(rref, true);
        rref->needs_drop = false;
    }
    if (rref->made)
        wfi_complete_future(rref->made, NULL, rref->error);
    weft_future_unref(rref->made);
    rref->made = NULL;
}

void wfi_rref_write_fork(const weft_rref *rref, wfi_writer *writer)
{
    wfi_reference_write_name(writer, &rref->name);
    wfi_write_u64(writer, rref->fork);
}

/* ---- Releasing --------------------------------------------------------------------------------------------------- */

/* If this worker gave up making the value, DROP is sent after the queued calls, so that the owner knows that the call
 * is not among them. Sent before them, it would raise creations_seen, and the owner would take the values of the queued
 * calls for values that are gone. */
static void send_drop(weft_rref *rref, bool gave_up)
{
    weft_agent *agent = rref->agent;
    if (!rref->needs_drop || !rref->owner || agent->stopped || wfi_peer_status(rref->owner))
        return;
    uint8_t room[64];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_rref_write_fork(rref, &writer);
    wfi_write_u8(&writer, gave_up);
    if (gave_up)
        wfi_post_in_turn(agent, rref->owner, WFI_RPC_DROP, &writer, &rref->notifications);
    else
        wfi_post(agent, rref->owner, WFI_RPC_DROP, &writer, &rref->notifications);
}

/* The last copy of the handle was dropped: tells the owner. [agent lock] */
static void withdraw_handle(weft_rref *rref)
{
    if (rref->home) {
        rref->home->handles--;
        wfi_owned_release_if_unused(rref->home);
        return;
    }
    send_drop(rref, false);
    wfi_rref_set_owner(rref, NULL);
    wfi_notifications_release(rref->agent, &rref->notifications);
    wfi_list_remove(&rref->link);
}

static void free_handle(weft_rref *rref)
{
    weft_error_unref(rref->error);
    weft_future_unref(rref->value);
    weft_future_unref(rref->made);
    wfi_agent_unref(rref->agent);
    wfi_handle_free(rref);
}

/* Not for handles on the owner: they may be the last of a value, and run its destructor. */
void wfi_rref_unref_locked(weft_rref *rref)
{
    if (!wfi_reference_drop(rref))
        return;
    withdraw_handle(rref);
    free_handle(rref); /* not the agent's last reference: its user holds one while the agent is open */
}

static void release_handle(weft_rref *rref)
{
    if (wfi_agent_enter_locked(rref->agent)) { /* the tables of a closed agent are freed */
        withdraw_handle(rref);
        wfi_agent_leave_locked(rref->agent);
    }
    free_handle(rref);
}
