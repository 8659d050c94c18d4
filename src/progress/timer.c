/* SPDX-License-Identifier: Apache-2.0 */
/* timer.c - timers in a binary heap, earliest first; the heap's places count from 1, so that 0 means "not set". */
#include "net/net_internal.h"

#include <stdlib.h>

static void place(wfi_net *net, size_t index, wfi_timer *timer)
{
    net->heap[index] = timer;
    timer->heap_index = index;
}

static void sift_up(wfi_net *net, size_t index, wfi_timer *timer)
{
    while (index > 1 && net->heap[index / 2]->deadline_ns > timer->deadline_ns) {
        place(net, index, net->heap[index / 2]);
        index /= 2;
    }
    place(net, index, timer);
}

static void sift_down(wfi_net *net, size_t index, wfi_timer *timer)
{
    for (;;) {
        size_t child = 2 * index;
        if (child > net->heap_count)
            break;
        if (child < net->heap_count && net->heap[child + 1]->deadline_ns < net->heap[child]->deadline_ns)
            child++;
        if (net->heap[child]->deadline_ns >= timer->deadline_ns)
            break;
        place(net, index, net->heap[child]);
        index = child;
    }
    place(net, index, timer);
}

static weft_status make_room(wfi_net *net, size_t timers)
{
    if (timers < net->heap_capacity) /* they begin at 1 */
        return WEFT_OK;
    size_t capacity = net->heap_capacity ? 2 * net->heap_capacity : 64;
    capacity = capacity > timers ? capacity : timers + 1;
    wfi_timer **heap = realloc(net->heap, capacity * sizeof(*heap));
    if (!heap)
        return WEFT_ERR_MEMORY;
    net->heap = heap;
    net->heap_capacity = capacity;
    return WEFT_OK;
}

weft_status wfi_timers_reserve(wfi_net *net, size_t count)
{
    weft_status status = make_room(net, net->heap_others + net->heap_reserved + count);
    if (!status)
        net->heap_reserved += count;
    return status;
}

void wfi_timers_release(wfi_net *net, size_t count)
{
    wfi_assert_held(&net->lock);
    net->heap_reserved -= count;
}

static void publish(wfi_net *net)
{
    uint64_t next = net->heap_count ? net->heap[1]->deadline_ns : WFI_NEVER;
    atomic_store_explicit(&net->next_deadline_ns, next, memory_order_relaxed);
}

weft_status wfi_net_timer_set(wfi_net *net, wfi_timer *timer, uint64_t deadline_ns)
{
    wfi_assert_held(&net->lock);
    size_t index = timer->heap_index;
    if (!index) {
        size_t others = net->heap_others + !timer->reserved;
        weft_status status = make_room(net, others + net->heap_reserved);
        if (status)
            return status;
        net->heap_others = others;
        index = ++net->heap_count;
    }
    timer->deadline_ns = deadline_ns;
    if (index > 1 && net->heap[index / 2]->deadline_ns > deadline_ns)
        sift_up(net, index, timer);
    else
        sift_down(net, index, timer);
    publish(net);
    /* Whoever sleeps with the token knows only the deadlines that stood when it lay down. */
    if (deadline_ns < net->sleep_until_ns) {
        net->sleep_until_ns = deadline_ns;
        wfi_net_wake(net);
    }
    return WEFT_OK;
}

void wfi_net_timer_clear(wfi_net *net, wfi_timer *timer)
{
    wfi_assert_held(&net->lock);
    size_t index = timer->heap_index;
    if (!index)
        return;
    timer->heap_index = 0;
    net->heap_others -= !timer->reserved;
    wfi_timer *last = net->heap[net->heap_count--];
    if (last != timer) {
        if (index > 1 && net->heap[index / 2]->deadline_ns > last->deadline_ns)
            sift_up(net, index, last);
        else
            sift_down(net, index, last);
    }
    publish(net);
}

size_t wfi_timers_fire(wfi_net *net)
{
    size_t fired = 0;
    while (net->heap_count && net->heap[1]->deadline_ns <= net->now_ns) {
        wfi_timer *timer = net->heap[1];
        wfi_net_timer_clear(net, timer);
        timer->fire(timer);
        fired++;
    }
    return fired;
}
