/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refs.h - remote references: handles to values, the owner's table of them, and how a reference spreads.
 *
 * handle.c    making, asking and letting go of a handle
 * protocol.c  a reference that arrived is made known to its owner
 * owned.c     the owner's table: values, and who holds them
 * pass.c      references that calls take along
 * object.c    objects of the user's own types as values
 * leaks.c     what was left at the end
 * dump.c      all of it, as JSON
 *
 * A handle that is confirmed is counted by the owner, so its value stays. One rule ensures that, however a reference
 * travels (as argument, as result, or made by weft_rpc_remote):
 *   - A worker that holds a handle to another worker's value has a fork in the owner's table, numbered by that worker.
 *   - It announces a new fork with FORK, and shows nobody the handle before the owner has answered FORKED.
 *   - Meanwhile the worker that passed the reference on still holds its own handle: a call keeps its arguments until
 *     the reply, and results are kept until DONE. So the value cannot be freed in between.
 *   - When the last handle of a worker is dropped it sends DROP.
 * weft_rpc_remote needs no FORK: the call itself announces the fork. If the worker that passed the reference on died,
 * or gave the call up, the owner may have freed the value: then it refuses the fork (FORKED with NOT_FOUND), and nobody
 * sees the handle. docs/decisions/003 has the whole argument, docs/models/rref.pml a model of it.
 *
 * LOCK. The agent's lock guards handles and the table ([agent lock]). Counting a handle needs no lock
 * (value/reference.h), and whoever drops the last count must not have it: a destructor of the user's may run.
 *
 * LIFETIME. A handle holds its agent. A value stays while there is a handle here, a fork elsewhere, or a call that is
 * to make it. Its future may outlive its entry in the table, for those who borrowed it.
 */
#ifndef WFI_RREF_H
#define WFI_RREF_H

#include "base/text/json_writer.h"
#include "rpc/agent/agent.h"
#include "value/reference.h"

typedef struct wfi_owned wfi_owned;

/* Who waits for a reference that arrived. */
typedef struct wfi_ref_waiter wfi_ref_waiter;
struct wfi_ref_waiter {
    /* The reference's owner has counted it, or never will. [agent lock] */
    void (*confirmed)(wfi_ref_waiter *waiter, weft_status status);
};

/* A value of ours that others may refer to. It stays while `handles` (ours), `forks` (theirs) or `makers` (calls that
 * will complete it) are left. [agent lock] */
struct wfi_owned {
    weft_agent *agent;
    wfi_rref_name name;
    weft_future *value;
    weft_error *refused; /* why the last attempt to make it did not run: it may be tried again */
    bool given_up;       /* its creator will not try again */
    size_t handles, makers;
    wfi_list forks;
    wfi_owned *next; /* others with the same hash */
    wfi_task release;
};

/*
 * A handle. On the owner it points at the value; elsewhere it has a fork. `agent` never changes, nor does `name` once
 * the handle is the user's; the rest is under the agent's lock.
 */
struct weft_rref {
    wfi_reference head; /* the first: values know no more of it */
    weft_agent *agent;
    wfi_rref_name name;
    wfi_owned *home;    /* on the owner; gone when the agent is */
    weft_future *value; /* on the owner: the value, which so outlives the table for those who borrowed it */
    wfi_list link;      /* elsewhere: in wfi_refs.references */
    wfi_peer *owner;    /* elsewhere: its incarnation, held; NULL: it has not joined as far as we know */
    uint64_t fork;      /* elsewhere */
    bool launched;      /* its call has left, so that the owner and others may know the name */
    bool passed;        /* it was passed on before that, so that others may know the name */
    bool making;        /* the call of ours that is to make the value has not ended */
    bool confirmed;     /* the owner knows of it */
    bool unknown;       /* the owner has no fork of it: nothing to drop */
    bool lost;          /* it names no value, and never will: `error` says why */
    weft_error *error;  /* the value could not be made, or the owner is gone */
    weft_future *made;  /* somebody asked for it while it was being made */
    wfi_timer timer;    /* while the owner is awaited */
    wfi_ref_waiter *waiter;
    unsigned notifications; /* promised for it: FORK and DROP */
};

/* Whether all references among `values` are this agent's: others mean nothing to whom it talks to. Any thread. */
bool wfi_rrefs_are_of(const weft_agent *agent, weft_args values);

/* A handle for a name that arrived; `waiter` hears of it, perhaps at once. WEFT_ERR_NOT_FOUND (we are the
 * owner and have no such value), WEFT_ERR_MEMORY, or the owner's status; then the waiter is not told. [agent lock] */
weft_status wfi_rref_import(weft_agent *agent, const wfi_rref_name *name, wfi_ref_waiter *waiter, weft_rref **out);

/* A handle for a value being made by rpc_remote; elsewhere it has no name before its call is launched. Any thread. */
weft_status wfi_rref_create_pending(weft_agent *agent, int owner, weft_rref **out);
/* Its call is about to be written, to that incarnation of its rank: gives the handle its name, unless it was passed on
 * before. So names are numbered in the order in which their calls leave. WEFT_ERR_PEER_DEAD: an earlier attempt went to
 * another incarnation. [agent lock] */
