/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parker.h - the one place where a flow of control sleeps: a thread on a futex, a fiber by giving way.
 *
 *     wfi_parker_init(&parker);         on the sleeper's stack, where others find it (a list under a lock)
 *     wfi_park(&parker, deadline_ns);   sleeps until wfi_unpark(&parker) or the deadline
 *
 * An unpark that comes before the park is not lost; several count as one. The sleeper must make sure that nobody
 * unparks it after it has left. Everything in weft that waits waits here, so that a simulation can run all of it in one
 * thread.
 */
#ifndef WFI_PARKER_H
#define WFI_PARKER_H

#include "base/clock.h"
#include "base/list.h"

#include <stdatomic.h>
#include <stdint.h>

struct wfi_fiber;

typedef struct wfi_parker {
    wfi_list link;           /* for whoever keeps it in a list */
    _Atomic uint32_t state;  /* 0 empty, 1 unparked, 2 asleep, 3 asleep on a descriptor */
    _Atomic int fd;          /* in state 3: an eventfd */
    struct wfi_fiber *fiber; /* the sleeper, if it is a fiber */
} wfi_parker;

void wfi_parker_init(wfi_parker *parker); /* by the flow of control that will sleep */
/* Sleeps until unparked or the deadline (of the real clock, or of the fiber's scheduler). True if it was unparked. */
bool wfi_park(wfi_parker *parker, uint64_t deadline_ns);
void wfi_unpark(wfi_parker *parker); /* from anywhere; never blocks */
bool wfi_parker_is_unparked(const wfi_parker *parker);

/*
 * For a thread that sleeps on descriptors: between begin and end an unpark makes `fd` readable, an eventfd that blocks and that
 * serves nothing else meanwhile. begin: false if it is unparked already, and then there is no end. After end it is as unparked as
 * it became, `fd` is not readable, and nobody will write to it any more.
 */
bool wfi_park_on_begin(wfi_parker *parker, int fd);
void wfi_park_on_end(wfi_parker *parker);

#endif
