/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_group_budget.c - what all-gathers make a worker hold: parts that wait at the gathering member count against its memory
 * budget and are brought again while there is no room, and a member whose queue is full says that it takes no part.
 */
#include "rpc/world.h"

enum { GATHERER = 0, MEMBER = 1, OPS = 40, PART = 100000, BUDGET = 1 << 20, QUEUE = 1 << 20, SLACK = 1 << 16 };

static struct shared {
    world *w;
    bool open_early; /* the gatherer makes the group before the parts come */
    bool as_bytes;
    bool gatherers_large; /* its parts are, not the member's */
    atomic_int started, ended;
} shared;

static void adjust(weft_agent_options *options, void *arg)
{
    if (options->rank == GATHERER)
        options->memory_budget_bytes = BUDGET;
    options->queue_limit_bytes = 64 << 20;
}

static void begin(world *w)
{
    shared.w = w;
    shared.started = shared.ended = 0;
}

static void run(void (*program)(weft_agent *, void *), void (*adjusts)(weft_agent_options *, void *), int on_sim,
                int on_tcp)
{
    world_play(&(world){.size = 2, .program = program, .adjust = adjusts, .begin = begin}, (uint64_t)on_sim, on_tcp);
}

static void await_count(atomic_int *count, int wanted)
{
    while (atomic_load(count) < wanted)
        world_sleep_ms(shared.w, 1);
}

static weft_group *make(weft_agent *agent)
{
    weft_group *group;
    MUST_OK(weft_group_create(agent, "all", NULL, 0, &group));
    return group;
}

/* Operation `i` with, of one of them, PART bytes, the first of which say which one it is. */
static weft_status start(weft_group *group, int i, int64_t timeout_ms, weft_future **out)
{
    bool large = weft_group_index(group) == (shared.gatherers_large ? GATHERER : MEMBER);
    weft_tensor *x = weft_tensor_full(WEFT_SHAPE(large ? PART / 4 : 1), WEFT_INT32, i);
    weft_value part = shared.as_bytes ? weft_of_bytes(weft_tensor_data(x), weft_tensor_nbytes(x)) : weft_of_tensor(x);
    weft_status st = weft_group_all_gather_async(group, (weft_args){&part, 1}, timeout_ms, out);
    weft_tensor_unref(x);
    return st;
}

static int number_in(const weft_value *part)
{
    int number;
    const void *bytes = shared.as_bytes ? part->as.bytes.data : weft_tensor_data(part->as.tensor);
    memcpy(&number, bytes, sizeof number);
    return number;
}

static void must_have(const weft_values *got, int i)
{
    weft_args list;
    for (size_t from = 0; from < 2; from++) {
        MUST_OK(weft_values_get_list(got, from, &list));
        MUST(list.count == 1 && number_in(&list.items[0]) == i);
    }
}

static void start_all(weft_group *group, int64_t timeout_ms, weft_future **futures)
{
    for (int i = 0; i < OPS; i++)
        MUST_OK(start(group, i, timeout_ms, &futures[i]));
}

static void end_well(weft_future *future, int i)
{
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    must_have(weft_future_values(future), i);
    weft_future_unref(future);
}

static void must_end_empty(weft_agent *agent, weft_group *group)
{
    MUST_OK(weft_group_barrier(group, 60000));
    for (int i = 0; i < 20000 && world_stats(agent).bytes_held; i++)
        world_sleep_ms(shared.w, 1);
    MUST(world_stats(agent).bytes_held == 0);
    weft_group_destroy(group);
}

/* As many parts as there is room for are held; the others are refused, and brought again. */
static void await_full(weft_agent *agent)
{
    await_count(&shared.started, 1);
    for (int i = 0; i < 20000 && world_stats(agent).calls_refused < OPS; i++)
        world_sleep_ms(shared.w, 1);
    weft_stats stats = world_stats(agent);
    MUST(stats.calls_refused >= OPS);
    MUST(stats.bytes_held > (uint64_t)(BUDGET / PART - 1) * PART && stats.bytes_held <= BUDGET + BUDGET / 8);
}

/* ---- Parts that come before the gatherer's own ------------------------------------------------------------------------- */

