/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refs.h - remote references: handles to values, the owner's table of them, and how a reference spreads.
 *
 * handle.c    making, asking and letting go of a handle       protocol.c  a reference that arrived is made known to its owner
 * owned.c     the owner's table: values, and who holds them   pass.c      references that calls take along
 * object.c    objects of the user's own types as values       leaks.c     what was left at the end
 * dump.c      all of it, as JSON
 *
 * One rule for every road that a reference takes (argument, result, own creation): a worker that holds a handle to another
 * worker's value has a fork, numbered by itself, in the owner's table. It announces a new one with FORK and lets nobody see
 * the handle before the owner said FORKED; meanwhile the one that passed it on still holds its own (a call keeps its
 * arguments until the reply, results are kept until DONE). So a value cannot vanish under way. The last handle of a worker
 * to go sends DROP. rpc_remote registers its fork with the call itself. Where the one that passed it on could not keep its
 * word (it died, it gave the call up), the owner may have let the value go: it then refuses the fork, and nobody sees the
 * handle. A handle that was confirmed is always counted. docs/decisions/003 has the whole argument, docs/models/rref.pml a
 * model of it.
 *
 * LOCK. Handles and the table are guarded by the agent's lock ([agent lock]). A handle is counted without it (value/reference.h), and
 * its last holder must not have it: a destructor of the user's may run.
 *
 * LIFETIME. A handle holds its agent. A value stays while a handle here, a fork elsewhere, or a call that makes it is left. Its
 * future outlives the table for those who borrowed it.
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

/* A value of ours that others may refer to. It stays while `handles` (ours), `forks` (theirs) or `makers` (calls that will
 * complete it) are left. [agent lock] */
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
 * A handle. On the owner it points at the value; elsewhere it has a fork. `agent` never changes, nor does `name` once the
 * handle is the user's; the rest is under the agent's lock.
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
    bool launched;      /* the name is out in the world: its call has left */
    bool passed;        /* or it may be, passed on before that */
    bool making;        /* its creation, by us, has not ended */
    bool confirmed;     /* the owner knows of it */
    bool unknown;       /* the owner has no fork of it: nothing to drop */
    bool lost;          /* of no use any more: `error` says why */
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
/* Its call is about to be written for that incarnation of its rank: names are numbered in the order in which their calls leave, but
 * for those that were passed on before. WEFT_ERR_PEER_DEAD: an earlier attempt was for another one. [agent lock] */
weft_status wfi_rref_launch(weft_rref *rref, wfi_peer *owner);
/* Net has the call: the name stays, whatever is tried again. [agent lock] */
void wfi_rref_launched(weft_rref *rref);
void wfi_rref_unref_locked(weft_rref *rref); /* [agent lock] */
/* The making ended: NULL or why it failed. After a failure of our own (a time limit, a cancellation) the owner is told to
 * let go of what it may have or get. [agent lock] */
void wfi_rref_created(weft_rref *rref, const weft_error *error);
/* WEFT_OK, or why it cannot be passed on any more: its owner is gone, or we gave its making up. Any thread, not locked. */
weft_status wfi_rref_passable(const weft_rref *rref);
/* The same, and its name for the others: from now on it keeps that, though its call may not have left. Any thread, not locked. */
weft_status wfi_rref_pass(weft_rref *rref, wfi_rref_name *name);

/* For calls to ourselves. Of the references in `values`, through lists: those that our own calls are making elsewhere; `then`
 * runs once for each when that has ended, well or not; returns how many. *memory_out: not for all. [agent lock] */
size_t wfi_rrefs_await(weft_args values, weft_done_fn then, void *arg, bool *memory_out);
/* Why one of them is of no use, with a reference; NULL: none is lost. [agent lock] */
weft_error *wfi_rrefs_lost(weft_args values);

/* Owner's side. All [agent lock]. */
wfi_owned *wfi_owned_make(weft_agent *agent, const wfi_rref_name *name); /* finds or makes; NULL: no memory */
wfi_owned *wfi_owned_find(weft_agent *agent, const wfi_rref_name *name);
/* What a peer's call will complete, with the fork that came with it; begun. WEFT_ERR_PROTOCOL (not a name that it may give, or a
 * call seen before), WEFT_ERR_MEMORY. */
weft_status wfi_owned_create_for(weft_agent *agent, wfi_peer *creator, uint64_t call_id, const wfi_rref_name *name,
                                 uint64_t fork, wfi_owned **out);
/* What a call has made: one of these. */
typedef struct wfi_made {
    const weft_error *error;
    struct wfi_object **object; /* *object moves into the value */
    weft_values *results;
} wfi_made;
/* A call that will complete the value keeps it from begin to finish, whoever lets go meanwhile. A call that was refused before it ran
 * (WEFT_ERR_BUSY) leaves the value to its creator's next attempt, until give_up says that there will be none. */
void wfi_owned_begin(wfi_owned *owned);
void wfi_owned_finish(wfi_owned *owned, const wfi_made *made);
void wfi_owned_give_up(wfi_owned *owned, const weft_error *why);
extern const wfi_component wfi_refs_component;

void wfi_owned_fail_all(weft_agent *agent, weft_status why, const char *text); /* those not made yet */
void wfi_on_rref_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader);
void wfi_rrefs_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text);
/* Handles wait to be confirmed, by owners that can be reached. [agent lock] */
bool wfi_rrefs_await_owners(weft_agent *agent);
/* Who waits for the owner's word waits no more; the handle itself does. */
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

/* Of a value that has been made, and is no object: what a reference to it names. Borrowed from it. */
weft_value wfi_value_made(const weft_future *value);
/* Why no copy of it can be had anywhere. */
weft_error *wfi_object_stays(const wfi_object *object, int owner);

extern const weft_function wfi_fetch_function; /* "weft:fetch": the value itself */
extern const weft_function wfi_made_function;  /* "weft:made": only when it is there */

#endif
