/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/rpc.h - remote calls: registering functions by name, calling them, and serving calls.
 *
 * A worker registers functions; any worker of the job, itself included, calls them by name. Arguments and results
 * are values (weft/value.h). weft checks the arguments against the function's signature before the handler runs. A
 * call runs at most once.
 *
 *     static weft_status scale(weft_call *call, void *user)
 *     {
 *         (void)user;
 *         weft_tensor *y; // float32
 *         weft_status status = weft_tensor_clone(weft_call_tensor(call, 0), &y, NULL);
 *         if (status)
 *             return status;
 *         for (int64_t i = 0; i < weft_tensor_numel(y); i++)
 *             ((float *)weft_tensor_data(y))[i] *= (float)weft_call_f64(call, 1);
 *         weft_call_give(call, WEFT_VALUES(weft_of_tensor(y))); // takes a reference
 *         weft_tensor_unref(y);
 *         return WEFT_OK;
 *     }
 *     static const weft_function scale_function = {
 *         .name = "scale", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64}, .gives = {WEFT_TYPE_TENSOR}, .run = scale};
 *
 *     weft_status print_scaled(weft_agent *agent, weft_tensor *x) // on another worker
 *     {
 *         weft_values *results;
 *         weft_tensor *y;
 *         weft_args arguments = WEFT_VALUES(weft_of_tensor(x), weft_of_f64(2.5)); // in C++: auto arguments
 *         weft_status status = weft_rpc_sync(agent, weft_to_rank(0), "scale", arguments, NULL, &results);
 *         if (!status && !weft_values_get_tensor(results, 0, &y))
 *             weft_tensor_print(y, stdout);
 *         if (!status)
 *             weft_values_unref(results);
 *         return status;
 *     }
 *
 * A worker that makes no calls itself runs weft_agent_serve (weft/agent.h), and then closes its agent.
 *
 * A handler that computes with operators (weft/ops.h) does so on weft_call_tape(call) (weft/tape.h).
 *
 * docs/calls.md: retries, items, deferred calls, calls to oneself, landing tensors. docs/budget.md: memory of calls.
 * docs/failures.md: how calls end when workers die. docs/serving.md: programs that serve.
 */
#ifndef WEFT_RPC_H
#define WEFT_RPC_H

#include <weft/agent.h>
#include <weft/batch.h>
#include <weft/future.h>
#include <weft/value.h>

WEFT_BEGIN_C

/* Registers another function. The struct and the name are copied. WEFT_ERR_EXISTS (the name is taken),
 * WEFT_ERR_INVALID, WEFT_ERR_MEMORY. Any thread. */
WEFT_API WEFT_NODISCARD weft_status weft_agent_register_sized(weft_agent *agent, const weft_function *function,
                                                              size_t size);
static inline WEFT_NODISCARD weft_status weft_agent_register(weft_agent *agent, const weft_function *function)
{
    return weft_agent_register_sized(agent, function, sizeof(*function));
}

/* ---- Calling ----------------------------------------------------------------------------------- */

#define WEFT_NAME_NULL INT32_MIN /* the rank that weft_to_name(NULL) gives: calls to it fail with WEFT_ERR_INVALID */

/* The worker that a call goes to. weft_to_rank, weft_to_name and weft_to_worker make one. */
typedef struct weft_target {
    int rank;             /* used if name is NULL */
    const char *name;     /* borrowed until the function that makes the call returns */
    uint32_t incarnation; /* of the worker with `rank`; 0: the worker that holds the rank */
} weft_target;
static inline weft_target weft_to_rank(int rank)
{
    weft_target t = {rank, NULL, 0};
    return t;
}
static inline weft_target weft_to_name(const char *name)
{
    weft_target t = {name ? -1 : WEFT_NAME_NULL, name, 0};
    return t;
}
/* Makes a target that means exactly `worker`, even after another worker has taken its rank. If `worker` is gone, the
 * call fails with WEFT_ERR_PEER_DEAD or WEFT_ERR_PEER_LEFT; if the caller does not know `worker` yet, with
 * WEFT_ERR_UNREACHABLE. */
static inline weft_target weft_to_worker(weft_worker worker)
{
    weft_target t = {worker.rank, NULL, worker.incarnation};
    return t;
}

/*
 * Retries a call that fails. Use it only for functions that may run more than once, because a failed attempt may
 * have run. A zeroed struct means one attempt; a negative field is WEFT_ERR_INVALID. After a pause, another attempt
 * follows in these cases:
 *   The attempt took longer than attempt_ms.
 *   It ended with WEFT_ERR_BUSY, WEFT_ERR_AGAIN, WEFT_ERR_UNREACHABLE or WEFT_ERR_UNKNOWN.
 *   Its handler failed with WEFT_ERR_BUSY or WEFT_ERR_AGAIN.
 *   No living worker has the target's name, which is looked up for each attempt.
 * The time limit of the call bounds all attempts and pauses (docs/calls.md).
 */
