/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refs.h - remote references: handles to values, the owner's table of values, and passing references between workers.
 *
 * handle.c    creating, querying and releasing handles
 * protocol.c  announces a received reference to its owner
 * owned.c     the owner's table: values, and the workers that hold them
 * pass.c      references in the arguments of calls
 * object.c    objects of users' types as values
 * leaks.c     references that are left at the end
 * dump.c      all of these as JSON
 *
 * The owner counts each confirmed handle, so the value is not freed. The protocol ensures this for references passed as
 * arguments or results, and for those made by weft_rpc_remote:
 *   - A worker that holds a handle to another worker's value has a fork in the owner's table. The holder numbers it.
 *   - It announces a new fork with FORK. The program gets the handle only after the owner has answered FORKED.
 *   - Meanwhile the worker that passed the reference on still holds its own handle: a call keeps its arguments until
 *     the reply, and results are kept until DONE. So the value cannot be freed in between.
 *   - When the last copy of a handle is dropped, its worker sends DROP.
 * weft_rpc_remote needs no FORK: the call itself announces the fork. If the worker that passed the reference on died,
 * or gave the call up, the owner may have freed the value. Then it refuses the fork (FORKED with NOT_FOUND), and the
 * program does not get the handle. docs/decisions/003 has the proof, docs/models/rref.pml a model.
 *
 * LOCK. The agent's lock guards handles and the table ([agent lock]). Counting a handle needs no lock
 * (value/reference.h). The last count must be dropped without the lock: a destructor of the user's may run.
 *
 * LIFETIME. A handle holds its agent. A value exists while there is a handle here, a fork elsewhere, or a call that is
 * to make it. Its future may outlive its entry in the table, because users borrow the value from it.
 */
#ifndef WFI_RREF_H
#define WFI_RREF_H

#include "base/text/json_writer.h"
#include "rpc/agent/agent.h"
#include "value/reference.h"

typedef struct wfi_owned wfi_owned;

/* Waits for the confirmation of received references. */
typedef struct wfi_ref_waiter wfi_ref_waiter;
struct wfi_ref_waiter {
    /* The owner has counted the reference, or that has failed (`status`). [agent lock] */
    void (*confirmed)(wfi_ref_waiter *waiter, weft_status status);
};

/* A value on its owner. It exists while it has `handles` (of this worker), `forks` (of others) or `producers` (calls
 * that will complete it). [agent lock] */
struct wfi_owned {
    weft_agent *agent;
    wfi_rref_name name;
    weft_future *value;
    weft_error *refused; /* why the last attempt to make it did not run; another attempt may follow */
    bool given_up;       /* its creator will make no further attempt */
    size_t handles, producers;
    wfi_list forks;
    wfi_owned *next; /* others with the same hash */
    wfi_task release;
};

/*
 * A handle. On the owner it points at the value; on other workers it has a fork. `agent` is constant, and `name` is
 * constant after the user has the handle. The agent's lock guards the rest.
 */
struct weft_rref {
    wfi_reference head; /* first member: src/value uses only this part */
    weft_agent *agent;
    wfi_rref_name name;
    wfi_owned *home;    /* on the owner; not valid after the agent has closed */
    weft_future *value; /* on the owner: the value. It may outlive the table, because users borrow from it */
    wfi_list link;      /* on others: in wfi_refs.references */
    wfi_peer *owner;    /* on others: the owner's incarnation, held; NULL: this worker does not know that it joined */
    uint64_t fork;      /* on others */
    bool launched;      /* its call was sent, so the owner and others may know the name */
    bool passed;        /* it was passed on before its call was sent, so others may know the name */
    bool making;        /* the call of this worker that is to make the value has not ended */
    bool confirmed;     /* the owner has counted it */
    bool needs_drop;    /* on others: the owner has a fork of it, or may get one */
    bool lost;          /* it will never name a value: `error` says why */
    weft_error *error;  /* the value could not be made, or the owner is gone */
    weft_future *made;  /* completes when `making` ends; NULL: not needed yet */
    wfi_timer timer;    /* limits the wait until the owner has joined */
    wfi_ref_waiter *waiter;
    unsigned notifications; /* promised for it: FORK and DROP */
};

/* Whether all references among `values` belong to this agent: its peers cannot use others. Any thread. */
bool wfi_rrefs_are_of(const weft_agent *agent, weft_args values);

/* Makes a handle for a received name, and calls `waiter`, perhaps at once. If it fails, `waiter` is not called:
 * WEFT_ERR_NOT_FOUND (this worker is the owner and has no such value), WEFT_ERR_MEMORY, or the owner's status.
 * [agent lock] */
weft_status wfi_rref_import(weft_agent *agent, const wfi_rref_name *name, wfi_ref_waiter *waiter, weft_rref **out);

/* Makes a handle for a value that weft_rpc_remote is to make on `owner` (incarnation 0: any), of which this worker may
 * not have heard yet. If another worker is the owner, the handle has no name until its call is launched. Any thread. */
weft_status wfi_rref_create_pending(weft_agent *agent, weft_worker owner, weft_rref **out);
/* Called just before its call to the incarnation `owner` is written. Names the handle, unless it was passed on before.
 * So names are numbered in the order in which their calls are sent. WEFT_ERR_PEER_DEAD if an earlier attempt was sent
 * to another incarnation. [agent lock] */
weft_status wfi_rref_launch(weft_rref *rref, wfi_peer *owner);
/* Net has accepted the call: further attempts keep the name. [agent lock] */
void wfi_rref_launched(weft_rref *rref);
/* Launches the handle now, and announces it to the owner by a FORK: its call will be sent later, and calls that name
 * the handle may overtake it. [agent lock] */
