/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_future_cancel.c - any, wait_any, wait_until, cancel; and callbacks that complete, chain, cancel and release
 * whatever they like, from many threads at once.
 */
#include "future/future.h"
#include "patience.h"
#include "unit.h"

#include <pthread.h>
#include <stdlib.h>

static weft_error *an_error(void)
{
    return weft_error_create(WEFT_ERR_SHAPE, "an error");
}

static void count_drop(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void assert_cancelled(weft_future *future)
{
    assert_int_equal(weft_future_wait(future, 10000), WEFT_ERR_CANCELLED);
    assert_int_equal(weft_error_code(weft_future_error(future)), WEFT_ERR_CANCELLED);
}

/* ---- any ---- */

static void test_any_holds_the_first(void **s)
{
    weft_future *members[3], *any;
    atomic_int drops = 0;
    for (int i = 0; i < 3; i++)
        members[i] = weft_future_create(NULL);
    any = weft_future_when_any(members, 3);
    assert_false(weft_future_done(any));
    assert_int_equal(weft_future_complete(members[1], &drops, count_drop), WEFT_OK);
    assert_int_equal(weft_future_wait(any, 0), WEFT_OK);
    assert_ptr_equal(((weft_future **)weft_future_payload(any))[0], members[1]);
    assert_int_equal(weft_future_complete(members[0], NULL, NULL), WEFT_OK); /* too late to matter */
    for (int i = 0; i < 3; i++)
        weft_future_unref(members[i]); /* number 2 never completed: the collection has let go of it */
    assert_int_equal(drops, 0);
    weft_future_unref(any);
    assert_int_equal(drops, 1);
}

static void test_any_of_a_failed_and_of_a_complete_one(void **s)
{
    weft_future *members[2] = {weft_future_create(NULL), weft_future_create(NULL)}, *any;
    weft_error *error = an_error();
    assert_int_equal(weft_future_fail(members[1], error), WEFT_OK);
    any = weft_future_when_any(members, 2); /* one was complete before */
    assert_int_equal(weft_future_wait(any, 0), WEFT_OK);
    assert_ptr_equal(*(weft_future **)weft_future_payload(any), members[1]);
    weft_error_unref(error);
    weft_future_unref(any);
    weft_future_unref(members[0]);
    weft_future_unref(members[1]);
}

static void test_any_of_nothing_can_be_cancelled(void **s)
{
    weft_future *any = weft_future_when_any(NULL, 0);
    assert_int_equal(weft_future_wait(any, 1), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_future_cancel(any), WEFT_OK);
    assert_cancelled(any);
    weft_future_unref(any);
}

/* ---- Waiting ---- */

static void test_wait_any(void **s)
{
    weft_future *many[20];
    weft_error *error = an_error();
    size_t index = 99;
    for (int i = 0; i < 20; i++)
        many[i] = weft_future_create(NULL);
    assert_int_equal(weft_future_wait_any(many, 0, 1, &index), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_wait_any(many, 20, -2, &index), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_wait_any(many, 20, 1, &index), WEFT_ERR_TIMEOUT);
    assert_int_equal(index, 99);
    assert_int_equal(weft_future_fail(many[17], error), WEFT_OK);
    assert_int_equal(weft_future_wait_any(many, 20, PATIENCE_MS, &index), WEFT_OK);
    assert_int_equal(index, 17);
    weft_error_unref(error);
    for (int i = 0; i < 20; i++)
        weft_future_unref(many[i]);
}

static void *complete_one(void *future)
{
    weft_status status = weft_future_complete(future, NULL, NULL);
    return status ? future : NULL;
}

static void test_wait_any_wakes_up(void **s)
{
    weft_future *two[2] = {weft_future_create(NULL), weft_future_create(NULL)};
    pthread_t thread;
    size_t index;
    assert_int_equal(pthread_create(&thread, NULL, complete_one, two[1]), 0);
    assert_int_equal(weft_future_wait_any(two, 2, PATIENCE_MS, &index), WEFT_OK);
    assert_int_equal(index, 1);
    pthread_join(thread, NULL);
    weft_future_unref(two[0]);
    weft_future_unref(two[1]);
}

static void test_wait_until(void **s)
{
    weft_future *future = weft_future_create(NULL);
    uint64_t deadline = wfi_deadline(&wfi_clock_real, 20);
    assert_int_equal(weft_future_wait_until(future, deadline), WEFT_ERR_TIMEOUT);
    assert_true(wfi_now(&wfi_clock_real) >= deadline);
    assert_int_equal(weft_future_wait_until(future, 0), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_future_complete(future, NULL, NULL), WEFT_OK);
    assert_int_equal(weft_future_wait_until(future, 0), WEFT_OK);
    weft_future_unref(future);
}

/* ---- cancel ---- */

static void test_cancel_ones_own(void **s)
{
    weft_future *future = weft_future_create(NULL);
    atomic_int drops = 0;
    assert_int_equal(weft_future_cancel(future), WEFT_OK);
    assert_cancelled(future);
    assert_int_equal(weft_future_cancel(future), WEFT_ERR_COMPLETED);
    assert_int_equal(weft_future_complete(future, &drops, count_drop), WEFT_ERR_COMPLETED);
    assert_int_equal(drops, 1);
    weft_future_unref(future);
}

typedef struct owner {
    int holds, cancels;
} owner;

static void hold_owner(void *arg)
{
    ((owner *)arg)->holds++;
}

static void cancel_owner(void *arg, uint64_t id)
{
    assert_int_equal(id, 77);
    ((owner *)arg)->cancels++;
}

static void test_cancel_asks_the_owner_once(void **s)
{
    static const wfi_canceller canceller = {hold_owner, cancel_owner};
    weft_future *future = weft_future_create(NULL);
    owner who = {0};
    wfi_future_set_canceller(future, &canceller, &who, 77);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weft_future_cancel(future), WEFT_OK);
        assert_int_equal(who.holds, 1);
        assert_int_equal(who.cancels, 1);
    }
    assert_int_equal(weft_future_complete(future, NULL, NULL), WEFT_OK);
    assert_int_equal(weft_future_cancel(future), WEFT_ERR_COMPLETED);
    assert_int_equal(who.holds, 1);
    weft_future_unref(future);
}

