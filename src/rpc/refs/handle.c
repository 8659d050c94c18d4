/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c - handles to values: made here, made elsewhere, received, confirmed, let go. The rules: refs.h. */
#include "base/alloc.h"
#include "rpc/refs/refs.h"
#include "rpc/agent/notify.h"
#include "rpc/refs/internal.h"

#include "base/error.h"
#include "base/text/log.h"
#include "rpc/client/client.h"
#include "value/values.h"

#include <stdlib.h>

#define AWAIT_OWNER_MS 10000 /* where the agent's bound for deaths is switched off */

const wfi_rref_name *wfi_rref_name_of(const weft_rref *rref)
{
    return &rref->name;
}

uint64_t wfi_rref_fork_of(const weft_rref *rref)
{
    return rref->fork;
}

wfi_owned *wfi_rref_home(weft_rref *rref)
{
    return rref->home;
}

/* ---- Making handles ---------------------------------------------------------------------------------------------- */

static weft_rref *make_handle(weft_agent *agent, const wfi_rref_name *name)
{
    weft_rref *rref = wfi_calloc(1, sizeof *rref);
    if (!rref)
        return NULL;
    atomic_init(&rref->refs, 1);
    wfi_list_init(&rref->link);
    rref->agent = wfi_agent_ref(agent);
    rref->name = *name;
    return rref;
}

/* From now on we want to hear of that worker's death. NULL: of nobody's. [agent lock] */
static void set_owner(weft_rref *rref, wfi_peer *owner)
{
    if (owner)
        wfi_peer_lean(wfi_peer_ref(owner), +1);
    if (rref->owner)
        wfi_peer_lean(rref->owner, -1);
    wfi_peer_unref(rref->owner);
    rref->owner = owner;
}

/* One to a value of another worker's. [agent lock] */
static weft_rref *make_reference(weft_agent *agent, const wfi_rref_name *name, wfi_peer *owner)
{
    weft_rref *rref = make_handle(agent, name);
    if (!rref)
        return NULL;
    if (wfi_letters_promise(agent, 2, &rref->letters)) {
        wfi_agent_unref(agent);
        free(rref);
        return NULL;
    }
    set_owner(rref, owner);
    wfi_list_push_back(&agent->references, &rref->link);
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
    wfi_net_lock(agent->net);
    wfi_rref_name name = new_name(agent, wfi_agent_rank(agent));
    name.number = ++agent->next_rref_number;
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

weft_status weft_rref_create(weft_agent *agent, weft_value value, weft_rref **out)
{
    weft_values *values;
    weft_rref *rref;
    weft_status st = weft_values_create((weft_args){&value, 1}, &values);
    if (st)
        return st;
    st = create_home(agent, &rref);
    if (st) {
        weft_values_unref(values);
        return st;
    }
    st = wfi_future_complete(rref->value, values, wfi_values_drop);
    (void)st; /* nobody else knows of it */
    *out = rref;
    return WEFT_OK;
}

static weft_status create_object(weft_agent *agent, wfi_object *object, weft_rref **out)
{
    weft_rref *rref;
    weft_status st = object ? create_home(agent, &rref) : WEFT_ERR_MEMORY;
    if (st) {
        wfi_object_drop(object);
        return st;
    }
    st = wfi_future_complete(rref->value, object, wfi_object_drop);
    (void)st; /* nobody else knows of it */
    *out = rref;
    return WEFT_OK;
}

weft_status weft_rref_create_object(weft_agent *agent, void *object, weft_drop_fn drop, weft_rref **out)
{
    return create_object(agent, wfi_object_create(NULL, object, drop), out);
}

weft_status weft_rref_create_typed(weft_agent *agent, const weft_object_type *type, void *object, weft_rref **out)
{
    return create_object(agent, wfi_object_create(type, object, type->drop), out);
}

/* ---- rpc_remote: made elsewhere ------------------------------------------------------------------------------------ */

weft_status wfi_rref_create_pending(weft_agent *agent, int owner, weft_rref **out)
{
    weft_status st;
    if (owner == wfi_agent_rank(agent)) {
        st = create_home(agent, out);
        if (!st)
            (*out)->making = true;
        return st;
    }
    wfi_net_lock(agent->net);
    wfi_rref_name name = new_name(agent, owner);
    wfi_peer *peer = wfi_net_peer(agent->net, owner);
    weft_rref *rref = peer ? make_reference(agent, &name, peer) : NULL;
    if (rref) {
        rref->unknown = true; /* until the call has gone */
        rref->making = true;
        *out = rref;
    }
    wfi_net_unlock(agent->net);
    return rref ? WEFT_OK : peer ? WEFT_ERR_MEMORY : WEFT_ERR_NOT_FOUND;
}

weft_status wfi_rref_launch(weft_rref *rref, wfi_peer *owner)
{
    weft_agent *agent = rref->agent;
    bool known = rref->launched || rref->passed; /* to others */
    if (known && owner != rref->owner)
        return WEFT_ERR_PEER_DEAD;
    if (rref->launched) /* a further attempt */
        return WEFT_OK;
    if (owner != rref->owner) { /* the rank was taken anew meanwhile */
        set_owner(rref, owner);
        rref->name.owner_incarnation = wfi_peer_incarnation(owner);
        rref->lost = false;
        weft_error_unref(rref->error);
        rref->error = NULL;
    }
    if (!rref->passed)
        rref->name.number = ++agent->next_rref_number;
    rref->fork = ++agent->next_fork;
    return WEFT_OK;
}

void wfi_rref_launched(weft_rref *rref)
{
    rref->launched = true;
    rref->unknown = false;
}

/* Whether an answer of the owner's says so: then it has our fork, and the error in the value's place. */
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

static void say_drop(weft_rref *rref, bool gave_up);

static void settle_made(weft_rref *rref)
{
    weft_future *made = rref->made;
    rref->made = NULL;
    if (!made)
        return;
    weft_status st = rref->error ? wfi_future_fail(made, rref->error) : wfi_future_complete(made, NULL, NULL);
    (void)st; /* WEFT_ERR_COMPLETED: its user cancelled it */
    weft_future_unref(made);
}

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
    if (!rref->home && owner_has_it(code)) {
        rref->confirmed = true;
    } else if (!rref->home) {
        rref->lost = true;
        say_drop(rref, true);
        rref->unknown = true;
    }
    settle_made(rref);
}

