/* SPDX-License-Identifier: Apache-2.0 */
/* round.c - one round: completions, timers, posts that were refused; and one of connection events. */
#include "net/net_internal.h"

#define EVENTS_BATCH 8

size_t wfi_round(wfi_net *net, wfi_role role, wfi_task **mine)
{
    wfi_completion completions[WFI_BATCH];
    size_t count = net->ops->poll(net->fabric, completions, WFI_BATCH);
    uint64_t now = wfi_now(net->clock);
    if (!count && atomic_load_explicit(&net->next_deadline_ns, memory_order_relaxed) > now)
        return 0;
    wfi_mutex_lock(&net->lock);
    net->now_ns = now;
    net->in_round = true;
    if (role == WFI_MANUAL)
        net->sleep_until_ns =
            0; /* we are up: timers set now need wake nobody; one robbed by us sleeps for RARE_NS at most */
    for (size_t i = 0; i < count; i++)
        wfi_transport_dispatch(&completions[i]);
    size_t fired = wfi_timers_fire(net);
    if (atomic_load(&net->stuck))
        wfi_transport_post_again(net);
    wfi_task *task = wfi_net_unlock_as(net, role);
    if (mine)
        *mine = task;
    return count + fired;
}

size_t wfi_round_events(wfi_net *net, int timeout_ms, int wake_fd)
{
    wfi_event events[EVENTS_BATCH];
    size_t count = net->ops->poll_events(net->fabric, events, EVENTS_BATCH, timeout_ms, wake_fd);
    if (!count)
        return 0;
    wfi_mutex_lock(&net->lock);
    net->now_ns = wfi_now(net->clock);
    net->in_round = true;
    for (size_t i = 0; i < count; i++)
        wfi_net_event(net, &events[i]);
    wfi_net_unlock(net);
    return count;
}