static weft_status pass_on(weft_future *parent, weft_future *child, void *arg)
{
    weft_status status = weft_future_complete(child, NULL, NULL);
    atomic_fetch_add((atomic_int *)arg, 1 + (status == WEFT_ERR_COMPLETED));
    return WEFT_OK;
}

static void test_cancel_of_a_then_leaves_the_parent_alone(void **s)
{
    weft_future *parent = weft_future_create(NULL), *child;
    atomic_int ran = 0, ran_after = 0, dropped = 0;
    child = weft_future_then(parent, pass_on, &ran, NULL);
    assert_int_equal(weft_future_cancel(child), WEFT_OK);
    assert_cancelled(child);
    assert_int_equal(weft_future_cancel(child), WEFT_ERR_COMPLETED);
    assert_false(weft_future_done(parent));
    assert_int_equal(weft_future_complete(parent, NULL, NULL), WEFT_OK);
    weft_future *after = weft_future_then(parent, pass_on, &ran_after, NULL);
    weft_future *last = weft_future_then(after, pass_on, &dropped, NULL);
    assert_int_equal(weft_future_wait(last, 10000), WEFT_OK);
    assert_comes(atomic_load(&dropped) == 1); /* it counts after it completed */
    assert_comes(atomic_load(&ran_after) == 1);
    assert_int_equal(ran, 0); /* it would have run before `after` */
    weft_future_unref(last);
    weft_future_unref(after);
    weft_future_unref(child);
    weft_future_unref(parent);
}

/* What a cancelled child held goes at once, though its parent lives on and may complete only in a year. */
static void test_cancel_of_a_then_unlinks_it(void **s)
{
    enum { COUNT = 1000 };
    weft_future *parent = weft_future_create(NULL), *children[COUNT];
    atomic_int ran = 0, drops = 0;
    for (int i = 0; i < COUNT; i++)
        assert_non_null(children[i] = weft_future_then(parent, pass_on, &drops, count_drop));
    for (int i = 0; i < COUNT; i += 2) { /* every other one, and last to first */
        assert_int_equal(weft_future_cancel(children[COUNT - 1 - i]), WEFT_OK);
        assert_int_equal(atomic_load(&drops), i / 2 + 1);
    }
    for (int i = 0; i < COUNT; i++)
        weft_future_unref(children[i]);
    assert_int_equal(drops, COUNT / 2); /* the others have still somebody to run for */
    weft_future *after = weft_future_then(parent, pass_on, &ran, NULL);
    assert_int_equal(weft_future_complete(parent, NULL, NULL), WEFT_OK);
    weft_future_unref(parent);
    assert_int_equal(weft_future_wait(after, 10000), WEFT_OK);
    assert_comes(atomic_load(&drops) == COUNT + COUNT / 2 &&
                 atomic_load(&ran) == 1); /* each of these has run, then dropped */
    weft_future_unref(after);
}