/* ---- Handles that arrive ------------------------------------------------------------------------------------------- */

static void write_fork(const weft_rref *rref, wfi_writer *writer)
{
    wfi_write_rref_name(writer, &rref->name);
    wfi_write_u64(writer, rref->fork);
}

/* Announces it, under the next number: those of FORKs grow in the order in which they leave. The handle lives, in the table
 * of forks, until its owner answers. [agent lock] */
static weft_status announce(weft_rref *rref)
{
    weft_agent *agent = rref->agent;
    uint8_t room[64];
    wfi_writer writer;
    rref->fork = ++agent->next_fork;
    weft_status st = wfi_map_put(&agent->forks, rref->fork, rref);
    if (st)
        return st;
    wfi_writer_init(&writer, room, sizeof room);
    write_fork(rref, &writer);
    st = wfi_post(agent, rref->owner, WFI_RPC_FORK, &writer, &rref->letters);
    if (st)
        wfi_map_take(&agent->forks, rref->fork);
    return st;
}

static void confirmed(weft_rref *rref, weft_status why, weft_error *error);

static void owner_did_not_come(wfi_timer *timer)
{
    weft_rref *rref = wfi_container_of(timer, weft_rref, timer);
    weft_status why = WEFT_ERR_UNREACHABLE;
    confirmed(rref, why, weft_error_create(why, "rank %u, the owner, has not joined this job", rref->name.owner));
}

/* Somebody heard of the owner's joining before us: the news is on its way. [agent lock] */
static weft_status await_owner(weft_rref *rref)
{
    weft_agent *agent = rref->agent;
    int64_t bound_ms = wfi_net_death_timeout_ms(agent->net);
    rref->timer.fire = owner_did_not_come;
    rref->fork = ++agent->next_fork;
    weft_status st = wfi_map_put(&agent->forks, rref->fork, rref);
    if (st)
        return st;
    bound_ms = bound_ms > 0 ? bound_ms : AWAIT_OWNER_MS;
    st = wfi_net_timer_set(agent->net, &rref->timer, wfi_deadline(wfi_net_clock(agent->net), bound_ms));
    if (st)
        wfi_map_take(&agent->forks, rref->fork);
    return st;
}

/* A handle that never came to be: nobody was told of it, so there is nothing to say. [agent lock] */
static void discard(weft_rref *rref)
{
    set_owner(rref, NULL);
    wfi_letters_release(rref->agent, &rref->letters);
    wfi_list_remove(&rref->link);
    wfi_agent_unref(rref->agent);
    free(rref);
}

