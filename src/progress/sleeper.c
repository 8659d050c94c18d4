/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleeper.c - the sleep of the poller, the leader and a waiting thread: poll(2) on the sources' descriptors and on an
 * eventfd for each sleeper.
 *
 * No wake is lost: the waking thread sets `called`, then reads `asleep`; the sleeper sets `asleep`, then reads
 * `called`. Both are sequentially consistent, so at least one of the two sees the other's value.
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
        (void)written; /* a full eventfd also wakes */
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
        (void)got; /* non-blocking: it may be empty */
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

void wfi_progress_wake(wfi_progress *progress)
{
    if (progress->fibers) {
        if (progress->fiber_runs)
            wfi_unpark(&progress->fiber_parker);
        return;
    }
    wfi_sleeper_wake(progress, WFI_SLEEPER_POLLER);
    wfi_sleeper_wake(progress, WFI_SLEEPER_LEADER);
    wfi_sleeper_wake(progress, WFI_SLEEPER_WAITER);
}

void wfi_progress_ready(void *arg)
{
    wfi_progress_wake(arg);
}
