/* SPDX-License-Identifier: Apache-2.0 */
/* test_future_abandoned.c - futures that nobody can complete any more: what was made of them ends, and nothing is
 * kept. */
#include "future/future.h"
#include "patience.h"
#include "unit.h"
#include "prng.h"

#include <pthread.h>
#include <stdlib.h>

typedef weft_future *(*join_fn)(weft_future *const *futures, size_t count);
static const join_fn joins[] = {weft_future_when_all, weft_future_when_any};

static atomic_int drops;

static void count_drop(void *arg)
{
    atomic_fetch_add(&drops, 1);
}

static void do_nothing(weft_future *future, void *arg) {}

/* One that says when it goes. */
static weft_future *make(void)
{
    weft_future *future = wfi_future_create(NULL, NULL);
    assert_int_equal(weft_future_add_done_callback(future, do_nothing, NULL, count_drop), WEFT_OK);
    return future;
}

static weft_future *make_complete(void)
{
    weft_future *future = wfi_future_create(NULL, NULL);
    assert_int_equal(weft_future_complete(future, &drops, count_drop), WEFT_OK);
    return future;
}

static void await_drops(int count)
{
    assert_comes(atomic_load(&drops) >= count); /* some are dropped by the executor */
    assert_int_equal(drops, count);
    atomic_store(&drops, 0);
}

static void what_is_made_of_it_fails(void **state)
{
    for (size_t i = 0; i < 2; i++) {
        weft_future *one = make(), *joined = joins[i](&one, 1);
        weft_future_unref(one);
        assert_int_equal(await_future(joined), WEFT_ERR_CANCELLED);
        weft_future_unref(joined);
        await_drops(1);
    }
}

static void nothing_is_kept_if_all_are_let_go(void **state)
{
    for (size_t i = 0; i < 2; i++) {
        for (int joined_first = 0; joined_first < 2; joined_first++) {
            weft_future *members[] = {make(), make_complete(), make()}, *joined = joins[i](members, 3);
            if (joined_first)
                weft_future_unref(joined);
            for (int k = 0; k < 3; k++)
                weft_future_unref(members[k]);
            if (!joined_first)
                weft_future_unref(joined);
            await_drops(3);
        }
    }
}

static void any_needs_one_that_is_left(void **state)
{
    weft_future *members[] = {make(), make()}, *any = weft_future_when_any(members, 2), *all;
    all = weft_future_when_all(members, 2);
    weft_future_unref(members[0]);
    assert_int_equal(await_future(all), WEFT_ERR_CANCELLED);
    assert_int_equal(weft_future_wait(any, 0), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_future_complete(members[1], &drops, count_drop), WEFT_OK);
    assert_int_equal(await_future(any), WEFT_OK);
    assert_ptr_equal(((weft_future **)weft_future_payload(any))[0], members[1]);
    weft_future_unref(members[1]);
    weft_future_unref(any);
    weft_future_unref(all);
    await_drops(3);
}

static void one_that_stands_there_twice_is_dropped_once(void **state)
{
    weft_future *one = make(), *twice[] = {one, one}, *joined = weft_future_when_all(twice, 2);
    weft_future_unref(one);
    assert_int_equal(await_future(joined), WEFT_ERR_CANCELLED);
    weft_future_unref(joined);
    await_drops(1);
}

static void a_long_chain_ends_without_deep_recursion(void **state)
{
    weft_future *first = make(), *last = weft_future_ref(first);
    for (int i = 0; i < 50000; i++) {
        weft_future *next = weft_future_when_all(&last, 1);
        weft_future_unref(last);
        last = next;
    }
    weft_future_unref(first);
    assert_true(weft_future_done(last)); /* the second of the chain failed, which completes the third, and so on */
    weft_future_unref(last);
    await_drops(1);
}

/* ---- Many threads ---- */

#define MEMBERS 6
#define ROUNDS 2000

typedef struct round {
    weft_future *members[MEMBERS], *joined[2];
    pthread_barrier_t *start;
    unsigned seed;
} round_state;

/* Each member is completed or not, and let go. */
static void *end_members(void *arg)
{
    round_state *r = arg;
    pthread_barrier_wait(r->start);
    for (int i = 0; i < MEMBERS; i++) {
        weft_status status = r->seed >> i & 1 ? weft_future_complete(r->members[i], NULL, NULL) : WEFT_OK;
        (void)status; /* it may have been cancelled */
        weft_future_unref(r->members[i]);
    }
    return NULL;
}

static void *end_joined(void *arg)
{
    round_state *r = arg;
    pthread_barrier_wait(r->start);
    for (int i = 0; i < 2; i++) {
        weft_status status = r->seed >> (MEMBERS + i) & 1 ? weft_future_cancel(r->joined[i]) : WEFT_OK;
        if (r->seed >> (MEMBERS + 2) & 1)
            status = await_future(r->joined[i]); /* all of its members end */
        (void)status;
        weft_future_unref(r->joined[i]);
    }
    return NULL;
}

static void members_and_what_they_make_go_at_once(void **state)
{
    pthread_barrier_t start;
    uint64_t seed = 1;
    pthread_barrier_init(&start, NULL, 2);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t threads[2];
        round_state r = {.start = &start, .seed = (unsigned)prng_next(&seed)};
        for (int k = 0; k < MEMBERS; k++)
            r.members[k] = make();
        for (int k = 0; k < 2; k++)
            r.joined[k] = joins[k](r.members, MEMBERS);
        pthread_create(&threads[0], NULL, end_members, &r);
        pthread_create(&threads[1], NULL, end_joined, &r);
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
    }
    await_drops(ROUNDS * MEMBERS);
    pthread_barrier_destroy(&start);
}

UNIT_MAIN(what_is_made_of_it_fails, nothing_is_kept_if_all_are_let_go, any_needs_one_that_is_left,
          one_that_stands_there_twice_is_dropped_once, a_long_chain_ends_without_deep_recursion,
          members_and_what_they_make_go_at_once)