weft_status wfi_rref_launch(weft_rref *rref, wfi_peer *owner);
/* Net has the call: further attempts keep the name. [agent lock] */
void wfi_rref_launched(weft_rref *rref);
void wfi_rref_unref_locked(weft_rref *rref); /* [agent lock] */
/* The call that was to make the value has ended: NULL, or why it failed. If it failed on our side (a time limit, a
 * cancellation), the owner is told to free the value that it has or may yet get. [agent lock] */
void wfi_rref_created(weft_rref *rref, const weft_error *error);
/* WEFT_OK, or why the handle cannot be passed on any more: its owner is gone, or our call to make the value failed. Any
 * thread, not locked. */
weft_status wfi_rref_passable(const weft_rref *rref);
/* The same, and gives its name, which it keeps from now on, even if its call has not left. Any thread, not locked. */
weft_status wfi_rref_pass(weft_rref *rref, wfi_rref_name *name);

/* For calls to ourselves: finds the references in `values`, and in lists in it, that calls of ours are still making
 * elsewhere. `then` runs once for each of them when its call has ended. Returns how many there are. *memory_out: there
 * was no memory to wait for all. [agent lock] */
size_t wfi_rrefs_await(weft_args values, weft_done_fn then, void *arg, bool *memory_out);
bool wfi_rrefs_are_among(weft_args values); /* in lists in it as well. Any thread */
/* Why a call of `function` with these arguments must fail: one of the references is to a value that was not made, as this
 * worker knows by now. The call's own error, with a reference; NULL: none is. [agent lock] */
weft_error *wfi_rrefs_failed(weft_args values, const char *function);

/* ---- The owner's side. All [agent lock] ---- */

wfi_owned *wfi_owned_make(weft_agent *agent, const wfi_rref_name *name); /* finds or makes; NULL: no memory */
wfi_owned *wfi_owned_find(weft_agent *agent, const wfi_rref_name *name);
/* The value that a peer's call (weft_rpc_remote) is to make, with the fork that came with the call; wfi_owned_begin has
 * been done. WEFT_ERR_PROTOCOL (a name that this peer may not give, or a call seen before), WEFT_ERR_MEMORY. */
weft_status wfi_owned_create_for(weft_agent *agent, wfi_peer *creator, uint64_t call_id, const wfi_rref_name *name,
                                 uint64_t fork, wfi_owned **out);
/* What a call has made: one of these. */
typedef struct wfi_made {
    const weft_error *error;
    struct wfi_object **object; /* *object moves into the value */
    weft_values *results;
} wfi_made;
/* From begin to finish the call that makes a value keeps it, even if all handles are dropped meanwhile. If that call
 * was refused before it ran (WEFT_ERR_BUSY), the value waits for its creator's next attempt; give_up says that there
 * will be none. */
void wfi_owned_begin(wfi_owned *owned);
void wfi_owned_finish(wfi_owned *owned, const wfi_made *made);
void wfi_owned_give_up(wfi_owned *owned, const weft_error *why);
extern const wfi_component wfi_refs_component;

void wfi_owned_fail_all(weft_agent *agent, weft_status why, const char *text); /* those not made yet */
void wfi_on_rref_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader);
void wfi_rrefs_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text);
/* Handles wait to be confirmed, by owners that can be reached. [agent lock] */
bool wfi_rrefs_await_owners(weft_agent *agent);
/* Whoever waits for the owner's FORKED stops waiting; the handle itself goes on waiting. */
void wfi_rrefs_peer_unreachable(weft_agent *agent, wfi_peer *peer, const char *text);
void wfi_rrefs_peer_joined(weft_agent *agent, wfi_peer *peer);
void wfi_rrefs_end(weft_agent *agent, weft_status why, const char *text); /* nobody will be confirmed any more */
bool wfi_rref_same_name(const wfi_rref_name *a, const wfi_rref_name *b);
void wfi_rrefs_fini(weft_agent *agent); /* not locked; the agent has no threads any more */

weft_status wfi_refs_dump(weft_agent *agent, wfi_json *j); /* refs/dump.c. [agent lock] */

/* The end of a graceful close: logs what was left and returns how much. Not locked (refs/leaks.c). */
size_t wfi_rrefs_report_leaks(weft_agent *agent);

/* ---- Objects of the user's own types (refs/object.c) -------------------------------------------------------- */

typedef struct wfi_object {
    const weft_object_type *type; /* NULL: untyped */
    void *object;
    weft_drop_fn drop;
} wfi_object;

/* Wraps it; without memory `drop` has run. Any thread, not locked. */
wfi_object *wfi_object_create(const weft_object_type *type, void *object, weft_drop_fn drop);
/* Runs the destructor and frees; NULL is a no-op. Not locked. As a future's drop it marks its payload as an object. */
void wfi_object_drop(void *object);
/* What a value's future holds, if that is an object; else NULL. */
const wfi_object *wfi_object_of(const weft_future *value);

/* How the making of a value of this worker's failed; borrowed from the handle. NULL: it did not, or not yet, or is another worker's. */
const weft_error *wfi_rref_failure(const weft_rref *rref);
/* Of a value that has been made, and is no object: what a reference to it names. Borrowed from it. */
weft_value wfi_value_made(const weft_future *value);
/* Why no copy of it can be had anywhere. */
weft_error *wfi_object_stays(const wfi_object *object, int owner);

extern const weft_function wfi_fetch_function; /* "weft:fetch": the value itself */
extern const weft_function wfi_made_function;  /* "weft:made": only when it is there */

#endif
