/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parker.h - how a thread or fiber waits for another one: a thread on a futex, a fiber by yielding.
 *
 *     wfi_parker_init(&parker);         on the sleeper's stack, where others find it (a list under a lock)
 *     wfi_park(&parker, deadline_ns);   sleeps until wfi_unpark(&parker) or the deadline
 *
 * An unpark before the park is not lost; several count as one. The sleeper must ensure that it is not unparked after
 * the parker is gone. Waits for other threads use parkers, so that a simulation can run all of them in one thread.
 * (Threads that wait for descriptors sleep in poll(2).)
 */
#ifndef WFI_PARKER_H
#define WFI_PARKER_H

#include "base/clock.h"
#include "base/list.h"

#include <stdatomic.h>
#include <stdint.h>

struct wfi_fiber;

typedef struct wfi_parker {
    wfi_list link;           /* for lists of waiting threads */
    _Atomic uint32_t state;  /* 0 empty, 1 unparked, 2 asleep, 3 asleep on a descriptor */
    _Atomic int fd;          /* in state 3: an eventfd */
    struct wfi_fiber *fiber; /* the sleeper, if it is a fiber */
    bool has_spun;           /* its thread has spun before: it should sleep at once */
} wfi_parker;

void wfi_parker_init(wfi_parker *parker); /* called by the thread or fiber that will sleep */
/* Sleeps until unparked or the deadline (of the real clock, or of the fiber's scheduler). True if it was unparked. */
bool wfi_park(wfi_parker *parker, uint64_t deadline_ns);
const wfi_clock *wfi_park_clock(void); /* the clock of the caller's deadlines */
void wfi_unpark(wfi_parker *parker);   /* any thread or fiber; never blocks */
bool wfi_parker_is_unparked(const wfi_parker *parker);

/*
 * For a thread that sleeps on descriptors: between begin and end an unpark makes `fd` readable. `fd` is a blocking
 * eventfd that is not used for anything else meanwhile. begin returns false if the parker is unparked already; then end
 * must not be called. After end the parker keeps its state (unparked or not), and `fd` is not readable and will not be
 * written.
 */
bool wfi_park_on_begin(wfi_parker *parker, int fd);
void wfi_park_on_end(wfi_parker *parker);

#endif
