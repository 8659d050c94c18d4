/* SPDX-License-Identifier: Apache-2.0 */
/* rref.c - handles to values: made here, made elsewhere, received; confirmed, read, let go. Rules: rref.h. */
#include "rpc/rref.h"
#include "rpc/rref_internal.h"

#include "base/error.h"
#include "base/log.h"
#include "rpc/call.h"
#include "rpc/values.h"

#include <stdlib.h>

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
    weft_rref *rref = calloc(1, sizeof *rref);
    if (!rref)
        return NULL;
    atomic_init(&rref->refs, 1);
    rref->agent = wfi_agent_ref(agent);
    rref->name = *name;
    return rref;
}

/* A handle on the value's owner. [agent lock] */
static weft_rref *make_home_handle(weft_agent *agent, wfi_owned *owned)
{
    weft_rref *rref = make_handle(agent, &owned->name);
    if (!rref)
        return NULL;
    rref->home = owned;
    rref->value = weft_future_ref(owned->value);
    rref->confirmed = true;
    owned->handles++;
    return rref;
}

static wfi_rref_name next_name(weft_agent *agent, int owner)
{
    int rank = wfi_agent_rank(agent);
    return (wfi_rref_name){.owner = (uint32_t)owner,
                           .creator = (uint32_t)rank,
                           .creator_incarnation = wfi_net_member(agent->net, rank)->incarnation,
                           .number = ++agent->next_rref_number};
}

static weft_status create_home(weft_agent *agent, weft_rref **out)
{
    wfi_net_lock(agent->net);
    wfi_rref_name name = next_name(agent, wfi_agent_rank(agent));
    wfi_owned *owned = wfi_owned_make(agent, &name);
    weft_rref *rref = owned ? make_home_handle(agent, owned) : NULL;
    if (owned && !rref)
        wfi_owned_release_if_unused(agent, owned);
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
    if (!st) {
        wfi_owned_complete(rref->value, values, NULL);
        *out = rref;
    }
    weft_values_unref(values);
    return st;
}

weft_status weft_rref_create_object(weft_agent *agent, void *object, weft_drop_fn drop, weft_rref **out)
{
    weft_rref *rref;
    weft_status st = create_home(agent, &rref);
    if (st) {
        if (drop)
            drop(object);
        return st;
    }
    st = weft_future_complete(rref->value, object, drop);
    if (st) {
        weft_rref_unref(rref);
        return st;
    }
    *out = rref;
    return WEFT_OK;
}

/* Lets the handle live, in the table of forks, until its owner answers. [agent lock] */
static weft_status await_owner(weft_rref *rref)
{
    weft_agent *agent = rref->agent;
    rref->fork = ++agent->next_fork;
    weft_status st = wfi_map_put(&agent->forks, rref->fork, rref);
    if (!st)
        weft_rref_ref(rref);
    return st;
}

/* A handle that never came to be: nobody was told of it, so there is nothing to say. [agent lock] */
static void discard(weft_rref *rref)
{
    wfi_agent_unref(rref->agent);
    free(rref);
}

weft_status wfi_rref_create_pending(weft_agent *agent, int owner, weft_rref **out)
{
    if (owner == wfi_agent_rank(agent))
        return create_home(agent, out);
    wfi_net_lock(agent->net);
    wfi_rref_name name = next_name(agent, owner);
    weft_rref *rref = make_handle(agent, &name);
    weft_status st = WEFT_ERR_MEMORY;
    if (rref) {
        rref->fork = ++agent->next_fork;
        rref->unknown = true; /* until the call has gone */
        st = WEFT_OK;
        *out = rref;
    }
    wfi_net_unlock(agent->net);
    return st;
}

void wfi_rref_created(weft_rref *rref, const weft_error *error)
{
    wfi_assert_held(wfi_net_mutex(rref->agent->net));
    rref->unknown = false;
    if (!rref->home)
        rref->confirmed = error == NULL;
    if (error && !rref->error)
        rref->error = weft_error_ref(error);
}

static void write_fork(const weft_rref *rref, wfi_writer *writer)
{
    wfi_write_rref_name(writer, &rref->name);
    wfi_write_u64(writer, rref->fork);
}

