/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleeper.c - where the poller and the leader sleep: poll(2) on what may come and on an eventfd of their own.
 *
 * No call is lost: the caller sets `called`, then looks whether somebody is in the bed; the sleeper gets into the bed,
 * then looks whether it was called. One of them sees the other (both sequentially consistent).
 */
#include "progress/progress.h"

#include <assert.h>
#include <poll.h>
#include <unistd.h>

void wfi_bed_call(wfi_progress *progress, int bed)
{
    uint64_t one = 1;
    atomic_store(&progress->token.called[bed], true);
    if (atomic_load(&progress->token.in_bed[bed])) {
        ssize_t written = write(progress->token.bed_fds[bed], &one, sizeof(one));
        (void)written; /* a full eventfd wakes as well */
    }
}

static void sleep_on(wfi_progress *progress, int bed, const int *fds, size_t fd_count, uint64_t timeout_ns)
{
    struct pollfd polled[1 + WFI_SLEEPER_FDS] = {{.fd = progress->token.bed_fds[bed], .events = POLLIN}};
    assert(fd_count <= WFI_SLEEPER_FDS);
    for (size_t i = 0; i < fd_count; i++)
        polled[1 + i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
    uint64_t count;
    (void)ppoll(polled, 1 + fd_count, timeout_ns == WFI_NEVER ? NULL : &timeout, NULL);
    if (polled[0].revents) {
        ssize_t got = read(progress->token.bed_fds[bed], &count, sizeof(count));
        (void)got; /* non-blocking: there may be nothing after all */
    }
}

bool wfi_bed_sleep(wfi_progress *progress, int bed, const int *fds, size_t count, uint64_t timeout_ns)
{
    atomic_store(&progress->token.in_bed[bed], true);
    if (!atomic_load(&progress->token.called[bed]))
        sleep_on(progress, bed, fds, count, timeout_ns);
    atomic_store(&progress->token.in_bed[bed], false);
    return atomic_exchange(&progress->token.called[bed], false);
}

void wfi_watcher_call(wfi_progress *progress)
{
    wfi_bed_call(progress, atomic_load(&progress->token.leader_in) ? WFI_BED_LEADER : WFI_BED_POLLER);
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
    wfi_bed_call(progress, WFI_BED_POLLER);
    wfi_bed_call(progress, WFI_BED_LEADER);
    wfi_bed_call(progress, WFI_BED_WAITER);
}