typedef struct weft_retry {
    int attempts;          /* the largest number of attempts, the first included */
    int64_t pause_ms;      /* before the second attempt; default 50. Each later pause is 1.5 times as long */
    int64_t pause_most_ms; /* no pause is longer; default 5,000, or pause_ms if that is longer */
    int64_t attempt_ms;    /* the time limit of one attempt, if `attempts` is above 1; 0: that of the call */
    uint64_t reserved[4];  /* 0: room for later fields */
} weft_retry;

/* Receives an item that the handler sent with weft_call_send_item. `item` is borrowed. Runs on the executor, one
 * item at a time, in order. The call's future completes after the function has returned from the last item. */
typedef void (*weft_item_fn)(const weft_values *item, void *arg);

typedef struct weft_rpc_options {
    int64_t timeout_ms; /* 0: the agent's default; WEFT_FOREVER: no timeout; below that: WEFT_ERR_INVALID */
    /* Places for the tensors of the result, in order: contiguous, with the dtype and shape of the result. After a
     * failure their contents are undefined. */
    weft_tensors land;
    bool wait_for_room; /* wait if the queue to the peer is full (queue_limit_bytes); otherwise WEFT_ERR_AGAIN */
    /* Receives the detail if weft_rpc_sync fails, or if a call cannot start; you release it. If this field is NULL,
     * the log has the detail of WEFT_ERR_INVALID, WEFT_ERR_TYPE, WEFT_ERR_SHAPE and WEFT_ERR_DEADLOCK. */
    weft_error **error;
    /* For a call made by a handler: the call that the handler serves; NULL: none. The deadline of `parent` also
     * bounds this call, and cancelling `parent` cancels this call. If `parent` is already out of time or cancelled,
     * this call does not start (WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED). When `parent` is answered, this call
     * continues. Borrowed until the function that makes the call returns. It must belong to the same agent
     * (WEFT_ERR_INVALID). */
    const weft_call *parent;
    weft_retry retry;
    weft_item_fn on_item; /* receives items of the results; NULL: the handler cannot send items */
    void *item_arg;       /* passed to on_item */
    /* A tape of a distributed context (weft/context.h): the call takes part in that context. NULL: none. A
     * backward pass then crosses the call. It enters the callee by the results that the handler's tape has recorded,
     * and returns to this worker by the arguments that this tape has recorded or that require a gradient. The tape
     * is used until the function that makes the call returns, by one thread at a time. The order of the calls on a
     * tape can change gradients by rounding (weft_context_tape). A call to this worker itself cannot use both `tape`
     * and `land` (WEFT_ERR_UNSUPPORTED). */
    weft_tape *tape;
} weft_rpc_options;

/*
 * CALLS TO ONESELF. A worker may call itself. The handler then receives the caller's own tensors, not copies:
 *   The future completes only when the handler can no longer read its arguments, even after a timeout or a
 *   cancellation.
 *   A handler must not wait for the end of its own call. A caller must not wait for a handler that waits for the
 *   caller.
 *   A tensor that the handler keeps shares the caller's storage. If the caller may be this worker, clone what you keep.
 * docs/calls.md has the details.
 */