static weft_status import_from_owner(weft_agent *agent, const wfi_rref_name *name, struct wfi_intake *waiter,
                                     weft_rref **out)
{
    if (name->owner >= (uint32_t)agent->options.values.world_size || !name->owner_incarnation)
        return WEFT_ERR_PROTOCOL;
    wfi_peer *owner = wfi_net_peer(agent->net, (int)name->owner);
    uint32_t known = owner ? wfi_peer_incarnation(owner) : 0;
    if (known > name->owner_incarnation)
        return wfi_net_former_status(agent->net, (int)name->owner, name->owner_incarnation);
    weft_status st = known == name->owner_incarnation ? wfi_peer_status(owner) : WEFT_OK;
    if (st)
        return st;
    weft_rref *rref = make_reference(agent, name, known == name->owner_incarnation ? owner : NULL);
    if (!rref)
        return WEFT_ERR_MEMORY;
    rref->launched = true;
    st = rref->owner ? announce(rref) : await_owner(rref);
    if (st) {
        discard(rref);
        return st;
    }
    weft_rref_ref(rref); /* the table's */
    rref->waiter = waiter;
    *out = rref;
    return WEFT_OK;
}

weft_status wfi_rref_import(weft_agent *agent, const wfi_rref_name *name, struct wfi_intake *waiter, weft_rref **out)
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
    wfi_intake_confirmed(waiter, WEFT_OK);
    return WEFT_OK;
}

void wfi_rref_forget_waiter(weft_rref *rref)
{
    if (rref)
        rref->waiter = NULL;
}

/* ---- The protocol ------------------------------------------------------------------------------------------------ */

/* The owner answered, or never will: `error` (taken over) says why it does not know of the handle. */
static void confirmed(weft_rref *rref, weft_status why, weft_error *error)
{
    struct wfi_intake *waiter = rref->waiter;
    wfi_map_take(&rref->agent->forks, rref->fork);
    wfi_net_timer_clear(rref->agent->net, &rref->timer);
    rref->waiter = NULL;
    rref->confirmed = !error;
    if (error) {
        rref->lost = rref->unknown = true;
        weft_error_unref(rref->error);
        rref->error = error;
    }
    if (waiter)
        wfi_intake_confirmed(waiter, why);
    wfi_rref_unref_locked(rref);
}

static void on_forked(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t fork, uint32_t status)
{
    weft_rref *rref = wfi_map_get(&agent->forks, fork);
    if (!rref || rref->owner != from || !wfi_rref_same_name(&rref->name, name))
        return;
    if (status == 0) {
        confirmed(rref, WEFT_OK, NULL);
        return;
    }
    weft_status why = (int32_t)status == WEFT_ERR_MEMORY ? WEFT_ERR_MEMORY : WEFT_ERR_NOT_FOUND;
    wfi_error_detail detail = {.code = why, .worker = wfi_peer_rank(from)};
    confirmed(rref, why,
              wfi_error_create(&detail, why == WEFT_ERR_MEMORY
                                            ? "the owner of the reference has no memory to count it"
                                            : "the owner of the reference has let the value go: whoever passed it on "
                                              "died, or gave up"));
}

static void on_fork(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t fork)
{
    uint8_t room[64];
    wfi_writer writer;
    if (!wfi_may_answer(agent, from)) /* nor is it counted */
        return;
    weft_status st = wfi_owned_fork_said(agent, from, name, fork);
    wfi_writer_init(&writer, room, sizeof room);
    wfi_write_rref_name(&writer, name);
    wfi_write_u64(&writer, fork);
    wfi_write_u32(&writer, (uint32_t)st);
    wfi_post_answer(agent, from, WFI_RPC_FORKED, &writer, NULL);
}

void wfi_on_rref_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    wfi_rref_name name = wfi_read_rref_name(reader);
    uint64_t fork = wfi_read_u64(reader);
    uint32_t status = type == WFI_RPC_FORKED ? wfi_read_u32(reader) : 0;
    bool gave_up = type == WFI_RPC_DROP && wfi_read_u8(reader);
    if (reader->failed)
        return;
    if (type == WFI_RPC_DROP)
        wfi_owned_drop_said(agent, from, &name, fork, gave_up);
    else if (type == WFI_RPC_FORK)
        on_fork(agent, from, &name, fork);
    else
        on_forked(agent, from, &name, fork, status);
}

static weft_rref *next_unconfirmed(weft_agent *agent, const wfi_peer *owner)
{
    size_t cursor = 0;
    uint64_t fork;
    weft_rref *rref = wfi_map_next(&agent->forks, &cursor, &fork);
    while (rref && owner && rref->owner != owner)
        rref = wfi_map_next(&agent->forks, &cursor, &fork);
    return rref;
}