static weft_status import_from_owner(weft_agent *agent, const wfi_rref_name *name, struct wfi_intake *waiter,
                                     weft_rref **out)
{
    uint8_t room[64];
    wfi_writer writer;
    wfi_peer *owner = wfi_net_peer(agent->net, (int)name->owner);
    weft_status st = owner ? wfi_peer_status(owner) : WEFT_ERR_PROTOCOL;
    if (st)
        return st;
    weft_rref *rref = make_handle(agent, name);
    if (!rref)
        return WEFT_ERR_MEMORY;
    st = await_owner(rref);
    if (st) {
        discard(rref);
        return st;
    }
    rref->waiter = waiter;
    wfi_writer_init(&writer, room, sizeof room);
    write_fork(rref, &writer);
    wfi_post(agent, owner, WFI_RPC_FORK, &writer);
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
    weft_rref *rref = make_home_handle(agent, owned);
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

static void confirmed(weft_agent *agent, const wfi_rref_name *name, uint64_t fork, weft_error *error, weft_status why)
{
    weft_rref *rref = wfi_map_get(&agent->forks, fork);
    if (!rref || !wfi_rref_same_name(&rref->name, name)) {
        weft_error_unref(error);
        return;
    }
    wfi_map_take(&agent->forks, fork);
    struct wfi_intake *waiter = rref->waiter;
    rref->waiter = NULL;
    rref->confirmed = !error;
    rref->error = error;
    if (waiter)
        wfi_intake_confirmed(waiter, why);
    wfi_rref_unref_locked(rref);
}

/*
 * The value may still be under way here: its maker's call and this message took different roads. One that is gone, and will
 * not come, is confirmed all the same: who asks for it learns then that it is not there. False: no memory.
 */
static bool add_fork(weft_agent *agent, const wfi_rref_name *name, int rank, uint64_t fork)
{
    wfi_owned *owned = wfi_owned_find(agent, name);
    if (!owned && !wfi_owned_may_come(agent, name))
        return true;
    if (!owned)
        owned = wfi_owned_make(agent, name);
    return owned && !wfi_owned_add_fork(owned, rank, fork);
}

void wfi_on_rref_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    wfi_rref_name name = wfi_read_rref_name(reader);
    uint64_t fork = wfi_read_u64(reader);
    if (reader->failed)
        return;
    if (type == WFI_RPC_DROP) {
        wfi_owned_drop_fork(agent, &name, wfi_peer_rank(from), fork);
    } else if (type == WFI_RPC_FORK) {
        if (name.owner != (uint32_t)wfi_agent_rank(agent) || !add_fork(agent, &name, wfi_peer_rank(from), fork))
            return;
        uint8_t room[64];
        wfi_writer writer;
        wfi_writer_init(&writer, room, sizeof room);
        wfi_write_rref_name(&writer, &name);
        wfi_write_u64(&writer, fork);
        wfi_post(agent, from, WFI_RPC_FORKED, &writer);
    } else if (name.owner == (uint32_t)wfi_peer_rank(from)) {
        confirmed(agent, &name, fork, NULL, WEFT_OK);
    }
}

static weft_rref *next_unconfirmed(weft_agent *agent, int owner)
{
    size_t cursor = 0;
    uint64_t fork;
    weft_rref *rref = wfi_map_next(&agent->forks, &cursor, &fork);
    while (rref && rref->name.owner != (uint32_t)owner)
        rref = wfi_map_next(&agent->forks, &cursor, &fork);
    return rref;
}

void wfi_rrefs_peer_gone(weft_agent *agent, int rank, weft_status why)
{
    for (weft_rref *rref; (rref = next_unconfirmed(agent, rank));)
        confirmed(agent, &rref->name, rref->fork, weft_error_create(why, "rank %d, the owner, is gone", rank), why);
    wfi_owned_drop_all_of(agent, rank);
}

/* ---- Letting go -------------------------------------------------------------------------------------------------- */

weft_rref *weft_rref_ref(weft_rref *rref)
{
    if (rref)
        atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed);
    return rref;
}

/* The last reference has gone: tell the owner. [agent lock] */
static void say_goodbye(weft_rref *rref)
{
    weft_agent *agent = rref->agent;
    if (rref->home) {
        rref->home->handles--;
        wfi_owned_release_if_unused(agent, rref->home);
        return;
    }
    wfi_peer *owner = wfi_net_peer(agent->net, (int)rref->name.owner);
    if (rref->unknown || agent->stopped || wfi_peer_status(owner))
        return;
    uint8_t room[64];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    write_fork(rref, &writer);
    wfi_post(agent, owner, WFI_RPC_DROP, &writer);
}

static void free_handle(weft_rref *rref)
{
    weft_error_unref(rref->error);
    weft_future_unref(rref->value);
    wfi_agent_unref(rref->agent);
    free(rref);
}