static void ahead(weft_agent *agent, void *arg)
{
    weft_future *futures[OPS];
    weft_group *group = shared.open_early || weft_agent_rank(agent) == MEMBER ? make(agent) : NULL;
    if (weft_agent_rank(agent) == GATHERER)
        await_full(agent);
    if (!group)
        group = make(agent);
    start_all(group, 60000, futures);
    atomic_store(&shared.started, 1);
    for (int i = 0; i < OPS; i++)
        end_well(futures[i], i);
    must_end_empty(agent, group);
}

static void test_ahead(void **state)
{
    for (int way = 0; way < 8; way++) {
        shared.open_early = way & 1;
        shared.as_bytes = way & 2;
        run(ahead, adjust, !(way & 4), !!(way & 4));
    }
}

/* ---- Results that are more than the budget ------------------------------------------------------------------------------ */

/* The member's part is in every operation before the gatherer's, so that all end at once. */
static void large_results(weft_agent *agent, void *arg)
{
    weft_future *futures[OPS];
    weft_group *group = make(agent);
    int me = weft_agent_rank(agent);
    if (me == GATHERER)
        await_count(&shared.started, 1);
    start_all(group, 60000, futures);
    if (me == MEMBER) {
        world_sleep_ms(shared.w, 200);
        atomic_store(&shared.started, 1);
    }
    for (int i = 0; i < OPS; i++)
        end_well(futures[i], i);
    must_end_empty(agent, group);
}

static void test_large_results(void **state)
{
    shared.as_bytes = false;
    shared.gatherers_large = true;
    run(large_results, adjust, 1, 1);
    shared.gatherers_large = false;
}

/* ---- Parts for which there is no room within the time limit --------------------------------------------------------------- */

static weft_status ends[2][OPS];

static void too_long(weft_agent *agent, void *arg)
{
    weft_future *futures[OPS];
    weft_group *group = make(agent);
    int me = weft_agent_rank(agent), busy = 0;
    if (me == GATHERER)
        await_count(&shared.ended, 1);
    start_all(group, me == GATHERER ? 60000 : 3000, futures);
    for (int i = 0; i < OPS; i++) {
        weft_status st = weft_future_wait(futures[i], WEFT_FOREVER);
        ends[me][i] = st;
        busy += st == WEFT_ERR_BUSY;
        if (me == GATHERER && st)
            MUST(strstr(weft_error_message(weft_future_error(futures[i])), "rank 1 could not take part"));
        else if (st != WEFT_ERR_BUSY)
            MUST_BE(st, me == GATHERER ? WEFT_OK : WEFT_ERR_TIMEOUT); /* its part has come */
        weft_future_unref(futures[i]);
    }
    MUST(busy >= OPS - BUDGET / PART - 1 && busy < OPS);
    if (me == MEMBER)
        atomic_store(&shared.ended, 1);
    must_end_empty(agent, group);
}

static void test_too_long(void **state)
{
    shared.as_bytes = false;
    run(too_long, adjust, 1, 0);
    for (int i = 0; i < OPS; i++)
        assert_int_equal(ends[GATHERER][i] == WEFT_ERR_BUSY, ends[MEMBER][i] == WEFT_ERR_BUSY);
}

/* ---- More operations than parts that may wait for a group that is not made ------------------------------------------------- */

enum { MANY = 100 };

