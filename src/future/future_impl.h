/* SPDX-License-Identifier: Apache-2.0 */
/* future_impl.h - the inside of a future, for future.c, future_wait.c and future_combine.c. Locking: see future.h. */
#ifndef WFI_FUTURE_IMPL_H
#define WFI_FUTURE_IMPL_H

#include "base/handle.h"
#include "base/mutex.h"
#include "future/future.h"

typedef enum future_state { FUTURE_PENDING, FUTURE_PAYLOAD, FUTURE_FAILED } future_state;

/* Those who wait for some futures together, on the stack of the thread that waits. */
typedef struct wfi_waiting {
    wfi_parker parker;
    size_t count;
    bool of_program;       /* weft_agent_wake ends it */
    bool any;              /* the first one is enough, well or not */
    atomic_size_t pending; /* of `count` */
    _Atomic int failure;   /* the code of the first failure to arrive, or WEFT_OK */
} wfi_waiting;

/* One future that somebody waits for. The waiter takes it out of the future's list, under its lock, before it goes. */
typedef struct wfi_waiter {
    wfi_list link;
    wfi_waiting *waiting;
} wfi_waiter;

/*
 * One who is to be called on the executor once a future is complete. Whoever registers it keeps it until `call` or `forget`, one of
 * them, has been called, or it was taken back.
 */
typedef struct wfi_callback {
    wfi_task task;       /* its link is in the future's callbacks first, then the executor's */
    weft_future *future; /* a reference, while it is being called */
    void (*call)(struct wfi_callback *callback, weft_future *future);
    void (*forget)(struct wfi_callback *callback); /* the future goes, incomplete */
} wfi_callback;

struct weft_future {
    wfi_handle handle;
    _Atomic uint32_t refs;
    _Atomic int state; /* future_state; written under lock, the last of what completes it */
    wfi_mutex lock;
    wfi_executor *executor; /* a reference */
    wfi_driver *driver;     /* not used once the executor has ended */
    void *payload;
    weft_drop_fn drop;
    weft_error *error;
    wfi_list callbacks, waiters, observers;
    const wfi_canceller *canceller; /* NULL: cancelling fails the future, that is all */
    void *cancel_owner;
    uint64_t cancel_id;
    bool cancel_asked;      /* [lock] once is enough */
    bool owned;             /* the library completes it; constant once others have it */
    weft_future *next_dead; /* see unref */
};

/* With one reference, all its own; free_future ends it: what stands behind it in its memory goes with it. */
void wfi_future_init(weft_future *future, wfi_executor *executor, wfi_driver *driver);
void wfi_future_add_callback(weft_future *future, wfi_callback *callback);
/* Takes it back; false: the future is complete, and it has been or will be called. The future lives. */
bool wfi_future_remove_callback(weft_future *future, wfi_callback *callback);
bool wfi_future_ref_unless_dying(weft_future *future); /* its memory is there, perhaps no reference is left */

bool wfi_futures_are_there(weft_future *const *futures, size_t count); /* all `count`, none NULL */
weft_status wfi_future_status(const weft_future *future); /* of a complete one: WEFT_OK or the error's code */

#endif