/*
 * Starts a call of `function`, which the worker `to` has registered, and does not wait for it. *out receives the
 * call's future, with a reference for you. The future completes when the call has ended: its payload is the results
 * (weft_future_values), its error says why the call failed. If `out` is NULL, the results are discarded. weft_call
 * and weft_handler_fn describe the other side. WEFT_VALUES makes `arguments`; `options` may be NULL.
 *
 * MEMORY. Strings and bytes are copied, and tensors are referenced, before the function returns. The contents of
 * tensors must not change until the future is complete. Exception: a tensor on a GPU that goes to another worker may
 * be changed at once by work on a stream, because that work runs after the copy that is sent (docs/cuda.md). After the
 * future is complete, no peer and no handler accesses the arguments or the landing tensors, except a handler of this
 * worker that kept a reference. A call to another worker has at most 64 MiB of strings and bytes
 * (WEFT_MAX_CALL_BYTES). Tensors may have any size.
 *
 * ERRORS of the function:
 *   WEFT_ERR_NOT_FOUND: no such worker.
 *   WEFT_ERR_AGAIN: the queue to the peer is full.
 *   WEFT_ERR_TIMEOUT: with wait_for_room, the queue had no room within the time limit.
 *   WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE, WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT, WEFT_ERR_CLOSED, WEFT_ERR_EVICTED,
 *   WEFT_ERR_STORE_LOST, WEFT_ERR_MEMORY.
 *
 * ERRORS of the future: those above that can still happen, and
 *   WEFT_ERR_REMOTE: the handler failed; weft_error_handler_code has its status.
 *   WEFT_ERR_NOT_FOUND: the worker has no such function.
 *   WEFT_ERR_TYPE: the arguments do not match the function's signature.
 *   WEFT_ERR_SHAPE: a tensor does not fit its landing place, in shape or dtype.
 *   WEFT_ERR_INVALID: the memory of an argument, result or landing place cannot be read or written: it is unmapped
 *   or protected, or its file was truncated. The error names which. Tensors that are copied (small or not
 *   contiguous ones), strings and bytes are not checked: copying them raises SIGSEGV or SIGBUS, as in any program.
 *   WEFT_ERR_TIMEOUT, WEFT_ERR_CANCELLED (weft_future_cancel).
 *   WEFT_ERR_BUSY: the callee has no memory or no thread for the call. The handler did not run.
 *   WEFT_ERR_UNKNOWN: the handler ran, but the callee had no room to keep the answer. With retries it means that an
 *   attempt may have run.
 *   WEFT_ERR_UNREACHABLE: the link to the worker is cut, or cannot carry large payloads (docs/failures.md).
 *   WEFT_ERR_SYSTEM: a GPU failed.
 *
 * If an argument is on a GPU, and the call goes to another worker, the call starts when the argument has been copied to
 * the host. So the errors of the start are then errors of the future, except for those of the arguments and options.
 *
 * DID IT RUN? weft_error_ran (weft/status.h) says whether the handler ran, did not, or may have.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_async_sized(weft_agent *agent, weft_target to, const char *function,
                                                         weft_args_in arguments, const weft_rpc_options *options,
                                                         size_t size, weft_future **out);
static inline WEFT_NODISCARD weft_status weft_rpc_async(weft_agent *agent, weft_target to, const char *function,
                                                        weft_args_in arguments, const weft_rpc_options *options,
                                                        weft_future **out)
{
    return weft_rpc_async_sized(agent, to, function, arguments, options, sizeof(*options), out);
}

/*
 * Makes a call of `function`, which the worker `to` has registered, and waits until the call has ended. The call's
 * time limit is timeout_ms of the options, by default call_timeout_ms of the agent. *out, if `out` is not NULL,
 * receives the results, on success only; release them with weft_values_unref. WEFT_VALUES makes `arguments`;
 * `options` may be NULL. The rules for memory are those of weft_rpc_async. The field `error` of the options receives
 * the detail of a failure.
 *
 * Returns WEFT_OK if the handler ran and succeeded. Any other status says why the call failed, and *out is
 * unchanged. Errors are those of weft_rpc_async and of its future. The most frequent ones are:
 *   WEFT_ERR_REMOTE: the handler failed; weft_error_handler_code has its status.
 *   WEFT_ERR_NOT_FOUND: no such worker, or the worker has no such function.
 *   WEFT_ERR_TYPE: the arguments do not match the function's signature.
 *   WEFT_ERR_TIMEOUT: the call took longer than its time limit. The handler may have run, or may still run.
 *   WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT, WEFT_ERR_UNREACHABLE.
 *   WEFT_ERR_DEADLOCK: this thread cannot wait (weft_future_wait); no call was started.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_sync_sized(weft_agent *agent, weft_target to, const char *function,
                                                        weft_args_in arguments, const weft_rpc_options *options,
                                                        size_t size, weft_values **out);
static inline WEFT_NODISCARD weft_status weft_rpc_sync(weft_agent *agent, weft_target to, const char *function,
                                                       weft_args_in arguments, const weft_rpc_options *options,
                                                       weft_values **out)
{
    return weft_rpc_sync_sized(agent, to, function, arguments, options, sizeof(*options), out);
}

/*
 * Makes the same call to `count` workers; the arguments are encoded once. The future completes when all calls have
 * ended, like that of weft_future_when_all. Its payload is an array of `count` futures, in the order of `to`. If a
 * call cannot start, its future in the array has failed. Cancelling the future cancels all calls. `out` may be NULL.
 * The options `land` and on_item are WEFT_ERR_INVALID here.
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_multicast_sized(weft_agent *agent, const weft_target *to, size_t count,
                                                             const char *function, weft_args_in arguments,
                                                             const weft_rpc_options *options, size_t size,
                                                             weft_future **out);
static inline WEFT_NODISCARD weft_status weft_rpc_multicast(weft_agent *agent, const weft_target *to, size_t count,
                                                            const char *function, weft_args_in arguments,
                                                            const weft_rpc_options *options, weft_future **out)
{
    return weft_rpc_multicast_sized(agent, to, count, function, arguments, options, sizeof(*options), out);
}

/*
 * Makes a call whose first result stays on the worker that runs it. *out receives a handle to that result at once,
 * before the call has run (weft/rref.h). If the call fails later, reading the handle (weft_rref_to_here) fails with
 * that error. The option `land` is WEFT_ERR_INVALID here. Items go to on_item, until the future of weft_rref_created
 * is complete; they are not part of the value.
 *
 * If an argument of a call is a handle whose value could not be made, and this worker already knows that, the call
 * does not run and fails with the handle's error (docs/calls.md).
 */
