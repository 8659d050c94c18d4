/* SPDX-License-Identifier: Apache-2.0 */
/* test_future_stress.c - futures between many threads: complete against wait against add callback; nested waits. */
#include "future/future.h"
#include "patience.h"
#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#define FUTURES 500
#define THREADS 4

typedef struct shared {
    weft_future *futures[FUTURES];
    atomic_int completed, refused, called, dropped, waited;
    pthread_barrier_t start;
} shared;

static void note_call(weft_future *future, void *arg)
{
    shared *all = arg;
    if (weft_future_done(future))
        atomic_fetch_add(&all->called, 1);
}

static void note_drop(void *arg)
{
    shared *all = arg;
    atomic_fetch_add(&all->dropped, 1);
}

static void *race(void *arg)
{
    shared *all = arg;
    int i;
    pthread_barrier_wait(&all->start);
    for (i = 0; i < FUTURES; i++) {
        weft_future *future = all->futures[i];
        weft_status status = weft_future_add_done_callback(future, note_call, all, note_drop);
        if (status == WEFT_OK && (status = weft_future_complete(future, all, NULL)) == WEFT_OK)
            atomic_fetch_add(&all->completed, 1);
        else if (status == WEFT_ERR_COMPLETED)
            atomic_fetch_add(&all->refused, 1);
    }
    return NULL;
}

static void *wait_each(void *arg)
{
    shared *all = arg;
    int i;
    pthread_barrier_wait(&all->start);
    for (i = 0; i < FUTURES; i++) {
        while (weft_future_wait(all->futures[i], i % 3 == 0 ? 0 : WEFT_FOREVER) == WEFT_ERR_TIMEOUT)
            continue;
        atomic_fetch_add(&all->waited, 1);
        weft_future_unref(all->futures[i]); /* this thread's reference: perhaps the last one */
    }
    return NULL;
}

static void every_future_completes_once_and_tells_all(void **state)
{
    wfi_executor_options options = {.workers = 2};
    wfi_executor *executor = NULL;
    static shared all;
    pthread_t racers[THREADS], waiters[THREADS];
    int i;
    assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
    pthread_barrier_init(&all.start, NULL, 2 * THREADS);
    for (i = 0; i < FUTURES; i++) {
        int k;
        all.futures[i] = wfi_future_create(executor, NULL);
        for (k = 0; k < THREADS; k++)
            weft_future_ref(all.futures[i]);
    }
    for (i = 0; i < THREADS; i++) {
        pthread_create(&racers[i], NULL, race, &all);
        pthread_create(&waiters[i], NULL, wait_each, &all);
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(racers[i], NULL);
        pthread_join(waiters[i], NULL);
    }
    assert_int_equal(weft_future_wait_all(all.futures, FUTURES, PATIENCE_MS), WEFT_OK);
    for (i = 0; i < FUTURES; i++)
        weft_future_unref(all.futures[i]);
    wfi_executor_destroy(executor);
    assert_int_equal(all.completed, FUTURES);
    assert_int_equal(all.refused, FUTURES * (THREADS - 1));
    assert_int_equal(all.waited, FUTURES * THREADS);
    assert_int_equal(all.called, FUTURES * THREADS);
    assert_int_equal(all.dropped, FUTURES * THREADS);
    pthread_barrier_destroy(&all.start);
}

static void *complete_all(void *arg)
{
    weft_future **futures = arg;
    int i;
    for (i = 0; i < FUTURES; i++) {
        if (weft_future_complete(futures[i], NULL, NULL) != WEFT_OK)
            abort();
    }
    return NULL;
}

static void wait_all_and_collect_all_race_with_completion(void **state)
{
    int round, i;
    for (round = 0; round < 20; round++) {
        weft_future *futures[FUTURES], *all;
        pthread_t thread;
        for (i = 0; i < FUTURES; i++)
            futures[i] = wfi_future_create(NULL, NULL);
        pthread_create(&thread, NULL, complete_all, futures);
        all = weft_future_when_all(futures, FUTURES);
        assert_int_equal(weft_future_wait_all(futures, FUTURES, PATIENCE_MS), WEFT_OK);
        assert_int_equal(await_future(all), WEFT_OK);
        weft_future_unref(all);
        pthread_join(thread, NULL);
        for (i = 0; i < FUTURES; i++)
            weft_future_unref(futures[i]);
    }
}

