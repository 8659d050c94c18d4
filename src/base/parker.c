/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parker.c - sleeping and waking.
 *
 * state: EMPTY -park-> ASLEEP -unpark-> UNPARKED -park returns-> EMPTY, or EMPTY -unpark-> UNPARKED, which the next park
 * takes at once. The unparker's exchange is its last touch of the parker: right after it the sleeper may return and its
 * stack frame go. The futex call that may follow names the address only, the kernel does not read it for a private wake;
 * if the place is another parker by then, that one sees a spurious wake and sleeps on, as every futex user must.
 * A fiber and all who unpark it are on one thread, so for it nothing can happen in between.
 *
 * On a descriptor there is a touch after the exchange, the write to it. So the sleeper that finds itself unparked waits for that.
 */
#include "base/parker.h"
#include "base/fiber.h"

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
}

/* Sleeps while the state is ASLEEP; false once the deadline has passed. */
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
            parker->fiber != NULL ? wfi_fiber_wait(parker->fiber, deadline_ns) : sleep_thread(parker, deadline_ns);
    }
    expected = ASLEEP;
    if (atomic_compare_exchange_strong_explicit(&parker->state, &expected, EMPTY, memory_order_relaxed,
                                                memory_order_relaxed))
        return false;
    return take_permit(parker);
}

void wfi_unpark(wfi_parker *parker)
{
    struct wfi_fiber *fiber = parker->fiber; /* these are read before the exchange gives the parker up */
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
    if (fiber != NULL)
        wfi_fiber_wake(fiber);
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
    while (read(atomic_load_explicit(&parker->fd, memory_order_relaxed), &count, sizeof count) < 0 && errno == EINTR)
        continue;
}