WEFT_API WEFT_NODISCARD weft_status weft_rpc_remote_sized(weft_agent *agent, weft_target to, const char *function,
                                                          weft_args_in arguments, const weft_rpc_options *options,
                                                          size_t size, weft_rref **out);
static inline WEFT_NODISCARD weft_status weft_rpc_remote(weft_agent *agent, weft_target to, const char *function,
                                                         weft_args_in arguments, const weft_rpc_options *options,
                                                         weft_rref **out)
{
    return weft_rpc_remote_sized(agent, to, function, arguments, options, sizeof(*options), out);
}

/* ---- Inside a handler -------------------------------------------------------------------------- */

/* These functions read argument `index` of a call; the first one has index 0. The returned pointers are borrowed
 * until the handler returns; after weft_call_defer_keeping, until the call is finished. The signature is already
 * checked, so they cannot fail. A wrong index aborts a debug build; other builds return NULL, 0 or "". */
WEFT_API size_t weft_call_count(const weft_call *call);
WEFT_API weft_type weft_call_type(const weft_call *call, size_t index);
WEFT_API bool weft_call_bool(const weft_call *call, size_t index);
WEFT_API int64_t weft_call_i64(const weft_call *call, size_t index);
WEFT_API double weft_call_f64(const weft_call *call, size_t index);
WEFT_API const char *weft_call_string(const weft_call *call, size_t index);
WEFT_API const void *weft_call_bytes(const weft_call *call, size_t index, size_t *size);
WEFT_API weft_tensor *weft_call_tensor(const weft_call *call, size_t index);
WEFT_API weft_tensors weft_call_tensors(const weft_call *call, size_t index);
WEFT_API weft_rref *weft_call_rref(const weft_call *call, size_t index);
WEFT_API weft_args weft_call_list(const weft_call *call, size_t index);

WEFT_API weft_agent *weft_call_agent(const weft_call *call); /* the agent that serves the call */
WEFT_API int weft_call_from(const weft_call *call);          /* the caller's rank */
/* Milliseconds until the caller gives up, 0 or more; WEFT_FOREVER if it never does. */
WEFT_API int64_t weft_call_time_left(const weft_call *call);
/* Whether nobody needs the answer: the caller has cancelled the call, it is out of time, or the caller is gone. */
WEFT_API bool weft_call_cancelled(const weft_call *call);
/*
 * Makes a future, with a reference for you, that fails when nobody needs the answer (weft_call_cancelled): with
 * WEFT_ERR_CANCELLED, WEFT_ERR_TIMEOUT, or the code for the caller's end (WEFT_ERR_PEER_DEAD ...). If the call is
 * answered first, the future completes without an error. NULL if memory is out.
 */
WEFT_API weft_future *weft_call_cancellation(weft_call *call);

/*
 * Sets the results of a call. References are taken; the limits of arguments apply. Calling it again replaces the
 * results. A wrong type, a NULL tensor or list, or too much data makes the call fail.
 *
 * From now on until their transfers have ended, the tensors are read: their contents must not change meanwhile.
 * To wait for the end of all transfers of a tensor, call weft_tensor_wait_unread (weft/tensor.h); weft_call_unread
 * makes a future for those of one call. A server that updates its tensors in place calls weft_call_give, and changes
 * the tensors, under one lock. Then no handler can give the tensors between the wait and the change:
 *
 *     static pthread_mutex_t updating = PTHREAD_MUTEX_INITIALIZER;
 *     static weft_tensor *weights; // plain: not a module's parameter
 *
 *     static weft_status pull(weft_call *call, void *user) // any number of these run at once
 *     {
 *         (void)user;
 *         pthread_mutex_lock(&updating);
 *         weft_call_give(call, WEFT_VALUES(weft_of_tensor(weights))); // `weights` is read from here on
 *         pthread_mutex_unlock(&updating);
 *         return WEFT_OK;
 *     }
 *     weft_status update(double value) // on a thread of the program, or in another handler
 *     {
 *         pthread_mutex_lock(&updating);
 *         weft_status status = weft_tensor_wait_unread(weights, 10000); // a client that is stopped may delay it
 *         if (!status)
 *             weft_tensor_fill(weights, value);
 *         pthread_mutex_unlock(&updating);
 *         return status;
 *     }
 *
 * A caller on this same worker gets the tensor itself, not a copy: give it a clone (weft_tensor_clone) if
 * weft_call_from is this worker's rank. Parameters of modules need none of this with WEFT_UPDATE_BESIDE
 * (weft/optim.h).
 */
