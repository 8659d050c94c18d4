/* SPDX-License-Identifier: Apache-2.0 */
/* future_impl.h - the future's inside, for future.c, future_wait.c and future_combine.c. Locking: see future.h. */
#ifndef WFI_FUTURE_IMPL_H
#define WFI_FUTURE_IMPL_H

#include "base/mutex.h"
#include "future/future.h"

typedef enum future_state { FUTURE_PENDING, FUTURE_PAYLOAD, FUTURE_FAILED } future_state;

/* Those who wait for some futures together, on the stack of the thread that waits. */
typedef struct wfi_waiting {
    wfi_parker parker;
    size_t count;
    bool any;              /* the first one is enough, well or not */
    atomic_size_t pending; /* of `count` */
    _Atomic int failure;   /* the code of the first failure to arrive, or WEFT_OK */
} wfi_waiting;

/* One future that somebody waits for. The waiter takes it out of the future's list, under its lock, before it goes. */
typedef struct wfi_waiter {
    wfi_list link;
    wfi_waiting *waiting;
} wfi_waiter;

struct weft_future {
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
    weft_future *next_dead; /* see unref */
};

weft_status wfi_future_status(const weft_future *future); /* of a complete one: WEFT_OK or the error's code */

#endif