typedef struct cancel_race {
    weft_future *children[64];
    pthread_barrier_t start;
    atomic_int drops;
} cancel_race;

static weft_status complete_child(weft_future *parent, weft_future *child, void *arg)
{
    weft_status status = weft_future_complete(child, NULL, NULL);
    return status == WEFT_ERR_COMPLETED ? WEFT_OK : status;
}

static void *cancel_all(void *arg)
{
    cancel_race *race = arg;
    pthread_barrier_wait(&race->start);
    for (int i = 0; i < 64; i++) {
        weft_status status = weft_future_cancel(race->children[i]);
        (void)status; /* the parent's end races for each */
        weft_future_unref(race->children[i]);
    }
    return NULL;
}

/* The parent completes, or goes incomplete, while another thread cancels its children: each is dropped once, whoever
 * is first. */
static void test_cancel_of_a_then_races_the_parents_end(void **s)
{
    for (int round = 0; round < 100; round++) {
        weft_future *parent = weft_future_create(NULL);
        cancel_race race = {.drops = 0};
        pthread_t thread;
        pthread_barrier_init(&race.start, NULL, 2);
        for (int i = 0; i < 64; i++)
            race.children[i] = weft_future_then(parent, complete_child, &race.drops, count_drop);
        assert_int_equal(pthread_create(&thread, NULL, cancel_all, &race), 0);
        pthread_barrier_wait(&race.start);
        weft_status status = round % 2 ? weft_future_complete(parent, NULL, NULL) : WEFT_OK;
        assert_int_equal(status, WEFT_OK);
        weft_future_unref(parent);
        pthread_join(thread, NULL);
        assert_comes(atomic_load(&race.drops) >= 64);
        assert_int_equal(race.drops, 64);
        pthread_barrier_destroy(&race.start);
    }
}

/* ---- Whose to complete ---- */

static void test_collections_are_not_the_users_to_complete(void **s)
{
    weft_error *error = an_error();
    atomic_int drops = 0;
    for (int any = 0; any < 2; any++) {
        weft_future *member = weft_future_create(NULL);
        weft_future *whole = any ? weft_future_when_any(&member, 1) : weft_future_when_all(&member, 1);
        assert_int_equal(weft_future_complete(whole, &drops, count_drop), WEFT_ERR_STATE);
        assert_int_equal(drops, 2 * any + 1);
        assert_int_equal(weft_future_fail(whole, error), WEFT_ERR_STATE);
        assert_false(weft_future_done(whole));
        assert_int_equal(weft_future_complete(member, NULL, NULL), WEFT_OK);
        assert_int_equal(weft_future_wait(whole, 0), WEFT_OK);
        assert_ptr_equal(*(weft_future **)weft_future_payload(whole), member);
        assert_int_equal(weft_future_complete(whole, &drops, count_drop), WEFT_ERR_COMPLETED);
        assert_int_equal(drops, 2 * any + 2);
        weft_future_unref(whole);
        weft_future_unref(member);
    }
    weft_error_unref(error);
}

