/* SPDX-License-Identifier: Apache-2.0 */
/*
 * future_wait.c - waiting for one future or several.
 *
 * The waiting thread puts a node into each future's list. Then it sleeps, or makes progress on its agent's network,
 * until the completions have counted `pending` down, or one of them is a failure. It removes its nodes under each
 * future's lock; after that no future refers to its stack.
 */
#include "base/alloc.h"
#include "base/text/refuse.h"
#include "future/future_impl.h"

#include <stdlib.h>

#define WAITERS_ON_STACK 8
#define TURN_NS 1000000u /* if the futures have several drivers, each is used for this time in turn */

/* The future's driver; NULL after its executor has ended, because the driver may be freed. */
static wfi_driver *driver_of(const weft_future *future)
{
    return wfi_executor_has_ended(future->executor) ? NULL : future->driver;
}

static void enlist(weft_future *future, wfi_waiter *waiter, wfi_waiting *waiting)
{
    int none = WEFT_OK;
    waiter->waiting = waiting;
    wfi_list_init(&waiter->link);
    wfi_mutex_lock(&future->lock);
    if (!weft_future_done(future)) {
        wfi_list_push_back(&future->waiters, &waiter->link);
    } else {
        atomic_fetch_sub(&waiting->pending, 1);
        if (wfi_future_status(future) != WEFT_OK)
            atomic_compare_exchange_strong(&waiting->failure, &none, wfi_future_status(future));
    }
    wfi_mutex_unlock(&future->lock);
}

static void delist(weft_future *future, wfi_waiter *waiter)
{
    wfi_mutex_lock(&future->lock);
    wfi_list_remove(&waiter->link);
    waiter->waiting = NULL;
    wfi_mutex_unlock(&future->lock);
}

static bool is_done(const wfi_waiting *waiting)
{
    size_t pending = atomic_load(&waiting->pending);
    return pending == 0 || (waiting->any ? pending < waiting->count : atomic_load(&waiting->failure) != WEFT_OK);
}

/* The index of the next pending future after `at`, cyclically; `at` itself if none is pending. */
static size_t next_pending(weft_future *const *futures, size_t count, size_t at)
{
    size_t i;
    for (i = 1; i <= count; i++) {
        if (!weft_future_done(futures[(at + i) % count]))
            return (at + i) % count;
    }
    return at;
}

static bool one_driver(weft_future *const *futures, size_t count)
{
    size_t i;
    for (i = 1; i < count && driver_of(futures[i]) == driver_of(futures[0]); i++)
        continue;
    return i == count;
}

/* While a fiber slept, the executor may have ended. */
static bool is_woken(const weft_future *future, const wfi_waiting *waiting)
{
    wfi_driver *driver = driver_of(future);
    return waiting->of_program && driver && atomic_load(&driver->woken);
}

/* Sleeps or drives once. WEFT_ERR_DEADLOCK: a wait on this thread would never end. WEFT_ERR_CANCELLED: weft_agent_wake
 * was called. */
static weft_status wait_turn(const weft_future *future, wfi_waiting *waiting, uint64_t until)
{
    wfi_visit visit;
    weft_status status = WEFT_OK;
    if (!future->driver || !wfi_executor_enter(future->executor, &visit, &waiting->parker)) {
        wfi_park(&waiting->parker, until);
        return WEFT_OK;
    }
    waiting->parker.has_spun = future->has_spun;
    if (!is_woken(future, waiting) &&
        (!wfi_driver_suits(future->driver) || !future->driver->drive(future->driver, &waiting->parker, until)))
        status = WEFT_ERR_DEADLOCK;
    else if (is_woken(future, waiting))
        status = WEFT_ERR_CANCELLED;
    wfi_executor_leave(future->executor, &visit);
    return status;
}

/* Waits until is_done. WEFT_ERR_TIMEOUT, WEFT_ERR_DEADLOCK, WEFT_ERR_CANCELLED. Futures of several agents have
 * several drivers, which drive in turns. Each has one turn at least, because a wait with a timeout of 0 makes
 * progress too. */
static weft_status wait_enlisted(weft_future *const *futures, size_t count, wfi_waiting *waiting, uint64_t deadline)
{
    const wfi_clock *clock = wfi_park_clock();
    bool single = one_driver(futures, count);
    size_t at = single ? 0 : count - 1, turns_due = single ? 1 : count;
    do {
        uint64_t until = deadline;
        turns_due -= turns_due > 0;
        if (!single) {
            at = next_pending(futures, count, at);
            uint64_t turn_ends = wfi_now(clock) + TURN_NS;
            until = turn_ends < deadline ? turn_ends : deadline;
        }
        if (is_done(waiting))
            return WEFT_OK;
        weft_status status = wait_turn(futures[at], waiting, until);
        if (status)
            return is_done(waiting) ? WEFT_OK : status;
        /* If all visitors were unparked, and this one continues: consumes the permit, so that it can sleep again. */
        if (!is_done(waiting) && wfi_parker_is_unparked(&waiting->parker))
            (void)wfi_park(&waiting->parker, 0);
    } while (!is_done(waiting) && (turns_due || deadline == WFI_NEVER || wfi_now(clock) < deadline));
    return is_done(waiting) ? WEFT_OK : WEFT_ERR_TIMEOUT;
}

typedef struct wait_form {
    bool any, of_program;
} wait_form;