void wfi_rrefs_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    int rank = wfi_peer_rank(peer);
    wfi_error_detail detail = {.code = why, .worker = rank};
    weft_error *error = wfi_error_create(&detail, "rank %d (\"%s\"), the owner of the reference, is gone: %s", rank,
                                         wfi_peer_name(peer), text);
    for (wfi_list *link = agent->references.next; link != &agent->references; link = link->next) {
        weft_rref *rref = wfi_container_of(link, weft_rref, link);
        if (rref->owner != peer)
            continue;
        rref->lost = rref->unknown = true;
        weft_error_unref(rref->error);
        rref->error = weft_error_ref(error);
    }
    for (weft_rref *rref; (rref = next_unconfirmed(agent, peer));)
        confirmed(rref, why, weft_error_ref(error));
    weft_error_unref(error);
    wfi_owned_peer_gone(agent, peer, why);
}

static weft_rref *next_awaiting(weft_agent *agent, wfi_peer *peer)
{
    size_t cursor = 0;
    uint64_t fork;
    weft_rref *rref;
    while ((rref = wfi_map_next(&agent->forks, &cursor, &fork)))
        if (!rref->owner && rref->name.owner == (uint32_t)wfi_peer_rank(peer) &&
            rref->name.owner_incarnation <= wfi_peer_incarnation(peer))
            break;
    return rref;
}

void wfi_rrefs_peer_joined(weft_agent *agent, wfi_peer *peer)
{
    for (weft_rref *rref; (rref = next_awaiting(agent, peer));) {
        weft_status st = WEFT_ERR_PEER_DEAD;
        if (rref->name.owner_incarnation == wfi_peer_incarnation(peer)) {
            uint64_t waited_as = rref->fork;
            set_owner(rref, peer);
            st = announce(rref);
            wfi_map_take(&agent->forks, waited_as);
            wfi_net_timer_clear(agent->net, &rref->timer);
        }
        if (st)
            confirmed(rref, st, weft_error_create(st, "rank %u, the owner, is gone", rref->name.owner));
    }
}

void wfi_rrefs_end(weft_agent *agent)
{
    weft_status why = WEFT_ERR_CLOSED;
    for (weft_rref *rref; (rref = next_unconfirmed(agent, NULL));)
        confirmed(rref, why, weft_error_create(why, "this worker closed its agent"));
    wfi_owned_end(agent);
}

/* ---- Letting go -------------------------------------------------------------------------------------------------- */

weft_rref *weft_rref_ref(weft_rref *rref)
{
    if (rref)
        atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed);
    return rref;
}

/* One whose making we gave up goes in turn: behind the calls that wait, so that the owner knows that ours is not among
 * them. Ahead of them it would make the owner take the values of all that wait for such as have come and gone. */
static void say_drop(weft_rref *rref, bool gave_up)
{
    weft_agent *agent = rref->agent;
    if (rref->unknown || agent->stopped || wfi_peer_status(rref->owner))
        return;
    uint8_t room[64];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    write_fork(rref, &writer);
    wfi_write_u8(&writer, gave_up);
    if (gave_up)
        wfi_post_in_turn(agent, rref->owner, WFI_RPC_DROP, &writer, &rref->letters);
    else
        wfi_post(agent, rref->owner, WFI_RPC_DROP, &writer, &rref->letters);
}

/* The last reference has gone: tell the owner. [agent lock] */
static void say_goodbye(weft_rref *rref)
{
    if (rref->home) {
        rref->home->handles--;
        wfi_owned_release_if_unused(rref->home);
        return;
    }
    if (rref->owner)
        say_drop(rref, false);
    set_owner(rref, NULL);
    wfi_letters_release(rref->agent, &rref->letters);
    wfi_list_remove(&rref->link);
}

static void free_handle(weft_rref *rref)
{
    weft_error_unref(rref->error);
    weft_future_unref(rref->value);
    weft_future_unref(rref->made);
    wfi_agent_unref(rref->agent);
    free(rref);
}

static bool drop_reference(weft_rref *rref)
{
    return rref && atomic_fetch_sub_explicit(&rref->refs, 1, memory_order_acq_rel) == 1;
}

/* Not for handles of the owner's own: these may be a value's last, and run a destructor. */
void wfi_rref_unref_locked(weft_rref *rref)
{
    if (!drop_reference(rref))
        return;
    say_goodbye(rref);
    free_handle(rref); /* not the agent's last reference: its opener holds one while there is a lock to hold */
}

void weft_rref_unref(weft_rref *rref)
{
    if (!drop_reference(rref))
        return;
    weft_agent *agent = rref->agent;
    if (!wfi_agent_enter(agent)) { /* closed: its tables went with it */
        free_handle(rref);
        return;
    }
    wfi_net_lock(agent->net);
    say_goodbye(rref);
    wfi_net_unlock(agent->net);
    wfi_agent_leave(agent);
    free_handle(rref);
}
