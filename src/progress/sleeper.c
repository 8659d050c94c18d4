/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleeper.c - where the poller and the leader sleep: poll(2) on what may come and on an eventfd of their own.
 *
 * No call is lost: the caller sets `called`, then looks whether somebody is in the bed; the sleeper gets into the bed,
 * then looks whether it was called. One of them sees the other (both sequentially consistent).
 */
#include "net/net_internal.h"

#include <poll.h>
#include <unistd.h>

void wfi_bed_call(wfi_net *net, int bed)
{
    uint64_t one = 1;
    atomic_store(&net->token.called[bed], true);
    if (atomic_load(&net->token.in_bed[bed])) {
        ssize_t written = write(net->token.bed_fds[bed], &one, sizeof(one));
        (void)written; /* a full eventfd wakes as well */
    }
}

static void sleep_on(wfi_net *net, int bed, const int fds[2], uint64_t timeout_ns)
{
    struct pollfd polled[3] = {{.fd = net->token.bed_fds[bed], .events = POLLIN},
                               {.fd = fds[0], .events = POLLIN},
                               {.fd = fds[1], .events = POLLIN}};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
    uint64_t count;
    (void)ppoll(polled, 3, timeout_ns == WFI_NEVER ? NULL : &timeout, NULL);
    if (polled[0].revents) {
        ssize_t got = read(net->token.bed_fds[bed], &count, sizeof(count));
        (void)got; /* non-blocking: there may be nothing after all */
    }
}

bool wfi_bed_sleep(wfi_net *net, int bed, const int fds[2], uint64_t timeout_ns)
{
    atomic_store(&net->token.in_bed[bed], true);
    if (!atomic_load(&net->token.called[bed]))
        sleep_on(net, bed, fds, timeout_ns);
    atomic_store(&net->token.in_bed[bed], false);
    return atomic_exchange(&net->token.called[bed], false);
}

void wfi_watcher_call(wfi_net *net)
{
    wfi_bed_call(net, atomic_load(&net->token.leader_in) ? WFI_BED_LEADER : WFI_BED_POLLER);
}

void wfi_net_wake(wfi_net *net)
{
    if (net->fibers) {
        wfi_fiber_ready(net);
        return;
    }
    wfi_bed_call(net, WFI_BED_POLLER);
    wfi_bed_call(net, WFI_BED_LEADER);
    wfi_bed_call(net, WFI_BED_WAITER);
}
