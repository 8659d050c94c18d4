/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rref.h - remote references inside weft: handles, the owner's table, and how a reference spreads.
 *
 * One rule for every road that a reference takes (argument, result, own creation): a worker that holds a handle to another
 * worker's value has a fork, numbered by itself, in the owner's table. It announces a new one with FORK and lets nobody see
 * the handle before the owner said FORKED; meanwhile the one that passed it on still holds its own (a call keeps its
 * arguments until the reply, results are kept until DONE). So a value cannot vanish under way. The last handle of a worker
 * to go sends DROP. rpc_remote registers its fork with the call itself.
 */
#ifndef WFI_RREF_H
#define WFI_RREF_H

#include "rpc/agent.h"

struct wfi_intake;
typedef struct wfi_owned wfi_owned;

const wfi_rref_name *wfi_rref_name_of(const weft_rref *rref);

/* A handle for a name that arrived; `waiter` hears wfi_intake_confirmed, perhaps at once. WEFT_ERR_NOT_FOUND (we are the
 * owner and have no such value), WEFT_ERR_MEMORY, or the owner's status; then the waiter is not told. [agent lock] */
weft_status wfi_rref_import(weft_agent *agent, const wfi_rref_name *name, struct wfi_intake *waiter, weft_rref **out);

/* The waiter is going: it is not to be told any more. NULL is a no-op. [agent lock] */
void wfi_rref_forget_waiter(weft_rref *rref);

/* A handle for a value being made elsewhere by rpc_remote, unconfirmed. Any thread. */
weft_status wfi_rref_create_pending(weft_agent *agent, int owner, weft_rref **out);
void wfi_rref_unref_locked(weft_rref *rref); /* [agent lock] */
uint64_t wfi_rref_fork_of(const weft_rref *rref);
/* The making ended: NULL or why it failed. The owner may have a fork of ours now. [agent lock] */
void wfi_rref_created(weft_rref *rref, const weft_error *error);

/* Owner's side. All [agent lock]. */
wfi_owned *wfi_owned_make(weft_agent *agent, const wfi_rref_name *name); /* finds or makes; NULL: no memory */
wfi_owned *wfi_rref_home(weft_rref *rref);                               /* of a handle on its owner; borrowed */
weft_status wfi_owned_add_fork(wfi_owned *owned, int rank, uint64_t fork);
void wfi_owned_drop_fork(weft_agent *agent, const wfi_rref_name *name, int rank, uint64_t fork);
void wfi_owned_drop_all_of(weft_agent *agent, int rank); /* a worker is gone */
/* A call that will complete the value keeps it from begin to finish, whoever lets go meanwhile. */
void wfi_owned_begin(wfi_owned *owned);
void wfi_owned_finish(weft_agent *agent, wfi_owned *owned, const weft_values *results, const weft_error *error);
/* Whether a value that we do not know may still be made here: its creator's call is under way, perhaps. */
bool wfi_owned_may_come(weft_agent *agent, const wfi_rref_name *name);
void wfi_owned_fail_all(weft_agent *agent, weft_status why, const char *text); /* those not made yet */
void wfi_on_rref_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader);
void wfi_rrefs_peer_gone(weft_agent *agent, int rank, weft_status why);
bool wfi_rref_same_name(const wfi_rref_name *a, const wfi_rref_name *b);
void wfi_rrefs_fini(weft_agent *agent); /* not locked; the agent has no threads any more */

/* The value's home as a future payload: one value, or a user's object. */
void wfi_owned_complete(weft_future *value, const weft_values *results, const weft_error *error);

extern const weft_function wfi_fetch_function; /* "weft:fetch" */

#endif
