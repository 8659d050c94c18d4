/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/rref.h - remote references: a counted handle to a value that lives on one worker, its owner.
 *
 * Handles may be passed as arguments and results; the owner keeps the value while any worker holds one. Cycles are not collected:
 * an object that holds a handle to itself, or to one that holds a handle to it, on one worker or several, is never destroyed. Such
 * handles are in the leak report at the end (leaks_fail in weft/agent.h); the object, and some kilobytes of the agent, stay
 * in memory until they are released, which may be after the agent was closed.
 * Every function may be called from any thread.
 */
#ifndef WEFT_RREF_H
#define WEFT_RREF_H

#include <weft/agent.h>
#include <weft/future.h>
#include <weft/rpc.h>
#include <weft/value.h>

WEFT_BEGIN_C

/* A reference to a value of this worker's own (references taken). */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create(weft_agent *agent, weft_value value, weft_rref **out);

/*
 * A reference to an object of your own type, known only on this worker: `drop(object)` runs when the last reference in
 * the job goes, or at once if this fails. Read it with weft_rref_local_object.
 *
 * `drop` runs on whichever thread that reference went, with no lock held: perhaps the one that reads the network, so it must
 * not block, and waits in it may be refused (WEFT_ERR_DEADLOCK); the async forms are fine. What others still hold when this
 * agent ends is dropped inside weft_agent_close or _stop, where calls that it makes are WEFT_ERR_CLOSED.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create_object(weft_agent *agent, void *object, weft_drop_fn drop,
                                                            weft_rref **out);

/* A type of your own objects; a constant of yours that outlives them. */
struct weft_object_type {
    const char *name;  /* for messages */
    weft_drop_fn drop; /* runs on the owner when the last reference goes */
};
/* As above, for weft_rref_local_typed to check. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create_typed(weft_agent *agent, const weft_object_type *type,
                                                           void *object, weft_rref **out);

WEFT_API weft_rref *weft_rref_ref(weft_rref *rref);
WEFT_API void weft_rref_unref(weft_rref *rref);

WEFT_API int weft_rref_owner(const weft_rref *rref);
WEFT_API bool weft_rref_is_owner(const weft_rref *rref);
/* Whether the owner knows of this handle. */
WEFT_API bool weft_rref_confirmed(const weft_rref *rref);

/*
 * The value (null or the first where the creating function gave none or several), on its owner: waits until it has been made. Borrowed while you hold the rref.
 * WEFT_ERR_STATE on another worker; the creating function's error if it failed; WEFT_ERR_TIMEOUT.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_value(weft_rref *rref, int64_t timeout_ms, weft_value *out);
/* The object, on its owner; WEFT_ERR_TYPE if the rref holds a value. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_object(weft_rref *rref, void **out);

/* The object of exactly this type, on its owner: waits until it has been made. WEFT_ERR_TYPE names both types in the log. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_typed(weft_rref *rref, const weft_object_type *type,
                                                          int64_t timeout_ms, void **out);

/* A future, with a reference for you, that completes when the value has been made, or fails as its making did; without a
 * copy of the value. NULL if memory is out. */
WEFT_API weft_future *weft_rref_created(weft_rref *rref);

/*
 * Calls a registered function on what the reference names: it runs on the owner, with the reference as argument 0 (there
 * weft_rref_local_value and _typed read it) and `arguments` after it. Else as the functions of weft/rpc.h, of which sync starts
 * nothing where the calling thread cannot wait: WEFT_ERR_DEADLOCK.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_rpc_async(weft_rref *rref, const char *function, weft_args arguments,
                                                        const weft_rpc_options *options, weft_future **out);
WEFT_API WEFT_NODISCARD weft_status weft_rref_rpc_sync(weft_rref *rref, const char *function, weft_args arguments,
                                                       const weft_rpc_options *options, weft_values **out);
WEFT_API WEFT_NODISCARD weft_status weft_rref_rpc_remote(weft_rref *rref, const char *function, weft_args arguments,
                                                         const weft_rpc_options *options, weft_rref **out);

/*
 * Fetches a copy of the value (on the owner: the value). The future holds it as its one result: null where the creating function gave
 * nothing, the first where it gave several. It fails, here as there, with WEFT_ERR_TYPE for an object, which stays on its owner, and as
 * the making failed. The one that waits is WEFT_ERR_DEADLOCK, and asks nobody, where the value is not here and the calling thread
 * cannot wait (weft_future_wait).
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_to_here_async(weft_rref *rref, int64_t timeout_ms, weft_future **out);
WEFT_API WEFT_NODISCARD weft_status weft_rref_to_here(weft_rref *rref, int64_t timeout_ms, weft_values **out);

WEFT_END_C
#endif
