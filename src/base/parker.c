/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parker.c - parks and unparks threads and fibers.
 *
 * state: EMPTY -park-> ASLEEP -unpark-> UNPARKED -park returns-> EMPTY, or EMPTY -unpark-> UNPARKED, which the next
 * park consumes at once. The unparker's exchange is its last access to the parker: right after it the sleeper may
 * return, and its stack frame is gone. The futex call that may follow only names the address; the kernel does not read
 * it for a private wake. If another parker has that address by then, it gets a spurious wake and continues to sleep, as
 * every futex user must. A fiber and the code that unparks it run on one thread, so nothing can happen in between.
 *
 * With a descriptor there is one access after the exchange: the write to it. So a sleeper that was unparked waits for
 * that write.
 */
#include "base/parker.h"
#include "base/simulation.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { EMPTY = 0, UNPARKED = 1, ASLEEP = 2, ON_DESCRIPTOR = 3 };

void wfi_parker_init(wfi_parker *parker)
{
    wfi_list_init(&parker->link);
    atomic_init(&parker->state, EMPTY);
    atomic_init(&parker->fd, -1);
    parker->fiber = wfi_fiber_current();
    parker->has_spun = false;
}

/* Sleeps while the state is ASLEEP; false if the deadline has passed. */
static bool sleep_thread(wfi_parker *parker, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    long rc = syscall(SYS_futex, &parker->state, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, ASLEEP,
                      deadline_ns == WFI_NEVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
    return !(rc == -1 && errno == ETIMEDOUT);
}

static bool take_permit(wfi_parker *parker)
{
    uint32_t expected = UNPARKED;
    return atomic_compare_exchange_strong_explicit(&parker->state, &expected, EMPTY, memory_order_acquire,
                                                   memory_order_relaxed);
}

bool wfi_park(wfi_parker *parker, uint64_t deadline_ns)
{
    uint32_t expected = EMPTY;
    bool in_time = true;
    assert(parker->fiber == wfi_fiber_current());
    if (!atomic_compare_exchange_strong_explicit(&parker->state, &expected, ASLEEP, memory_order_relaxed,
                                                 memory_order_relaxed)) {
        assert(expected == UNPARKED);
        return take_permit(parker);
    }
    while (in_time && atomic_load_explicit(&parker->state, memory_order_relaxed) == ASLEEP) {
        in_time =
            parker->fiber ? wfi_simulation->fiber_wait(parker->fiber, deadline_ns) : sleep_thread(parker, deadline_ns);
    }
    expected = ASLEEP;
    if (atomic_compare_exchange_strong_explicit(&parker->state, &expected, EMPTY, memory_order_relaxed,
                                                memory_order_relaxed))
        return false;
    return take_permit(parker);
}

const wfi_clock *wfi_park_clock(void)
{
    const wfi_fiber *fiber = wfi_fiber_current();
    return fiber ? fiber->clock : &wfi_clock_real;
}

void wfi_unpark(wfi_parker *parker)
{
    struct wfi_fiber *fiber = parker->fiber; /* read before the exchange, which is the last access */
    uint32_t was = atomic_load_explicit(&parker->state, memory_order_acquire);
    int fd;
    do {
        fd = atomic_load_explicit(&parker->fd, memory_order_relaxed);
    } while (!atomic_compare_exchange_weak_explicit(&parker->state, &was, UNPARKED, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (was == ON_DESCRIPTOR)
        (void)!write(fd, &(uint64_t){1}, sizeof(uint64_t));
    if (was != ASLEEP)
        return;
    if (fiber)
        wfi_simulation->fiber_wake(fiber);
    else
        syscall(SYS_futex, &parker->state, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

bool wfi_parker_is_unparked(const wfi_parker *parker)
{
    return atomic_load_explicit(&parker->state, memory_order_acquire) == UNPARKED;
}

bool wfi_park_on_begin(wfi_parker *parker, int fd)
{
    uint32_t expected = EMPTY;
    atomic_store_explicit(&parker->fd, fd, memory_order_relaxed);
    return atomic_compare_exchange_strong_explicit(&parker->state, &expected, ON_DESCRIPTOR, memory_order_release,
                                                   memory_order_relaxed);
}

void wfi_park_on_end(wfi_parker *parker)
{
    uint32_t expected = ON_DESCRIPTOR;
    uint64_t count;
    if (atomic_compare_exchange_strong_explicit(&parker->state, &expected, EMPTY, memory_order_acquire,
                                                memory_order_acquire))
        return;
    assert(expected == UNPARKED);
    while (read(atomic_load_explicit(&parker->fd, memory_order_relaxed), &count, sizeof(count)) < 0 && errno == EINTR)
        continue;
}