WEFT_API void weft_call_give(weft_call *call, weft_args_in results);
/*
 * Makes a future, with a reference for you. It completes when the results of the call are no longer read: the caller
 * has received them, the call has failed, or its caller is gone. It completes without an error. Call this function
 * before the handler returns, or, for a deferred call, before weft_call_finish. NULL if memory is out.
 */
WEFT_API weft_future *weft_call_unread(weft_call *call);
/*
 * Sends an item to the caller's on_item before the call ends. References are taken; items have no signature. Allowed
 * until the call ends, for the handler and for the holder of a deferred call. In a call of a distributed context,
 * recorded tensors are linked, and only the thread that uses the call's tape may send items. Errors:
 *   WEFT_ERR_STATE: the caller accepts no items, or the call's distributed context is closed.
 *   WEFT_ERR_AGAIN: 16 items of this call are in flight: on_item has not returned from them. Try again later, or drop
 *   the item. docs/calls.md shows how to wait for room.
 *   WEFT_ERR_CANCELLED: nobody needs the answer (weft_call_cancelled).
 *   WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE, WEFT_ERR_MEMORY, or the error of a reference whose value was not made.
 */
WEFT_API WEFT_NODISCARD weft_status weft_call_send_item(weft_call *call, weft_args_in item);
/* The type of objects of your own. It must live longer than the objects; it is usually a constant. */
struct weft_object_type {
    const char *name;  /* for messages */
    weft_drop_fn drop; /* runs on the owner when the last handle is released */
};

/*
 * Sets an object of your own type as the result of a call of weft_rpc_remote; the object stays on this worker
 * (weft/rref.h). `type->drop(object)` runs when the last handle is released. In any other call, or if memory is out,
 * `drop` runs at once, and the call fails with WEFT_ERR_TYPE or WEFT_ERR_MEMORY. With a NULL object it fails with
 * WEFT_ERR_INVALID.
 */
WEFT_API void weft_call_give_object_sized(weft_call *call, const weft_object_type *type, size_t size, void *object);
static inline void weft_call_give_object(weft_call *call, const weft_object_type *type, void *object)
{
    weft_call_give_object_sized(call, type, sizeof(*type), object);
}
/* Makes the call fail with a status and a message, of which 1,023 bytes are kept. Later failures of the same call
 * are ignored. */
WEFT_API void weft_call_fail(weft_call *call, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);
/*
 * Makes the call fail with the error of something that it needed, such as another call. The caller gets
 * WEFT_ERR_REMOTE with the status and the message of `error`, the worker where it occurred first, and the chain of
 * workers, with this worker added (weft_error_hop). If the call has already failed, nothing changes. NULL does
 * nothing. A handler has the same effect if it returns the status of a failed call that it made with the option
 * `parent`, or of weft_rref_local_value or weft_rref_local_typed for a handle of its arguments.
 */
WEFT_API void weft_call_fail_with(weft_call *call, const weft_error *error);
/* The code of the first failure of this call, or of its tape; WEFT_OK if there is none. */
WEFT_API weft_status weft_call_status(const weft_call *call);

/*
 * Keeps the call open after the handler returns. The handler must return WEFT_DEFERRED; weft_call_finish answers the
 * call later. The arguments are freed when the handler returns, or, after weft_call_defer_keeping, when the call is
 * finished. Returns the call.
 */
WEFT_API weft_call *weft_call_defer(weft_call *call);
WEFT_API weft_call *weft_call_defer_keeping(weft_call *call);
/* Answers a deferred call: with the results that were given, or with `status` if that is a failure. Call it exactly
 * once for each deferred call, and do not use the call afterwards. Any thread. */
WEFT_API void weft_call_finish(weft_call *call, weft_status status);

WEFT_END_C
#endif
