/* SPDX-License-Identifier: Apache-2.0 */
/*
 * future.h - futures, as the rest of weft makes them.
 *
 * weft_future_create, weft_future_values and weft_future_tensor know agents and tensors: src/rpc/result.c defines them.
 *
 * Locking: each future has a small lock of its own over its state, its callbacks and its waiters. It is a leaf: nothing
 * is called with it held but wfi_unpark and wfi_executor_submit. So a future may be completed with any other lock held.
 */
#ifndef WFI_FUTURE_H
#define WFI_FUTURE_H

#include "base/parker.h"
#include "future/executor.h"

#include <weft/future.h>

/*
 * How a thread that waits makes itself useful. drive() is called, no lock held, with a parker that the future's
 * completion unparks; it progresses or sleeps on the parker until unparked or the deadline, and returns. Spurious
 * returns are fine: the caller looks again. It returns false if waiting on this thread could never end
 * (WEFT_ERR_DEADLOCK).
 */
typedef struct wfi_driver {
    bool (*drive)(struct wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns);
    const wfi_clock *clock;
} wfi_driver;

/* A future whose continuations run on `executor` and whose waiters use `driver` (NULL: they just sleep). */
weft_future *wfi_future_create(wfi_executor *executor, wfi_driver *driver);

/* For typed payloads: the drop that a payload was completed with identifies its type. */
weft_drop_fn wfi_future_payload_kind(const weft_future *future);

#endif
