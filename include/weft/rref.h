/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/rref.h - remote references: counted handles to a value that lives on one worker, its owner.
 *
 * The owner keeps the value as long as any worker holds a handle. Handles may be arguments and results of calls. A
 * worker gets a handle in one of three ways:
 *   weft_rpc_remote runs a function on another worker and leaves its first result there.
 *   weft_rref_create and similar functions make one for a value of this worker.
 *   It receives one as an argument or a result of a call.
 *
 *     weft_status remote_sum(weft_agent *agent, weft_tensor *x, double *sum)
 *     {
 *         weft_rref *model;
 *         weft_values *results = NULL;
 *         weft_status status = weft_rpc_remote(agent, weft_to_rank(1), "make_model", WEFT_NO_VALUES, NULL, &model);
 *         if (status)
 *             return status;
 *         status = weft_rref_rpc_sync(model, "sum", WEFT_VALUES(weft_of_tensor(x)), NULL, &results); // runs on rank 1
 *         if (!status)
 *             status = weft_values_get_f64(results, 0, sum);
 *         weft_values_unref(results);
 *         weft_rref_unref(model); // the model is destroyed, if nobody else holds a handle
 *         return status;
 *     }
 *
 * THREADS. Every function may be called from any thread.
 *
 * CYCLES are not collected. An object that holds a handle to itself, directly or through other objects on any workers,
 * is never destroyed. The report at closing lists such handles (leaks_fail in weft/agent.h). The object and some
 * kilobytes of the agent stay in memory until the program releases the handles. It may release them even after the
 * agent was closed.
 */
#ifndef WEFT_RREF_H
#define WEFT_RREF_H

#include <weft/agent.h>
#include <weft/future.h>
#include <weft/rpc.h>
#include <weft/value.h>

WEFT_BEGIN_C

/* Makes a handle to a value. This worker becomes the owner. The value is copied or referenced as by weft_values_create,
 * with the same errors. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create(weft_agent *agent, weft_value value, weft_rref **out,
                                                     weft_error **error);

/*
 * Makes a handle to an object of your own type. Only this worker can read the object (weft_rref_local_object).
 * `drop(object)` runs when the last handle in the job is released, or immediately if weft_rref_create_object fails.
 *
 * `drop` runs on the thread that releases the last handle, with no lock of weft held. That may be the thread that reads
 * the network, so `drop` must not block: a wait may fail with WEFT_ERR_DEADLOCK. It may start calls with the async
 * functions. If other workers still hold handles when this agent ends, `drop` runs inside weft_agent_close or
 * weft_agent_stop, and its calls fail with WEFT_ERR_CLOSED.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create_object(weft_agent *agent, void *object, weft_drop_fn drop,
                                                            weft_rref **out, weft_error **error);

/* Makes a handle as weft_rref_create_object does, with the object's type, which weft_rref_local_typed checks. A NULL
 * object is WEFT_ERR_INVALID. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_create_typed_sized(weft_agent *agent, const weft_object_type *type,
                                                                 size_t size, void *object, weft_rref **out,
                                                                 weft_error **error);
static inline WEFT_NODISCARD weft_status weft_rref_create_typed(weft_agent *agent, const weft_object_type *type,
                                                                void *object, weft_rref **out, weft_error **error)
{
    return weft_rref_create_typed_sized(agent, type, sizeof(*type), object, out, error);
}

WEFT_API weft_rref *weft_rref_ref(weft_rref *rref);
WEFT_API void weft_rref_unref(weft_rref *rref);

WEFT_API int weft_rref_owner(const weft_rref *rref);     /* the rank of the owner */
WEFT_API bool weft_rref_is_owner(const weft_rref *rref); /* whether this worker is the owner */
/* Whether the owner has confirmed that it counts this handle, so that the value lives at least as long as the
 * handle. When another worker passes a handle to this one, the owner counts it a moment later; until then the other
 * worker keeps a handle. */
WEFT_API bool weft_rref_confirmed(const weft_rref *rref);