weft_status wfi_rref_announce(weft_rref *rref, wfi_peer *owner);
void wfi_rref_unref_locked(weft_rref *rref); /* [agent lock] */
/* The call that was to make the value has ended. `error`: why it failed, or NULL. If it failed on this worker's side
 * (timeout, cancellation), the owner is told to free the value that it has or may still get. [agent lock] */
void wfi_rref_created(weft_rref *rref, const weft_error *error);
/* WEFT_OK, or why the handle cannot be passed on: its owner is gone, or this worker's call to make the value failed.
 * Any thread, not locked. */
weft_status wfi_rref_passable(const weft_rref *rref);
/* The same, and gives the handle's name, which is constant from now on, even if its call was not sent. Any thread, not
 * locked. */
weft_status wfi_rref_pass(weft_rref *rref, wfi_rref_name *name);

/* For calls of this worker to itself: finds the references in `values`, and in its lists, whose values are still being
 * made on other workers by calls of this worker. `then` runs once for each of them when its call has ended. Returns
 * their number. Sets *memory_out if it cannot wait for all. [agent lock] */
size_t wfi_rrefs_await(weft_args values, weft_done_fn then, void *arg, bool *memory_out);
bool wfi_rrefs_are_among(weft_args values); /* also searches the lists in `values`. Any thread */
/* If this worker knows that the value of one of the references was not made: the error with which a call of `function`
 * with these arguments must fail, with a reference. Otherwise NULL. [agent lock] */
weft_error *wfi_rrefs_failed(weft_args values, const char *function);

/* ---- The owner's side. All [agent lock] ---- */

wfi_owned *wfi_owned_make(weft_agent *agent, const wfi_rref_name *name); /* finds or makes; NULL: no memory */
wfi_owned *wfi_owned_find(weft_agent *agent, const wfi_rref_name *name);
/* Makes the entry for a value that a peer's call (weft_rpc_remote) is to make, adds the fork that came with the call,
 * and calls wfi_owned_begin. WEFT_ERR_PROTOCOL (a name that this peer must not use, or a call seen before),
 * WEFT_ERR_MEMORY. */
weft_status wfi_owned_create_for(weft_agent *agent, wfi_peer *creator, uint64_t call_id, const wfi_rref_name *name,
                                 uint64_t fork, wfi_owned **out);
/* The outcome of a call that makes a value: one of these. */
typedef struct wfi_made {
    const weft_error *error;
    struct wfi_object **object; /* *object moves into the value */
    weft_values *results;
} wfi_made;
/* From begin to finish the call that makes a value holds it, even if all handles are dropped meanwhile. If that call
 * was refused before it ran (WEFT_ERR_BUSY), the value waits for its creator's next attempt. give_up: no attempt will
 * follow. */
void wfi_owned_begin(wfi_owned *owned);
void wfi_owned_finish(wfi_owned *owned, const wfi_made *made);
void wfi_owned_give_up(wfi_owned *owned, const weft_error *why);
extern const wfi_component wfi_refs_component;

void wfi_owned_fail_all(weft_agent *agent, weft_status why, const char *text); /* fails the values not made yet */
void wfi_on_rref_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader);
void wfi_rrefs_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text);
/* Whether handles wait for the confirmation of owners that can be reached. [agent lock] */
bool wfi_rrefs_await_owners(weft_agent *agent);
/* Fails the waiters for this owner's FORKED; the handles themselves continue to wait for it. */
void wfi_rrefs_peer_unreachable(weft_agent *agent, wfi_peer *peer, const char *text);
void wfi_rrefs_peer_joined(weft_agent *agent, wfi_peer *peer);
void wfi_rrefs_end(weft_agent *agent, weft_status why, const char *text); /* fails all unconfirmed handles */
bool wfi_rref_same_name(const wfi_rref_name *a, const wfi_rref_name *b);
void wfi_rrefs_fini(weft_agent *agent); /* not locked; the agent's threads have ended */

weft_status wfi_refs_dump(weft_agent *agent, wfi_json *j); /* refs/dump.c. [agent lock] */

/* At the end of a graceful close: logs the references that are left, and returns their number. Not locked
 * (refs/leaks.c). */
size_t wfi_rrefs_report_leaks(weft_agent *agent);

/* ---- Objects of users' types (refs/object.c) ---------------------------------------------------------------- */

typedef struct wfi_object {
    const weft_object_type *type; /* NULL: untyped */
    void *object;
    weft_drop_fn drop;
} wfi_object;

/* Wraps `object`. If memory is out, runs `drop` and returns NULL. Any thread, not locked. */
wfi_object *wfi_object_create(const weft_object_type *type, void *object, weft_drop_fn drop);
/* Runs the destructor and frees the wrapper; NULL is a no-op. A future with this function as its drop function holds an
 * object. Not locked. */
void wfi_object_drop(void *object);
/* The object in a value's future; NULL if it holds none. */
const wfi_object *wfi_object_of(const weft_future *value);

/* Why a value of this worker could not be made; borrowed from the handle. NULL if it was made, is not made yet, or
 * belongs to another worker. */
const weft_error *wfi_rref_failure(const weft_rref *rref);
/* The value in a future of a value that was made, and is no object. Borrowed from the future. */
weft_value wfi_made_value(const weft_future *value);
/* The error for reading an object on another worker: an object cannot be copied. */
weft_error *wfi_object_stays(const wfi_object *object, int owner);

extern const weft_function wfi_fetch_function; /* "weft:fetch": answers with the value */
extern const weft_function wfi_made_function;  /* "weft:made": answers, without the value, when it was made */

#endif
