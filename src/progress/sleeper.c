/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleeper.c - where the poller, the leader and a waiting thread sleep: poll(2) on the sources' descriptors and on an
 * eventfd of their own.
 *
 * No wake is lost: whoever wakes sets `called`, then looks at `asleep`; the sleeper sets `asleep`, then looks at
 * `called`. Both are sequentially consistent, so at least one of them sees what the other has set.
 */
#include "progress/progress.h"

#include <assert.h>
#include <poll.h>
#include <unistd.h>

void wfi_sleeper_wake(wfi_progress *progress, int sleeper)
{
    uint64_t one = 1;
    atomic_store(&progress->token.called[sleeper], true);
    if (atomic_load(&progress->token.asleep[sleeper])) {
        ssize_t written = write(progress->token.sleeper_fds[sleeper], &one, sizeof(one));
        (void)written; /* a full eventfd wakes as well */
    }
}

static void sleep_on(wfi_progress *progress, int sleeper, const int *fds, size_t fd_count, uint64_t timeout_ns)
{
    struct pollfd polled[1 + WFI_SLEEPER_FDS] = {{.fd = progress->token.sleeper_fds[sleeper], .events = POLLIN}};
    assert(fd_count <= WFI_SLEEPER_FDS);
    for (size_t i = 0; i < fd_count; i++)
        polled[1 + i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
    uint64_t count;
    (void)ppoll(polled, 1 + fd_count, timeout_ns == WFI_NEVER ? NULL : &timeout, NULL);
    if (polled[0].revents) {
        ssize_t got = read(progress->token.sleeper_fds[sleeper], &count, sizeof(count));
        (void)got; /* non-blocking: there may be nothing after all */
    }
}

bool wfi_sleeper_sleep(wfi_progress *progress, int sleeper, const int *fds, size_t count, uint64_t timeout_ns)
{
    atomic_store(&progress->token.asleep[sleeper], true);
    if (!atomic_load(&progress->token.called[sleeper]))
        sleep_on(progress, sleeper, fds, count, timeout_ns);
    atomic_store(&progress->token.asleep[sleeper], false);
    return atomic_exchange(&progress->token.called[sleeper], false);
}

void wfi_watcher_wake(wfi_progress *progress)
{
    wfi_sleeper_wake(progress, atomic_load(&progress->token.leader_in) ? WFI_SLEEPER_LEADER : WFI_SLEEPER_POLLER);
}

void wfi_fiber_ready(void *arg)
{
    wfi_progress *progress = arg;
    if (progress->fiber_runs)
        wfi_unpark(&progress->fiber_parker);
}

void wfi_progress_wake(wfi_progress *progress)
{
    if (progress->fibers) {
        wfi_fiber_ready(progress);
        return;
    }
    wfi_sleeper_wake(progress, WFI_SLEEPER_POLLER);
    wfi_sleeper_wake(progress, WFI_SLEEPER_LEADER);
    wfi_sleeper_wake(progress, WFI_SLEEPER_WAITER);
}