static bool drop_reference(weft_rref *rref)
{
    return rref && atomic_fetch_sub_explicit(&rref->refs, 1, memory_order_acq_rel) == 1;
}

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
    if (!wfi_agent_enter(agent)) { /* closed: its table went with it */
        free_handle(rref);
        return;
    }
    wfi_net_lock(agent->net);
    say_goodbye(rref);
    wfi_net_unlock(agent->net);
    wfi_agent_leave(agent);
    free_handle(rref);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

int weft_rref_owner(const weft_rref *rref)
{
    return (int)rref->name.owner;
}

bool weft_rref_is_owner(const weft_rref *rref)
{
    return rref->value != NULL;
}

bool weft_rref_confirmed(const weft_rref *rref)
{
    if (!wfi_agent_enter(rref->agent))
        return false;
    wfi_net_lock(rref->agent->net);
    bool confirmed_now = rref->confirmed;
    wfi_net_unlock(rref->agent->net);
    wfi_agent_leave(rref->agent);
    return confirmed_now;
}

weft_status weft_rref_local_value(weft_rref *rref, int64_t timeout_ms, weft_value *out)
{
    if (!rref->value)
        return WEFT_ERR_STATE;
    weft_future *value = rref->value;
    weft_status st = weft_future_wait(value, timeout_ms);
    if (st)
        return st;
    weft_args args = weft_values_args(weft_future_values(value));
    if (!weft_future_values(value))
        return WEFT_ERR_TYPE;
    *out = args.count ? args.items[0] : weft_of_null();
    return WEFT_OK;
}

weft_status weft_rref_local_object(weft_rref *rref, void **out)
{
    if (!rref->value)
        return WEFT_ERR_STATE;
    weft_future *value = rref->value;
    if (!weft_future_done(value) || weft_future_error(value) || weft_future_values(value))
        return WEFT_ERR_TYPE;
    *out = weft_future_payload(value);
    return WEFT_OK;
}

static weft_status failed_future(weft_agent *agent, const weft_error *error, weft_future **out)
{
    weft_future *failed = wfi_agent_future(agent);
    weft_status st = failed ? weft_future_fail(failed, error) : WEFT_ERR_MEMORY;
    if (!st)
        *out = failed;
    return st;
}

static void only_keep(weft_future *future, void *arg)
{
    (void)future;
    (void)arg;
}

static void drop_handle(void *arg)
{
    weft_rref_unref(arg);
}

/* Asks the owner. The handle stays until the answer: its DROP could overtake the question. */
static weft_status fetch(weft_rref *rref, int64_t timeout_ms, weft_future **out)
{
    uint8_t room[64];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    wfi_write_rref_name(&writer, &rref->name);
    weft_status st = weft_rpc_async(rref->agent, weft_to_rank((int)rref->name.owner), wfi_fetch_function.name,
                                    WEFT_VALUES(weft_of_bytes(room, writer.size)),
                                    &(weft_rpc_options){.timeout_ms = timeout_ms}, out);
    if (!st && weft_future_add_done_callback(*out, only_keep, weft_rref_ref(rref), drop_handle))
        wfi_log(WEFT_LOG_WARN, "no memory to keep a reference until its value is here");
    return st;
}

/* Elsewhere, or not made yet. */
static weft_status ask(weft_rref *rref, int64_t timeout_ms, weft_future **out)
{
    weft_agent *agent = rref->agent;
    wfi_net_lock(agent->net);
    weft_error *error = weft_error_ref(rref->error);
    wfi_net_unlock(agent->net);
    weft_status st = error ? failed_future(agent, error, out) : fetch(rref, timeout_ms, out);
    weft_error_unref(error);
    return st;
}

weft_status weft_rref_to_here_async(weft_rref *rref, int64_t timeout_ms, weft_future **out)
{
    weft_future *value = rref->value;
    if (value && weft_future_done(value)) {
        if (!weft_future_error(value) && !weft_future_values(value))
            return WEFT_ERR_TYPE; /* an object of the owner's own */
        *out = weft_future_ref(value);
        return WEFT_OK;
    }
    if (!wfi_agent_enter(rref->agent))
        return WEFT_ERR_CLOSED;
    weft_status st = ask(rref, timeout_ms, out);
    wfi_agent_leave(rref->agent);
    return st;
}

weft_status weft_rref_to_here(weft_rref *rref, int64_t timeout_ms, weft_values **out)
{
    weft_future *future;
    weft_status st = weft_rref_to_here_async(rref, timeout_ms, &future);
    if (st)
        return st;
    st = weft_future_wait(future, WEFT_FOREVER); /* the call has the time limit */
    if (!st)
        *out = weft_values_ref((weft_values *)weft_future_values(future));
    weft_future_unref(future);
    return st;
}