static weft_status wait_with(weft_future *const *futures, size_t count, wfi_waiter *waiters, wait_form how,
                             uint64_t deadline)
{
    bool any = how.any;
    wfi_waiting waiting = {.count = count, .any = any, .failure = WEFT_OK};
    weft_status status = WEFT_OK;
    size_t i;
    wfi_parker_init(&waiting.parker);
    atomic_init(&waiting.pending, count);
    waiting.of_program = how.of_program && !wfi_executor_current(); /* not in handlers and continuations */
    for (i = 0; i < count; i++)
        enlist(futures[i], &waiters[i], &waiting);
    if (!is_done(&waiting)) {
        wfi_executor_block_begin();
        status = wait_enlisted(futures, count, &waiting, deadline);
        wfi_executor_block_end();
    }
    for (i = 0; i < count; i++)
        delist(futures[i], &waiters[i]);
    return status != WEFT_OK || any ? status : (weft_status)atomic_load(&waiting.failure);
}

weft_status wfi_futures_check(const char *function, weft_future *const *futures, size_t count)
{
    size_t i = 0;
    while (futures && i < count && futures[i])
        i++;
    if (i == count)
        return WEFT_OK;
    return !futures ? wfi_refuse(WEFT_ERR_INVALID, "%s: the list of %zu futures is NULL", function, count)
                    : wfi_refuse(WEFT_ERR_INVALID, "%s: future %zu of %zu is NULL", function, i, count);
}

static weft_status check_wait(const char *function, weft_future *const *futures, size_t count, int64_t wait_ms)
{
    return wait_ms < WEFT_FOREVER ? wfi_refuse_wait(function, wait_ms) : wfi_futures_check(function, futures, count);
}

static weft_status wait_for(weft_future *future, bool of_program, uint64_t deadline_ns)
{
    wfi_waiter waiter;
    if (weft_future_done(future))
        return wfi_future_status(future);
    return wait_with(&future, 1, &waiter, (wait_form){.of_program = of_program}, deadline_ns);
}

weft_status weft_future_wait_until(weft_future *future, uint64_t deadline_ns)
{
    WFI_CHECK_HANDLE(future);
    return future ? wait_for(future, true, deadline_ns) : wfi_refuse_null("weft_future_wait_until", "the future");
}

weft_status wfi_future_wait_until(weft_future *future, uint64_t deadline_ns)
{
    return wait_for(future, false, deadline_ns);
}

weft_status weft_future_wait(weft_future *future, int64_t wait_ms)
{
    WFI_CHECK_HANDLE(future);
    if (!future || wait_ms < WEFT_FOREVER)
        return !future ? wfi_refuse_null("weft_future_wait", "the future")
                       : wfi_refuse_wait("weft_future_wait", wait_ms);
    if (weft_future_done(future))
        return wfi_future_status(future);
    return wait_for(future, true, wfi_deadline(wfi_park_clock(), wait_ms));
}

weft_status wfi_future_wait(weft_future *future, int64_t wait_ms)
{
    if (weft_future_done(future))
        return wfi_future_status(future);
    return wait_for(future, false, wfi_deadline(wfi_park_clock(), wait_ms));
}

/* Waits for all of several futures, or for any of them. */
static weft_status wait_several(weft_future *const *futures, size_t count, wait_form how, int64_t wait_ms)
{
    wfi_waiter few[WAITERS_ON_STACK], *waiters = few;
    weft_status status;
    if (count > WAITERS_ON_STACK)
        waiters = wfi_calloc(count, sizeof(*waiters));
    if (!waiters)
        return WEFT_ERR_MEMORY;
    status = wait_with(futures, count, waiters, how, wfi_deadline(wfi_park_clock(), wait_ms));
    if (waiters != few)
        free(waiters);
    return status;
}

weft_status weft_future_wait_all(weft_future *const *futures, size_t count, int64_t wait_ms)
{
    weft_status status = check_wait("weft_future_wait_all", futures, count, wait_ms);
    if (status != WEFT_OK)
        return status;
    return count == 0 ? WEFT_OK : wait_several(futures, count, (wait_form){.of_program = true}, wait_ms);
}

static size_t first_done(weft_future *const *futures, size_t count)
{
    size_t i = 0;
    while (i < count && !weft_future_done(futures[i]))
        i++;
    return i;
}

static weft_status wait_any(weft_future *const *futures, size_t count, bool of_program, int64_t wait_ms, size_t *index)
{
    weft_status status = WEFT_OK;
    size_t first = first_done(futures, count);
    if (first == count) {
        status = wait_several(futures, count, (wait_form){.any = true, .of_program = of_program}, wait_ms);
        first = first_done(futures, count); /* even after a timeout one may be complete */
    }
    if (first == count)
        return status;
    *index = first;
    return WEFT_OK;
}

weft_status weft_future_wait_any(weft_future *const *futures, size_t count, int64_t wait_ms, size_t *index)
{
    weft_status status = check_wait("weft_future_wait_any", futures, count, wait_ms);
    if (status != WEFT_OK)
        return status;
    if (!index)
        return wfi_refuse_null("weft_future_wait_any", "index");
    if (count == 0)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_future_wait_any: the list is empty: pass at least one future");
    return wait_any(futures, count, true, wait_ms, index);
}

weft_status wfi_future_wait_any(weft_future *const *futures, size_t count, int64_t wait_ms, size_t *index)
{
    return wait_any(futures, count, false, wait_ms, index);
}
