/* SPDX-License-Identifier: Apache-2.0 */
/* test_coll_large.c - groups of hundreds of members, up to the limit of what an all-gather can give, and above it. */
#include "rpc/world.h"

#define LIMIT 1024 /* values of one list */

static atomic_int arrived, failed;

static void few_threads(weft_agent_options *options, void *arg)
{
    options->threads = 1;
    options->death_timeout_ms = 20000;
}

static void run_on(world_fabric fabric, int size, void (*program)(weft_agent *agent, void *arg))
{
    world w = {.fabric = fabric, .size = size, .seed = 5, .program = program, .adjust = few_threads, .arg = &w};
    atomic_store(&arrived, 0);
    atomic_store(&failed, 0);
    world_run(&w);
}

static void check(const weft_values *got, int size, int factor)
{
    MUST(weft_values_count(got) == (size_t)size);
    for (int i = 0; i < size; i++) {
        weft_args list;
        MUST_OK(weft_values_get_list(got, (size_t)i, &list));
        MUST(list.count == 1 && list.items[0].type == WEFT_TYPE_I64 && list.items[0].as.i64 == i * factor);
    }
}

static void meet(weft_agent *agent, void *arg)
{
    int size = weft_agent_world_size(agent), me = weft_agent_rank(agent);
    weft_group *all;
    weft_values *got;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    MUST(weft_group_size(all) == (size_t)size && weft_group_member(all, (size_t)size - 1) == size - 1);
    for (int i = 1; i <= 2; i++) {
        atomic_fetch_add(&arrived, 1);
        MUST_OK(weft_group_barrier(all, 60000));
        MUST(atomic_load(&arrived) >= i * size); /* nobody leaves it before everybody has come */
        MUST_OK(weft_group_allgather_values(all, WEFT_VALUES(weft_of_i64(me * i)), 60000, &got));
        check(got, size, i);
        weft_values_unref(got);
    }
    weft_group_close(all);
}

static void test_hundreds_meet(void **state)
{
    run_on(WORLD_SIM, 41, meet);
    run_on(WORLD_SIM, 257, meet); /* more than a byte can count */
    run_on(WORLD_TCP, 40, meet);
}

static void must_fail(weft_future *future, weft_status wanted, const char *text)
{
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), wanted);
    const char *message = weft_error_message(weft_future_error(future));
    if (!strstr(message, text)) {
        fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", message, text);
        abort();
    }
    weft_future_unref(future);
}

/* A hundred of them do not come: some are named. Only twenty come, because each of those asks all others. */
static void miss_many(weft_agent *agent, void *arg)
{
    world *w = arg;
    int size = weft_agent_world_size(agent), me = weft_agent_rank(agent);
    bool is_late = me >= size - 100;
    weft_future *future;
    weft_group *all;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    if (!is_late) {
        MUST_OK(weft_group_barrier_async(all, 500, &future));
        must_fail(future, WEFT_ERR_TIMEOUT, "rank 20 (has not called it), rank 21 (has not called it)");
        atomic_fetch_add(&failed, 1);
    } else {
        while (atomic_load(&failed) < size - 100)
            world_sleep_ms(w, 1);
        MUST_BE(weft_group_barrier(all, 60000), WEFT_ERR_TIMEOUT);
    }
    weft_group_close(all);
}

static void test_many_are_missed(void **state)
{
    run_on(WORLD_SIM, 120, miss_many);
}

/* A barrier has no limit of its own; an all-gather of more than a list can hold is refused, by all alike. */
static void at_the_limit(weft_agent *agent, void *arg)
{
    int size = weft_agent_world_size(agent), me = weft_agent_rank(agent), ranks[LIMIT];
    weft_group *all, *most = NULL;
    weft_future *future;
    weft_values *got;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    MUST_OK(weft_group_barrier(all, 60000));
    weft_status status = weft_group_allgather_values_async(all, WEFT_VALUES(weft_of_i64(me)), 60000, &future);
    if (!status)
        must_fail(future, WEFT_ERR_TOO_LARGE, "");
    else
        MUST_BE(status, WEFT_ERR_TOO_LARGE);
    for (int i = 0; i < LIMIT; i++)
        ranks[i] = i;
    if (me < LIMIT) {
        MUST_OK(weft_group_open(agent, "most", ranks, LIMIT, 0, &most, NULL));
        MUST_OK(weft_group_allgather_values(most, WEFT_VALUES(weft_of_i64(me)), 60000, &got));
        check(got, LIMIT, 1);
        weft_values_unref(got);
    }
    MUST_OK(weft_group_barrier(all, 60000)); /* and it goes on */
    weft_group_close(most);
    weft_group_close(all);
    MUST(size > LIMIT);
}

static void test_at_the_limit(void **state)
{
    if (!getenv("COLL_LARGE")) /* tools/long.d/coll: a thousand workers take half a minute */
        return;
    run_on(WORLD_SIM, LIMIT + 1, at_the_limit);
}

UNIT_MAIN(test_hundreds_meet, test_many_are_missed, test_at_the_limit)
