/* SPDX-License-Identifier: Apache-2.0 */
/* timer.c - timers in a binary heap, the earliest first. heap_index counts from 1, so that 0 means "not set". */
#include "progress/progress.h"

#include <stdlib.h>

static void put_at(wfi_progress *progress, size_t index, wfi_timer *timer)
{
    progress->heap[index] = timer;
    timer->heap_index = index;
}

/* Puts the timer at its place in the heap, up or down from `index`, which is free. */
static void sift(wfi_progress *progress, size_t index, wfi_timer *timer)
{
    for (; index > 1 && progress->heap[index / 2]->deadline_ns > timer->deadline_ns; index /= 2)
        put_at(progress, index, progress->heap[index / 2]);
    for (size_t child; (child = 2 * index) <= progress->heap_count; index = child) {
        if (child < progress->heap_count && progress->heap[child + 1]->deadline_ns < progress->heap[child]->deadline_ns)
            child++;
        if (progress->heap[child]->deadline_ns >= timer->deadline_ns)
            break;
        put_at(progress, index, progress->heap[child]);
    }
    put_at(progress, index, timer);
}

static weft_status reserve_heap(wfi_progress *progress, size_t timers)
{
    if (timers < progress->heap_capacity) /* index 0 is not used */
        return WEFT_OK;
    size_t capacity = progress->heap_capacity ? 2 * progress->heap_capacity : 64;
    capacity = capacity > timers ? capacity : timers + 1;
    wfi_timer **heap = realloc(progress->heap, capacity * sizeof(*heap));
    if (!heap)
        return WEFT_ERR_MEMORY;
    progress->heap = heap;
    progress->heap_capacity = capacity;
    return WEFT_OK;
}

weft_status wfi_timers_reserve(wfi_progress *progress, size_t count)
{
    weft_status status = reserve_heap(progress, progress->heap_others + progress->heap_reserved + count);
    if (!status)
        progress->heap_reserved += count;
    return status;
}

void wfi_timers_release(wfi_progress *progress, size_t count)
{
    wfi_assert_held(&progress->lock);
    progress->heap_reserved -= count;
}

static void publish_deadline(wfi_progress *progress)
{
    uint64_t next = progress->heap_count ? progress->heap[1]->deadline_ns : WFI_NEVER;
    atomic_store_explicit(&progress->next_deadline_ns, next, memory_order_relaxed);
}

weft_status wfi_timer_set(wfi_progress *progress, wfi_timer *timer, uint64_t deadline_ns)
{
    wfi_assert_held(&progress->lock);
    size_t index = timer->heap_index;
    if (!index) {
        size_t others = progress->heap_others + !timer->reserved;
        weft_status status = reserve_heap(progress, others + progress->heap_reserved);
        if (status)
            return status;
        progress->heap_others = others;
        index = ++progress->heap_count;
    }
    timer->deadline_ns = deadline_ns;
    sift(progress, index, timer);
    publish_deadline(progress);
    /* A thread that sleeps with the token knows only the deadlines that were set when it fell asleep. */
    if (deadline_ns < progress->sleep_until_ns) {
        progress->sleep_until_ns = deadline_ns;
        wfi_progress_wake(progress);
    }
    return WEFT_OK;
}

void wfi_timer_clear(wfi_progress *progress, wfi_timer *timer)
{
    wfi_assert_held(&progress->lock);
    size_t index = timer->heap_index;
    if (!index)
        return;
    timer->heap_index = 0;
    progress->heap_others -= !timer->reserved;
    wfi_timer *last = progress->heap[progress->heap_count--];
    if (last != timer)
        sift(progress, index, last);
    publish_deadline(progress);
}

uint64_t wfi_timers_sleep_until(wfi_progress *progress, uint64_t until_ns)
{
    wfi_mutex_lock(&progress->lock);
    uint64_t next = atomic_load_explicit(&progress->next_deadline_ns, memory_order_relaxed);
    uint64_t earlier = next < until_ns ? next : until_ns;
    progress->sleep_until_ns = earlier;
    wfi_mutex_unlock(&progress->lock);
    return earlier;
}

size_t wfi_timers_fire(wfi_progress *progress)
{
    size_t fired = 0;
    while (progress->heap_count && progress->heap[1]->deadline_ns <= progress->now_ns) {
        wfi_timer *timer = progress->heap[1];
        wfi_timer_clear(progress, timer);
        timer->fire(timer);
        fired++;
    }
    return fired;
}