/* Each continuation makes a future that another task of the same executor completes, and waits for it. */
static weft_status wait_deeper(weft_future *parent, weft_future *child, void *arg)
{
    wfi_executor *executor = wfi_executor_current();
    uintptr_t depth = (uintptr_t)arg;
    weft_future *start, *next;
    weft_status status;
    if (depth == 0)
        return weft_future_complete(child, (void *)1, NULL);
    start = wfi_future_create(executor, NULL);
    next = weft_future_then(start, wait_deeper, (void *)(depth - 1), NULL);
    status = weft_future_complete(start, NULL, NULL);
    if (status == WEFT_OK)
        status = await_future(next);
    weft_future_unref(start);
    weft_future_unref(next);
    return status == WEFT_OK ? weft_future_complete(child, (void *)1, NULL) : status;
}

static void continuations_may_wait_for_each_other_on_one_worker(void **state)
{
    wfi_executor_options options = {.workers = 1};
    wfi_executor *executor = NULL;
    weft_future *first, *last;
    assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
    first = wfi_future_create(executor, NULL);
    last = weft_future_then(first, wait_deeper, (void *)40, NULL);
    assert_int_equal(weft_future_complete(first, NULL, NULL), WEFT_OK);
    assert_int_equal(await_future(last), WEFT_OK);
    weft_future_unref(first);
    weft_future_unref(last);
    wfi_executor_destroy(executor);
}

static atomic_int last_dropped;

static void drop_the_last(weft_future *future, void *arg)
{
    weft_future_unref(future);
    atomic_fetch_add(&last_dropped, 1);
}

/* The callback may run, and drop the last reference, before the function that registers it has returned. */
static void a_callback_may_drop_the_last_reference(void **state)
{
    enum { TIMES = 20000 };
    for (int i = 0; i < TIMES; i++) {
        weft_future *future = wfi_future_create(NULL, NULL);
        assert_int_equal(wfi_future_complete(future, NULL, NULL), WEFT_OK);
        assert_int_equal(weft_future_add_done_callback(future, drop_the_last, NULL, NULL), WEFT_OK);
    }
    while (atomic_load(&last_dropped) < TIMES)
        sched_yield();
}

typedef struct stopped {
    weft_future *future;
    atomic_bool is_over;
} stopped;

static bool drive(wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns)
{
    return true;
}

static void *poll_future(void *arg)
{
    stopped *self = arg;
    while (!atomic_load(&self->is_over)) {
        if (weft_future_wait(self->future, 0) != WEFT_ERR_TIMEOUT)
            abort();
    }
    return NULL;
}

/* As weft_agent_stop does: the driver's memory is gone when the executor has ended. */
static void threads_wait_while_the_driver_is_freed(void **state)
{
    for (int round = 0; round < 100; round++) {
        wfi_driver *driver = mmap(NULL, sizeof(*driver), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        wfi_executor *executor = NULL;
        pthread_t waiters[THREADS];
        stopped self = {0};
        assert_true(driver != MAP_FAILED);
        driver->drive = drive;
        assert_int_equal(wfi_executor_create(&(wfi_executor_options){.workers = 1}, &executor), WEFT_OK);
        self.future = wfi_future_create(executor, driver);
        for (int i = 0; i < THREADS; i++)
            pthread_create(&waiters[i], NULL, poll_future, &self);
        sched_yield();
        wfi_executor_destroy(executor);
        munmap(driver, sizeof(*driver));
        atomic_store(&self.is_over, true);
        for (int i = 0; i < THREADS; i++)
            pthread_join(waiters[i], NULL);
        weft_future_unref(self.future);
    }
}

UNIT_MAIN(every_future_completes_once_and_tells_all, wait_all_and_collect_all_race_with_completion,
          continuations_may_wait_for_each_other_on_one_worker, a_callback_may_drop_the_last_reference,
          threads_wait_while_the_driver_is_freed)