static void too_early(weft_agent *agent, void *arg)
{
    weft_future *futures[MANY];
    int me = weft_agent_rank(agent);
    if (me == GATHERER)
        await_count(&shared.started, 1);
    weft_group *group = make(agent);
    for (int i = 0; i < MANY; i++)
        MUST_OK(weft_group_barrier_async(group, 60000, &futures[i]));
    if (me == MEMBER) {
        world_sleep_ms(shared.w, 200);
        atomic_store(&shared.started, 1);
    }
    for (int i = 0; i < MANY; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    weft_group_destroy(group);
}

static void test_too_early(void **state)
{
    run(too_early, adjust, 1, 0);
}

/* ---- A full queue ------------------------------------------------------------------------------------------------------ */

enum { REFUSED = 5, TRIES = 2000 };

static bool was_refused[TRIES]; /* operation i, on the member */

static void small_queue(weft_agent_options *options, void *arg)
{
    options->queue_limit_bytes = QUEUE;
    options->death_timeout_ms = WEFT_FOREVER;
}

/* Starts operations until the queue is full; how many were started. */
static int fill(weft_group *group, weft_future **futures)
{
    int count = 0;
    weft_status st = WEFT_OK;
    while (!st && count < OPS) {
        st = start(group, count, 60000, &futures[count]);
        count += !st;
    }
    MUST_BE(st, WEFT_ERR_AGAIN);
    return count;
}

/* Starts operations until so many were refused: the queue becomes less full meanwhile. How many were tried. */
static int try_until_refused(weft_group *group, weft_future **futures)
{
    int tries = 0;
    for (int refused = 0; refused < REFUSED; tries++) {
        MUST(tries < TRIES);
        weft_status st = start(group, tries, 60000, &futures[tries]);
        was_refused[tries] = st != WEFT_OK;
        if (st)
            MUST_BE(st, WEFT_ERR_AGAIN);
        refused += was_refused[tries];
    }
    return tries;
}

static void must_be_refused(weft_agent *agent, weft_group *group)
{
    weft_future *future;
    uint64_t began = weft_agent_now_ns(agent);
    MUST_OK(start(group, 0, 60000, &future));
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_AGAIN);
    MUST(strstr(weft_error_message(weft_future_error(future)), "rank 1 could not take part"));
    MUST(weft_agent_now_ns(agent) - began < 30000000000u); /* it was told */
    weft_future_unref(future);
}

/* Who could not start says so though the queue is full; what was started before ends well, and so does what comes after. */
static void full(weft_agent *agent, void *arg)
{
    static weft_future *of_rank[2][TRIES];
    int me = weft_agent_rank(agent);
    weft_future **futures = of_rank[me];
    weft_group *group = make(agent);
    if (me == MEMBER)
        atomic_store(&shared.started, try_until_refused(group, futures));
    await_count(&shared.started, 1);
    for (int i = 0; me == GATHERER && i < shared.started; i++) {
        if (was_refused[i])
            must_be_refused(agent, group);
        else
            MUST_OK(start(group, i, 60000, &futures[i]));
    }
    for (int i = 0; i < shared.started; i++) {
        if (!was_refused[i])
            end_well(futures[i], i);
    }
    must_end_empty(agent, group);
}

static void test_full(void **state)
{
    shared.as_bytes = true;
    run(full, small_queue, 1, 1);
}

/* Towards one that stands still the words do not pile up without end. */
static void full_for_long(weft_agent *agent, void *arg)
{
    const int first_is_1[] = {1, 0};
    weft_future *futures[OPS], *none;
    weft_group *group;
    MUST_OK(weft_group_create(agent, "all", first_is_1, 2, &group));
    MUST_OK(weft_group_barrier(group, 60000));
    if (weft_agent_rank(agent) == 0) {
        weft_sim_pause(shared.w->sim, 1);
        int count = fill(group, futures), refused = 1;
        while (start(group, 0, 60000, &none) == WEFT_ERR_AGAIN && refused < 2000)
            refused++;
        MUST(refused > 1000 && refused < 1100);
        MUST_BE(start(group, 0, 60000, &none), WEFT_ERR_STATE);
        weft_sim_resume(shared.w->sim, 1);
        weft_group_destroy(group);
        for (int i = 0; i < count; i++) {
            MUST(weft_future_wait(futures[i], WEFT_FOREVER) != WEFT_OK);
            weft_future_unref(futures[i]);
        }
        MUST_OK(weft_group_create(agent, "other", NULL, 0, &group));
    } else {
        await_count(&shared.ended, 1);
        weft_group_destroy(group);
        MUST_OK(weft_group_create(agent, "other", NULL, 0, &group));
    }
    atomic_store(&shared.ended, 1);
    must_end_empty(agent, group);
}

static void test_full_for_long(void **state)
{
    shared.as_bytes = true;
    run(full_for_long, small_queue, 1, 0);
}

UNIT_MAIN(test_ahead, test_large_results, test_too_long, test_too_early, test_full, test_full_for_long)