/*
 * Waits at most wait_ms until the value exists, on the owner only. *out is borrowed from the handle. The value is the
 * first result of the function that made it, or a null value if the function gave none. Errors:
 *   WEFT_ERR_STATE: this worker is not the owner.
 *   WEFT_ERR_TYPE: the handle is to an object.
 *   WEFT_ERR_TIMEOUT: the value did not exist within wait_ms.
 *   WEFT_ERR_DEADLOCK: this thread cannot wait (see weft_future_wait).
 *   The error of the function that should have made the value.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_value(weft_rref *rref, int64_t wait_ms, weft_value *out);
/* Returns the object without waiting, on the owner only. WEFT_ERR_TYPE if it does not exist yet or the handle is to a
 * value; WEFT_ERR_STATE on another worker. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_object(weft_rref *rref, void **out);

/* Waits at most wait_ms until the object exists, on the owner only. *out is borrowed from the handle. WEFT_ERR_TYPE if
 * the object has another type, or if the handle is to a value; the log names both types. Other errors as
 * weft_rref_local_value. */
WEFT_API WEFT_NODISCARD weft_status weft_rref_local_typed_sized(weft_rref *rref, const weft_object_type *type,
                                                                size_t size, int64_t wait_ms, void **out);
static inline WEFT_NODISCARD weft_status weft_rref_local_typed(weft_rref *rref, const weft_object_type *type,
                                                               int64_t wait_ms, void **out)
{
    return weft_rref_local_typed_sized(rref, type, sizeof(*type), wait_ms, out);
}

/* Makes a future that completes when the value exists on its owner, which may be another worker; the value is not
 * copied. It fails with the error of the function that should have made the value, or with WEFT_ERR_INVALID if `rref`
 * is NULL. You get a reference. NULL if memory is out. */
WEFT_API weft_future *weft_rref_created(weft_rref *rref);

/*
 * Call a registered function on the owner. The handle is argument 0, which the handler reads with
 * weft_rref_local_value or weft_rref_local_typed; `arguments` follow. Otherwise as weft_rpc_async, weft_rpc_sync and
 * weft_rpc_remote.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_rpc_async_sized(weft_rref *rref, const char *function,
                                                              weft_args_in arguments, const weft_rpc_options *options,
                                                              size_t size, weft_future **out);
static inline WEFT_NODISCARD weft_status weft_rref_rpc_async(weft_rref *rref, const char *function,
                                                             weft_args_in arguments, const weft_rpc_options *options,
                                                             weft_future **out)
{
    return weft_rref_rpc_async_sized(rref, function, arguments, options, sizeof(*options), out);
}
WEFT_API WEFT_NODISCARD weft_status weft_rref_rpc_sync_sized(weft_rref *rref, const char *function,
                                                             weft_args_in arguments, const weft_rpc_options *options,
                                                             size_t size, weft_values **out);
static inline WEFT_NODISCARD weft_status weft_rref_rpc_sync(weft_rref *rref, const char *function,
                                                            weft_args_in arguments, const weft_rpc_options *options,
                                                            weft_values **out)
{
    return weft_rref_rpc_sync_sized(rref, function, arguments, options, sizeof(*options), out);
}
WEFT_API WEFT_NODISCARD weft_status weft_rref_rpc_remote_sized(weft_rref *rref, const char *function,
                                                               weft_args_in arguments, const weft_rpc_options *options,
                                                               size_t size, weft_rref **out);
static inline WEFT_NODISCARD weft_status weft_rref_rpc_remote(weft_rref *rref, const char *function,
                                                              weft_args_in arguments, const weft_rpc_options *options,
                                                              weft_rref **out)
{
    return weft_rref_rpc_remote_sized(rref, function, arguments, options, sizeof(*options), out);
}

/*
 * Fetch a copy of the value. On the owner, these functions return the value itself. The result is a list with one
 * value: the value that weft_rref_local_value returns on the owner. Errors:
 *   WEFT_ERR_TYPE: the handle refers to an object, which never leaves its owner.
 *   WEFT_ERR_DEADLOCK (weft_rref_to_here only): the value is not here, and this thread cannot wait (weft_future_wait).
 *   Nothing was sent to the owner.
 *   The error of the function that should have made the value, and the errors of calls.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rref_to_here_async(weft_rref *rref, int64_t timeout_ms, weft_future **out);
WEFT_API WEFT_NODISCARD weft_status weft_rref_to_here(weft_rref *rref, int64_t timeout_ms, weft_values **out,
                                                      weft_error **error);

WEFT_END_C
#endif