static void count_done(weft_future *future, void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void test_null_is_refused(void **s)
{
    weft_future *future = weft_future_create(NULL), *half[2] = {future, NULL};
    weft_error *error = an_error();
    atomic_int drops = 0;
    size_t index = 7;
    assert_null(weft_future_when_all(NULL, 2));
    assert_null(weft_future_when_any(NULL, 2));
    assert_null(weft_future_when_all(half, 2));
    assert_null(weft_future_when_any(half, 2));
    assert_int_equal(weft_future_wait_all(half, 2, 10), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_wait_any(half, 2, 10, &index), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_wait_any(NULL, 1, 10, &index), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_wait_any(half, 1, 10, NULL), WEFT_ERR_INVALID);
    assert_int_equal(index, 7);
    assert_int_equal(weft_future_add_done_callback(future, NULL, &drops, count_drop), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_add_done_callback(NULL, count_done, &drops, count_drop), WEFT_ERR_INVALID);
    assert_null(weft_future_then(future, NULL, &drops, count_drop));
    assert_null(weft_future_then(NULL, pass_on, &drops, count_drop));
    assert_int_equal(weft_future_complete(NULL, &drops, count_drop), WEFT_ERR_INVALID);
    assert_int_equal(drops, 5); /* what was to move in was dropped each time */
    assert_int_equal(weft_future_fail(NULL, error), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_wait(NULL, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_wait_until(NULL, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_cancel(NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_future_complete(future, NULL, NULL), WEFT_OK);
    weft_error_unref(error);
    weft_future_unref(future);
}

static void test_cancel_of_collections_cancels_the_members(void **s)
{
    for (int any = 0; any < 2; any++) {
        weft_future *members[3], *whole, *outer;
        for (int i = 0; i < 3; i++)
            members[i] = weft_future_create(NULL);
        assert_int_equal(weft_future_complete(members[2], NULL, NULL), WEFT_OK);
        whole = any ? weft_future_when_any(members, 2) : weft_future_when_all(members, 3);
        outer = weft_future_when_all(&whole, 1);
        assert_int_equal(weft_future_cancel(outer), WEFT_OK);
        assert_int_equal(weft_future_wait(outer, 10000), WEFT_OK);
        assert_int_equal(weft_future_wait(whole, 10000), WEFT_OK);
        assert_cancelled(members[0]);
        assert_cancelled(members[1]);
        assert_int_equal(weft_future_wait(members[2], 0), WEFT_OK);
        assert_int_equal(weft_future_cancel(outer), WEFT_ERR_COMPLETED);
        weft_future_unref(outer);
        weft_future_unref(whole);
        for (int i = 0; i < 3; i++)
            weft_future_unref(members[i]);
    }
}

static void test_cancel_runs_down_a_long_chain(void **s)
{
    weft_future *first = weft_future_create(NULL), *last = weft_future_ref(first);
    for (int i = 0; i < 100000; i++) {
        weft_future *next = i % 2 ? weft_future_when_any(&last, 1) : weft_future_when_all(&last, 1);
        assert_non_null(next);
        weft_future_unref(last);
        last = next;
    }
    assert_int_equal(weft_future_cancel(last), WEFT_OK);
    assert_cancelled(first);
    assert_int_equal(weft_future_wait(last, 10000), WEFT_OK);
    weft_future_unref(last);
    weft_future_unref(first);
}

/* Where the last reference to a collected future goes must not be where its last member completes: that place may
 * hold locks. */
typedef struct under_lock {
    pthread_mutex_t lock;
    atomic_int drops;
} under_lock;

static void drop_with_the_lock(void *arg)
{
    under_lock *u = arg;
    pthread_mutex_lock(&u->lock);
    pthread_mutex_unlock(&u->lock);
    atomic_fetch_add(&u->drops, 1);
}

static void test_what_a_collection_releases_takes_locks(void **s)
{
    under_lock u = {.lock = PTHREAD_MUTEX_INITIALIZER};
    for (int any = 0; any < 2; any++) {
        weft_future *members[2] = {weft_future_create(NULL), weft_future_create(NULL)};
        weft_future *whole = any ? weft_future_when_any(members, 2) : weft_future_when_all(members, 2);
        assert_int_equal(weft_future_complete(members[any], &u, drop_with_the_lock), WEFT_OK);
        weft_future_unref(whole);
        weft_future_unref(members[any]);
        pthread_mutex_lock(&u.lock);
        weft_status status = any ? WEFT_OK : weft_future_complete(members[1], NULL, NULL);
        pthread_mutex_unlock(&u.lock);
        assert_int_equal(status, WEFT_OK);
        weft_future_unref(members[!any]);
        assert_comes(atomic_load(&u.drops) == any + 1);
    }
}

/* ---- The storm ---- */

#define THREADS 4
#define STORM 400

typedef struct storm {
    weft_future *futures[STORM], *joined[STORM], *then[STORM];
    atomic_int calls, drops, continued, chained, unchained;
    pthread_barrier_t start;
} storm;

typedef struct deed {
    storm *storm;
    weft_future *other; /* a reference */
    int what;
} deed;

static void drop_deed(void *arg)
{
    deed *d = arg;
    atomic_fetch_add(&d->storm->drops, 1);
    weft_future_unref(d->other);
    free(d);
}

static void drop_chained(void *arg)
{
    storm *all = wfi_container_of((atomic_int *)arg, storm, continued);
    atomic_fetch_add(&all->unchained, 1);
}

static void do_deed(weft_future *future, void *arg)
{
    deed *d = arg;
    weft_status status = WEFT_OK;
    atomic_fetch_add(&d->storm->calls, 1);
    assert_true(weft_future_done(future));
    switch (d->what % 4) {
    case 0:
        status = weft_future_complete(d->other, NULL, NULL);
        break;
    case 1:
        status = weft_future_cancel(d->other);
        break;
    case 2:
        atomic_fetch_add(&d->storm->chained, 1);
        weft_future_unref(weft_future_then(d->other, pass_on, &d->storm->continued, drop_chained));
        break;
    default: { /* a collection that goes at once, and is cancelled by its way */
        weft_future *pair[2] = {future, d->other}, *join = weft_future_when_all(pair, 2);
        status = weft_future_cancel(join);
        weft_future_unref(join);
    }
    }
    (void)status; /* somebody else may have been first */
}

static void *rage(void *arg)
{
    storm *all = arg;
    pthread_barrier_wait(&all->start);
    for (int i = 0; i < STORM; i++) {
        weft_future *future = all->futures[i];
        deed *d = malloc(sizeof(*d));
        *d = (deed){all, weft_future_ref(all->futures[(i * 7 + 1) % STORM]), i};
        assert_int_equal(weft_future_add_done_callback(future, do_deed, d, drop_deed), WEFT_OK);
        weft_status status = WEFT_OK;
        if (i % 3 == 0)
            status = weft_future_complete(future, NULL, NULL);
        else if (i % 3 == 1)
            status = weft_future_cancel(future);
        else
            status = weft_future_cancel(all->joined[i]);
        (void)status; /* four threads race for each */
    }
    return NULL;
}

static void test_storm(void **s)
{
    storm all = {.calls = 0};
    pthread_t threads[THREADS];
    pthread_barrier_init(&all.start, NULL, THREADS);
    for (int i = 0; i < STORM; i++)
        all.futures[i] = weft_future_create(NULL);
    for (int i = 0; i < STORM; i++) {
        weft_future *some[3] = {all.futures[i], all.futures[(i + 1) % STORM], all.futures[(i + 5) % STORM]};
        all.joined[i] = i % 2 ? weft_future_when_any(some, 3) : weft_future_when_all(some, 3);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, rage, &all), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < STORM; i++) { /* an `any` that was complete has cancelled nobody */
        weft_status status = weft_future_cancel(all.futures[i]);
        (void)status;
    }
    assert_true(weft_future_wait_all(all.joined, STORM, 20000) == WEFT_OK);
    for (int i = 0; i < STORM; i++)
        assert_true(weft_future_wait(all.futures[i], 20000) != WEFT_ERR_TIMEOUT);
    assert_comes(atomic_load(&all.drops) == THREADS * STORM &&
                 atomic_load(&all.unchained) == atomic_load(&all.chained));
    assert_int_equal(all.calls, THREADS * STORM);
    for (int i = 0; i < STORM; i++) {
        weft_future_unref(all.joined[i]);
        weft_future_unref(all.futures[i]);
    }
    pthread_barrier_destroy(&all.start);
}

UNIT_MAIN(test_any_holds_the_first, test_any_of_a_failed_and_of_a_complete_one, test_any_of_nothing_can_be_cancelled,
          test_wait_any, test_wait_any_wakes_up, test_wait_until, test_cancel_ones_own, test_cancel_asks_the_owner_once,
          test_cancel_of_a_then_leaves_the_parent_alone, test_cancel_of_a_then_unlinks_it,
          test_cancel_of_a_then_races_the_parents_end, test_collections_are_not_the_users_to_complete,
          test_null_is_refused, test_cancel_of_collections_cancels_the_members, test_cancel_runs_down_a_long_chain,
          test_what_a_collection_releases_takes_locks, test_storm)
