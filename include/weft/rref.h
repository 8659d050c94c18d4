/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/rref.h - remote references: a counted handle to a value that lives on one worker, its owner.
 *
 * Handles may be passed as arguments and results; the owner keeps the value while any worker holds one.
 * Every function may be called from any thread.
 */
#ifndef WEFT_RREF_H
#define WEFT_RREF_H

#include <weft/agent.h>
#include <weft/future.h>
#include <weft/value.h>

WEFT_BEGIN_C

/* A reference to a value of this worker's own (references taken). */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create(weft_agent *agent, weft_value value, weft_rref **out);

/*
 * A reference to an object of your own type, known only on this worker: `drop(object)` runs when the last reference in
 * the job goes, or at once if this fails. Read it with weft_rref_local_object.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create_object(weft_agent *agent, void *object, weft_drop_fn drop,
                                                            weft_rref **out);

WEFT_API weft_rref *weft_rref_ref(weft_rref *rref);
WEFT_API void weft_rref_unref(weft_rref *rref);

WEFT_API int weft_rref_owner(const weft_rref *rref);
WEFT_API bool weft_rref_is_owner(const weft_rref *rref);
/* Whether the owner knows of this handle. */
WEFT_API bool weft_rref_confirmed(const weft_rref *rref);

/*
 * The value, on its owner: waits until it has been made. Borrowed while you hold the rref.
 * WEFT_ERR_STATE on another worker; the creating function's error if it failed; WEFT_ERR_TIMEOUT.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_value(weft_rref *rref, int64_t timeout_ms, weft_value *out);
/* The object, on its owner; WEFT_ERR_TYPE if the rref holds a value. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_object(weft_rref *rref, void **out);

/* Fetches a copy of the value (on the owner: the value). The future holds it as result 0. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_to_here_async(weft_rref *rref, int64_t timeout_ms, weft_future **out);
WEFT_API WEFT_NODISCARD weft_status weft_rref_to_here(weft_rref *rref, int64_t timeout_ms, weft_values **out);

WEFT_END_C
#endif
