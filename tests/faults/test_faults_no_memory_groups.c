/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults_no_memory_groups.c - one member of three is refused memory while they meet, the kth request for every
 * k, then each nth: every operation ends in bounded time, with the right result or an error that fits; and in the
 * next group, with memory, all meet. The one in want gathers, or does not.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "faults/no_memory.h"

#include <stdatomic.h>
#include <string.h>

#include "tensors.h"
#include "unit.h"

enum { SIZE = 3, VICTIM = 1, NUMBERS = 2000, LIMIT_MS = 200, BOUND_MS = 30000 };

static struct shared {
    world *w;
    atomic_int come; /* to the places where the test itself waits for all */
    _Atomic uint64_t refused;
    atomic_int good, failed;
} shared;

/* The test's own barrier, which needs no memory. */
static void gather_round(void)
{
    int mine = atomic_fetch_add(&shared.come, 1);
    while (atomic_load(&shared.come) < (mine / SIZE + 1) * SIZE)
        world_sleep_ms(shared.w, 1);
}

/* What want of memory can do: that one's own failure, and what the others see of it; STATE where the group is broken
 * by it. */
static bool is_fitting(weft_status status)
{
    return status == WEFT_ERR_MEMORY || status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_CANCELLED ||
           status == WEFT_ERR_STATE;
}

static bool went_well(const char *what, weft_status status, bool may_fail)
{
    if (!status)
        return true;
    if (!may_fail || !is_fitting(status)) {
        fprintf(stderr, "%s (%s): %s\n", what, may_fail ? "scarce" : "plenty", weft_status_name(status));
        abort();
    }
    return false;
}

static void check(const weft_values *got)
{
    MUST(weft_values_count(got) == SIZE);
    for (int i = 0; i < SIZE; i++) {
        weft_args list;
        MUST_OK(weft_values_get_list(got, (size_t)i, &list));
        MUST(list.count == 2 && list.items[0].as.i64 == i);
        const int32_t *numbers = weft_tensor_data(list.items[1].as.tensor);
        MUST(weft_tensor_numel(list.items[1].as.tensor) == NUMBERS && numbers[0] == i && numbers[NUMBERS - 1] == i);
    }
}

/* What could not be started has its number all the same, and the others are told. */
static weft_future *start(weft_group *group, weft_tensor *mine, bool may_fail)
{
    int64_t limit_ms = may_fail ? LIMIT_MS : BOUND_MS;
    weft_args args = WEFT_VALUES(weft_of_i64(weft_group_index(group)), weft_of_tensor(mine));
    weft_future *future = NULL;
    weft_status status = mine ? weft_group_allgather_values_async(group, args, limit_ms, &future)
                              : weft_group_barrier_async(group, limit_ms, &future);
    return went_well("start", status, may_fail) ? future : NULL;
}

/* *well: all took part. Without tensor it is a barrier. */
static void take_part(weft_group *group, weft_tensor *mine, bool may_fail, bool *well)
{
    weft_future *future = start(group, mine, may_fail);
    if (!future) {
        *well = false;
        return;
    }
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    if (status && !is_fitting(status))
        weft_error_print(weft_future_error(future), stderr);
    bool good = went_well(mine ? "all-gather" : "barrier", status, may_fail);
    if (good && mine)
        check(weft_future_values(future));
    weft_future_unref(future);
    *well &= good;
}

/* Made, met in twice, destroyed. Whoever cannot make it is missed by the others. */
static void meet(weft_agent *agent, const char *name, const int *ranks, bool may_fail)
{
    weft_group *group = NULL;
    int64_t limit_ms = may_fail ? LIMIT_MS : BOUND_MS;
    uint64_t began = weft_agent_now_ns(agent);
    weft_status status = weft_group_open(agent, name, ranks, SIZE, limit_ms, &group, NULL);
    for (int i = 0; may_fail && status == WEFT_ERR_MEMORY && i < 2; i++)
        status = weft_group_open(agent, name, ranks, SIZE, limit_ms, &group, NULL);
    if (!went_well("create", status, may_fail))
        return;
    weft_tensor *mine = tensor_full(WEFT_SHAPE(NUMBERS), WEFT_DTYPE_INT32, weft_group_index(group));
    bool well = mine != NULL;
    if (well) {
        take_part(group, mine, may_fail, &well);
        take_part(group, NULL, may_fail, &well);
    }
    MUST(well || may_fail);
    atomic_fetch_add(well ? &shared.good : &shared.failed, may_fail);
    weft_tensor_unref(mine);
    weft_group_close(group);
    MUST(weft_agent_now_ns(agent) - began < (uint64_t)BOUND_MS * 1000000);
}

static void one_round(weft_agent *agent, const int *ranks, uint64_t nth, bool again, int number)
{
    char name[32];
    bool in_want = weft_agent_rank(agent) == VICTIM;
    gather_round();
    if (in_want)
        no_memory_refuse(VICTIM, nth, again);
    snprintf(name, sizeof(name), "want-%d", number);
    meet(agent, name, ranks, true);
    gather_round();
    if (in_want)
        atomic_store(&shared.refused, no_memory_end());
    gather_round();
    snprintf(name, sizeof(name), "plenty-%d", number);
    meet(agent, name, ranks, false);
    gather_round();
}

static void program(weft_agent *agent, void *arg)
{
    static const int orders[2][SIZE] = {{0, 1, 2}, {1, 0, 2}}; /* the first one gathers */
    bool real = shared.w->fabric != WORLD_SIM;
    uint64_t step = real ? 13 : 1;
    int number = 0;
    for (int order = 0; order < 2; order++) {
        for (uint64_t nth = 1, spared = 0; spared < 3; nth += step) {
            one_round(agent, orders[order], nth, false, number++);
            spared = atomic_load(&shared.refused) ? 0 : spared + 1;
        }
        /* Not each and every one: a worker that cannot even write to the store for seconds is out of the job. */
        for (uint64_t nth = 12; nth <= 30; nth += real ? 9 : 1)
            one_round(agent, orders[order], nth, true, number++);
    }
    gather_round();
    for (int rank = 0; rank < SIZE; rank++)
        MUST(weft_agent_alive(agent, rank));
}

static void adjust(weft_agent_options *options, void *arg)
{
    options->leaks_fail = true;
    options->threads = 2;
    options->death_timeout_ms = 20000;
    no_memory_is_worker(options->rank);
}

static void run_on(world_fabric fabric)
{
    world w = {.fabric = fabric, .size = SIZE, .seed = 3, .program = program, .adjust = adjust};
    memset(&shared, 0, sizeof(shared));
    shared.w = &w;
    world_run(&w);
    printf("%s: %d meetings in want went well, %d did not\n", world_fabric_name(fabric), atomic_load(&shared.good),
           atomic_load(&shared.failed));
    assert_true(atomic_load(&shared.good) && atomic_load(&shared.failed));
}

static void on_sim(void **state)
{
    run_on(WORLD_SIM);
}

static void on_tcp(void **state)
{
    run_on(WORLD_TCP);
}

UNIT_MAIN(on_sim, on_tcp)
