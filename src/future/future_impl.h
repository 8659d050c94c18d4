/* SPDX-License-Identifier: Apache-2.0 */
/* future_impl.h - the internals of a future, for future.c, future_wait.c and future_combine.c. Lock: see future.h. */
#ifndef WFI_FUTURE_IMPL_H
#define WFI_FUTURE_IMPL_H

#include "base/handle.h"
#include "base/mutex.h"
#include "future/future.h"

typedef enum future_state { FUTURE_PENDING, FUTURE_PAYLOAD, FUTURE_FAILED } future_state;

/* A thread's wait for one or several futures. It is on the thread's stack. */
typedef struct wfi_waiting {
    wfi_parker parker;
    size_t count;
    bool of_program;       /* weft_agent_wake ends it */
    bool any;              /* the first completion is enough, even a failure */
    atomic_size_t pending; /* futures that are not complete */
    _Atomic int failure;   /* the code of the first failure, or WEFT_OK */
} wfi_waiting;

/* One future of a wait. The waiting thread removes it from the future's list, under the future's lock, before it
 * returns. */
typedef struct wfi_waiter {
    wfi_list link;
    wfi_waiting *waiting;
} wfi_waiter;

/*
 * Called on the executor when a future is complete. Its owner keeps it until either `call` or `forget` has been called,
 * or it was removed.
 */
typedef struct wfi_callback {
    wfi_task task; /* its link is in the future's callbacks first, then the executor's */
    wfi_urgency urgency;
    weft_future *future; /* a reference, while it is being called */
    void (*call)(struct wfi_callback *callback, weft_future *future);
    void (*forget)(struct wfi_callback *callback); /* the future is freed before it is complete */
} wfi_callback;

struct weft_future {
    wfi_handle handle;
    _Atomic uint32_t refs;
    _Atomic int state; /* future_state; written under the lock, as the last step of completing */
    wfi_mutex lock;
    wfi_executor *executor; /* a reference */
    wfi_driver *driver;     /* not used after the executor has ended */
    void *payload;
    weft_drop_fn drop;
    weft_error *error;
    wfi_list callbacks, waiters, observers;
    const wfi_canceller *canceller; /* NULL: cancelling only fails the future */
    void *cancel_owner;
    uint64_t cancel_id;
    bool cancel_asked;         /* the canceller was called. [lock] */
    bool owned;                /* only the library completes it; constant after others have it */
    bool has_spun;             /* likewise: its creator, which waits for it, has spun before */
    weft_future *next_to_free; /* see weft_future_unref */
};

/* Initializes a future, with one reference, at the beginning of a block of memory; free_future frees the whole
 * block. */
void wfi_future_init(weft_future *future, wfi_executor *executor, wfi_driver *driver);
void wfi_future_add_callback(weft_future *future, wfi_callback *callback);
/* Removes it. False: the future is complete, and the callback has been or will be called. The caller holds the
 * future. */
bool wfi_future_remove_callback(weft_future *future, wfi_callback *callback);
bool wfi_future_ref_unless_dying(weft_future *future); /* for memory that is valid; false if no reference is left */

/* WEFT_OK if no pointer is NULL; otherwise logs which one is, and returns WEFT_ERR_INVALID. */
weft_status wfi_futures_check(const char *function, weft_future *const *futures, size_t count);
weft_status wfi_future_status(const weft_future *future); /* of a complete future: WEFT_OK or the error's code */

#endif
