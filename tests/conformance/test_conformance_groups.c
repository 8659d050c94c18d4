/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_groups.c - item 28: barriers and all-gathers over all workers, some, several at once, and too
 * late. */
#include "conformance/conformance.h"

#include <pthread.h>
#include <stdlib.h>

#include "tensors.h"
#include "unit.h"

static const weft_function functions[] = {COMMON_FUNCTIONS};

static atomic_int entered[32], left_count;

static void reset(void)
{
    for (int i = 0; i < 32; i++)
        atomic_store(&entered[i], 0);
    atomic_store(&left_count, 0);
}

static weft_group *group_of(weft_agent *agent, const char *name, const int *ranks, size_t count)
{
    weft_group *group = NULL;
    MUST_OK(weft_group_open(agent, name, ranks, count, 0, &group, NULL));
    return group;
}

/* Nobody leaves before all have come. */
static void meet(weft_group *group, int round)
{
    atomic_fetch_add(&entered[round], 1);
    MUST_OK(weft_group_barrier(group, ITEM_PATIENCE_MS));
    MUST(atomic_load(&entered[round]) == (int)weft_group_size(group));
}

/* ---- Barriers: over all, with calls in between; over a subset, which the others do not notice ----------------- */

static void all_meet(weft_agent *agent)
{
    weft_group *all = group_of(agent, "all", NULL, 0);
    MUST(weft_group_size(all) == WORKERS && weft_group_index(all) == weft_agent_rank(agent));
    for (int i = 0; i < WORKERS; i++)
        MUST(weft_group_member(all, (size_t)i) == i);
    MUST(weft_group_member(all, WORKERS) == -1);
    for (int round = 0; round < 8; round++) {
        if (weft_agent_rank(agent) == round % WORKERS)
            item_sleep_ms(3); /* each is late once */
        for (int to = 0; to < WORKERS; to++)
            tell(agent, weft_to_rank(to), "nothing", WEFT_NO_VALUES);
        meet(all, round);
    }
    weft_group_close(all);
}

static void some_meet(weft_agent *agent)
{
    static const int even[] = {2, 0}; /* in an order of their own */
    int rank = weft_agent_rank(agent);
    weft_group *some = NULL;
    if (rank % 2) {
        MUST(weft_group_open(agent, "even", even, 2, 0, &some, NULL) == WEFT_ERR_INVALID &&
             !some); /* not one of them */
        return;
    }
    some = group_of(agent, "even", even, 2);
    MUST(weft_group_index(some) == (rank == 2 ? 0 : 1) && weft_group_member(some, 0) == 2);
    for (int round = 8; round < 12; round++)
        meet(some, round);
    weft_group_close(some);
}

/* ---- Several at once, begun in another order on every worker -------------------------------------------------- */

enum { MANY = 4, ROUNDS = 5 };

static void many_at_once(weft_agent *agent)
{
    weft_group *groups[MANY];
    weft_future *futures[MANY];
    char name[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof(name), "many-%d", i);
        groups[i] = group_of(agent, name, NULL, 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < MANY; i++) {
            int turn = (i + weft_agent_rank(agent)) % MANY;
            MUST_OK(weft_group_barrier_async(groups[turn], ITEM_PATIENCE_MS, &futures[turn]));
        }
        MUST_OK(weft_future_wait_all(futures, MANY, WEFT_FOREVER));
        for (int i = 0; i < MANY; i++)
            weft_future_unref(futures[i]);
    }
    for (int i = 0; i < MANY; i++)
        weft_group_close(groups[i]);
}

typedef struct thread_of {
    weft_agent *agent;
    int number;
} thread_of;

static void *meet_in_thread(void *arg)
{
    const thread_of *self = arg;
    char name[16];
    snprintf(name, sizeof(name), "thread-%d", self->number);
    weft_group *group = group_of(self->agent, name, NULL, 0);
    for (int round = 0; round < ROUNDS; round++)
        meet(group, 12 + self->number * ROUNDS + round);
    weft_group_close(group);
    return NULL;
}

static void many_threads(weft_agent *agent)
{
    pthread_t threads[MANY];
    thread_of selves[MANY];
    for (int i = 0; i < MANY; i++) {
        selves[i] = (thread_of){agent, i};
        MUST(!pthread_create(&threads[i], NULL, meet_in_thread, &selves[i]));
    }
    for (int i = 0; i < MANY; i++)
        pthread_join(threads[i], NULL);
}

/* ---- All-gather ----------------------------------------------------------------------------------------------- */

static void gather(weft_agent *agent)
{
    int rank = weft_agent_rank(agent);
    weft_group *all = group_of(agent, "gather", NULL, 0);
    for (int round = 0; round < 5; round++) {
        weft_tensor *mine = tensor_full(WEFT_SHAPE(1 + 1000 * rank), WEFT_DTYPE_FLOAT32, rank + round);
        weft_values *got = NULL;
        weft_args list;
        MUST_OK(weft_group_allgather_values(all, WEFT_VALUES(weft_of_i64(rank), weft_of_tensor(mine)), ITEM_PATIENCE_MS,
                                            &got));
        weft_tensor_unref(mine);
        MUST(weft_values_count(got) == WORKERS);
        for (int i = 0; i < WORKERS; i++) {
            MUST_OK(weft_values_get_list(got, (size_t)i, &list));
            MUST(list.count == 2 && list.items[0].as.i64 == i);
            MUST(weft_tensor_numel(list.items[1].as.tensor) == 1 + 1000 * i);
            MUST(weft_tensor_get_f64(list.items[1].as.tensor, 1000 * i) == i + round);
        }
        weft_values_unref(got);
    }
    weft_group_close(all);
}

/* One is too late: the others' time is over, all are told who it was, the group is over; the next one is everybody's
 * again. */
static void gather_late(weft_agent *agent)
{
    int rank = weft_agent_rank(agent);
    weft_values *got = NULL;
    weft_group *all = group_of(agent, "late", NULL, 0);
    if (rank == 1)
        item_await(&left_count, WORKERS - 1);
    MUST_BE(weft_group_allgather_values(all, WEFT_VALUES(weft_of_i64(rank)), rank == 1 ? ITEM_PATIENCE_MS : 30, &got),
            WEFT_ERR_TIMEOUT);
    MUST(!got && says(weft_group_error(all), "missing is rank 1 (has not called it)"));
    atomic_fetch_add(&left_count, rank != 1);
    weft_group_close(all);
    all = group_of(agent, "late", NULL, 0);
    MUST_OK(weft_group_allgather_values(all, WEFT_VALUES(weft_of_i64(rank)), ITEM_PATIENCE_MS, &got));
    MUST(weft_values_count(got) == WORKERS);
    weft_values_unref(got);
    weft_group_close(all);
}

static void meetings(weft_agent *agent, void *arg)
{
    all_meet(agent);
    some_meet(agent);
    many_at_once(agent);
    if (!item_sim())
        many_threads(agent);
    gather(agent);
    gather_late(agent);
}

ITEM(item_28_barriers_and_all_gathers, .program = meetings, .after = reset, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_28_barriers_and_all_gathers)
