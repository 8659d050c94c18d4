/* SPDX-License-Identifier: Apache-2.0 */
/* test_coll_group.c - barriers and all-gathers of values over all and some, with missing, dead and mistaken members. */
#include "rpc/world.h"
#include "tensors.h"

static world *scene; /* the one that runs */

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
}

static atomic_int arrived[64];

static void begin(world *w)
{
    scene = w;
    memset(arrived, 0, sizeof(arrived));
}

#define SCENE .adjust = adjust, .begin = begin

static weft_group *make(weft_agent *agent, const char *name, const int *ranks, size_t count)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, name, ranks, count, 0, &group, NULL));
    return group;
}

/* ---- All goes well --------------------------------------------------------------------------------------------- */

static void barriers(weft_agent *agent, void *arg)
{
    int size = weft_agent_world_size(agent), me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all", NULL, 0);
    MUST(weft_group_size(all) == (size_t)size && weft_group_index(all) == me);
    MUST(weft_group_member(all, (size_t)me) == me && weft_group_member(all, (size_t)size) == -1);
    for (int i = 0; i < 20; i++) {
        world_sleep_ms(scene, (me * 7 + i * 3) % 5);
        atomic_fetch_add(&arrived[i], 1);
        MUST_OK(weft_group_barrier(all, 10000));
        MUST(atomic_load(&arrived[i]) == size); /* nobody leaves it before everybody has come */
    }
    weft_group_close(all);
}

static void test_barriers(void **state)
{
    world_play(&(world){SCENE, .size = 40, .program = barriers}, 1, 0);
    world_play(&(world){SCENE, .size = 5, .program = barriers}, 0, 1);
    world_play(&(world){SCENE, .size = 1, .program = barriers}, 1, 0); /* a group of one */
}

static void check_gathered(const weft_values *got, int size, int factor, int64_t numbers)
{
    MUST(weft_values_count(got) == (size_t)size);
    for (int i = 0; i < size; i++) {
        weft_args list;
        MUST_OK(weft_values_get_list(got, (size_t)i, &list));
        MUST(list.count == 2 && list.items[0].type == WEFT_TYPE_I64 && list.items[1].type == WEFT_TYPE_TENSOR);
        MUST(list.items[0].as.i64 == i * factor);
        const float *data = weft_tensor_data(list.items[1].as.tensor);
        MUST(weft_tensor_nbytes(list.items[1].as.tensor) == (size_t)numbers * 4);
        MUST(data[0] == (float)i && data[numbers - 1] == (float)i);
    }
}

/* Small values, and 2 MiB from each. */
static void gathers(weft_agent *agent, void *arg)
{
    int size = weft_agent_world_size(agent), me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all", NULL, 0);
    weft_values *got;
    for (int i = 0; i < 6; i++) {
        int64_t numbers = i % 2 ? 1 << 19 : 3;
        weft_tensor *x = tensor_full(WEFT_SHAPE(numbers), WEFT_DTYPE_FLOAT32, me);
        MUST_OK(
            weft_group_allgather_values(all, WEFT_VALUES(weft_of_i64(me * (i + 1)), weft_of_tensor(x)), 10000, &got));
        check_gathered(got, size, i + 1, numbers);
        weft_values_unref(got);
        weft_tensor_unref(x);
    }
    MUST_OK(weft_group_allgather_values(all, WEFT_NO_VALUES, 10000, &got));
    MUST(weft_values_count(got) == (size_t)size);
    weft_values_unref(got);
    weft_group_close(all);
}

WORLD_TEST(gathers, 1, 1, SCENE, .size = 4)

/* In another order, without rank 0, made and destroyed again and again under one name, some early and some late. */
static void some(weft_agent *agent, void *arg)
{
    static const int ranks[] = {3, 1, 2};
    int me = weft_agent_rank(agent);
    weft_values *got;
    weft_group *none;
    if (me == 0) {
        MUST_BE(weft_group_open(agent, "some", ranks, 3, 0, &none, NULL), WEFT_ERR_INVALID);
        return;
    }
    for (int i = 0; i < 12; i++) {
        world_sleep_ms(scene, (me * 5 + i) % 4);
        weft_group *group = make(agent, "some", ranks, 3);
        MUST(weft_group_member(group, (size_t)weft_group_index(group)) == me);
        MUST_OK(weft_group_allgather_values(group, WEFT_VALUES(weft_of_i64(me * 100 + i)), 10000, &got));
        for (size_t k = 0; k < 3; k++) {
            weft_args list;
            MUST_OK(weft_values_get_list(got, k, &list));
            MUST(list.items[0].as.i64 == ranks[k] * 100 + i);
        }
        weft_values_unref(got);
        weft_group_close(group);
    }
}

WORLD_TEST(some, 1, 1, SCENE, .size = 4)

/* Many operations begun before the first has ended. */
static void pipelined(weft_agent *agent, void *arg)
{
    enum { COUNT = 50 };
    weft_future *futures[COUNT];
    weft_group *all = make(agent, "all", NULL, 0);
    int me = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    for (int i = 0; i < COUNT; i++)
        MUST_OK(weft_group_allgather_values_async(all, WEFT_VALUES(weft_of_i64(me + i)), 10000, &futures[i]));
    for (int i = 0; i < COUNT; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_args list;
        for (int k = 0; k < size; k++) {
            MUST_OK(weft_values_get_list(weft_future_values(futures[i]), (size_t)k, &list));
            MUST(list.items[0].as.i64 == k + i);
        }
        weft_future_unref(futures[i]);
    }
    weft_group_close(all);
}

WORLD_TEST(pipelined, 1, 1, SCENE, .size = 4)

/* ---- All executors full of those who wait --------------------------------------------------------------------- */

static weft_status run_barrier(weft_call *call, void *user)
{
    weft_group *group;
    char name[16];
    snprintf(name, sizeof(name), "in-%d", (int)weft_call_i64(call, 0));
    weft_status status = weft_group_open(weft_call_agent(call), name, NULL, 0, 0, &group, NULL);
    if (status)
        return status;
    status = weft_group_barrier(group, 20000);
    weft_group_close(group);
    return status;
}

static const weft_function functions[] = {{.name = "barrier", .takes = {WEFT_TYPE_I64}, .run = run_barrier}};

static void from_handlers(weft_agent *agent, void *arg)
{
    weft_future *futures[24];
    int size = weft_agent_world_size(agent), count = 0;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int i = 0; i < 8; i++)
        for (int rank = 0; rank < size; rank++)
            MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "barrier", WEFT_VALUES(weft_of_i64(i)), NULL,
                                   &futures[count++]));
    for (int i = 0; i < count; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
}

WORLD_TEST(from_handlers, 1, 1, .size = 3, WORLD_FUNCTIONS(functions), .adjust = world_one_worker, .begin = begin)

static void test_by_hand(void **state)
{
    world_play(&(world){.size = 3, .program = barriers, .adjust = world_no_threads, .begin = begin}, 0, 1);
}

/* ---- Somebody is missing -------------------------------------------------------------------------------------- */

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

/* The group is not opened, and the error says so. */
static void must_not_open(weft_agent *agent, const char *name, const int *ranks, size_t count, int64_t timeout_ms,
                          weft_status code, const char *text)
{
    weft_group *none = NULL;
    weft_error *error = NULL;
    MUST_BE(weft_group_open(agent, name, ranks, count, timeout_ms, &none, &error), code);
    if (none || !strstr(weft_error_message(error), text)) {
        fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", weft_error_message(error), text);
        abort();
    }
    weft_error_unref(error);
}

/* A member does not open the group: nobody gets it. Then all come. */
static void no_group(weft_agent *agent, void *arg)
{
    weft_group *meet = make(agent, "meet", NULL, 0);
    int me = weft_agent_rank(agent);
    for (int absent = 0; absent < 3; absent++) {
        char text[32];
        snprintf(text, sizeof(text), "missing is rank %d", absent);
        if (me != absent)
            must_not_open(agent, "all", NULL, 0, 300, WEFT_ERR_TIMEOUT, text);
        MUST_OK(weft_group_barrier(meet, 10000));
        weft_group *all = make(agent, "all", NULL, 0);
        MUST_OK(weft_group_barrier(all, 10000));
        weft_group_close(all);
    }
    MUST_OK(weft_group_barrier(meet, 10000));
    weft_group_close(meet);
}

WORLD_TEST(no_group, 1, 1, SCENE, .size = 3)

/* ---- Mistakes ---------------------------------------------------------------------------------------------------- */

/* No group, and an error with this text. */
static void must_refuse(weft_agent *agent, const char *name, const int *ranks, size_t count, weft_status code,
                        const char *text)
{
    weft_group *none = NULL;
    weft_error *error = NULL;
    MUST_BE(weft_group_open(agent, name, ranks, count, 0, &none, &error), code);
    MUST(!none && weft_error_code(error) == code);
    MUST(strstr(weft_error_message(error), text));
    weft_error_unref(error);
    MUST_BE(weft_group_open(agent, name, ranks, count, 0, &none, NULL), code); /* the log has it */
}

static void mistakes(weft_agent *agent, void *arg)
{
    static const int twice[] = {0, 1, 1}, outside[] = {0, 1, 2, 7};
    int me = weft_agent_rank(agent);
    weft_group *none = NULL, *all = make(agent, "all", NULL, 0);
    weft_future *future;
    weft_values *got;
    must_refuse(agent, "all", NULL, 0, WEFT_ERR_EXISTS, "name is \"all\", as that of an open group");
    must_refuse(agent, "", NULL, 0, WEFT_ERR_INVALID, "name is \"\"");
    must_refuse(agent, "two words", NULL, 0, WEFT_ERR_INVALID, "name is \"two words\"");
    must_refuse(agent, NULL, NULL, 0, WEFT_ERR_INVALID, "name is \"(NULL)\"");
    must_refuse(agent, "twice", twice, 3, WEFT_ERR_INVALID, "ranks[2] of \"twice\" is 1, for the second time");
    must_refuse(agent, "outside", outside, 4, WEFT_ERR_NOT_FOUND, "ranks[3] of \"outside\" is 7");
    must_refuse(agent, "large", twice, SIZE_MAX, WEFT_ERR_INVALID,
                "count is 18446744073709551615 with the ranks of \"large\"");
    must_refuse(NULL, "all", NULL, 0, WEFT_ERR_INVALID, "agent is NULL");
    weft_error *error = NULL;
    MUST_BE(weft_group_open(agent, "new", NULL, 0, 0, NULL, &error), WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(error), "out is NULL") != NULL);
    weft_error_unref(error);
    MUST_BE(weft_group_shrink(all, -5, &none, &error), WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(error), "weft_group_shrink (\"all\"): timeout_ms is -5") != NULL);
    weft_error_unref(error);
    MUST_BE(weft_group_shrink(NULL, 0, &none, &error), WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(error), "group is NULL") != NULL);
    weft_error_unref(error);
    MUST_BE(weft_group_barrier(all, -5), WEFT_ERR_INVALID);
    MUST_BE(weft_group_allgather_values(all, WEFT_VALUES(weft_of_tensor(NULL)), 1000, &got), WEFT_ERR_INVALID);
    MUST_BE(weft_group_barrier_async(all, 1000, NULL), WEFT_ERR_INVALID);
    MUST(!none);
    MUST_OK(weft_group_barrier(all, 10000)); /* none of these counted */
    /* A barrier here, an all-gather there: the group is over. */
    weft_group *mixed = make(agent, "mixed", NULL, 0);
    weft_status status = me == 1 ? weft_group_allgather_values_async(mixed, WEFT_NO_VALUES, 10000, &future)
                                 : weft_group_barrier_async(mixed, 10000, &future);
    if (!status) /* else the others were faster */
        must_fail(future, WEFT_ERR_STATE, "allgather of values");
    else
        MUST(status == WEFT_ERR_STATE);
    MUST_BE(weft_group_barrier(mixed, 10000), WEFT_ERR_STATE);
    MUST(strstr(weft_error_message(weft_group_error(mixed)), "barrier") != NULL);
    MUST_OK(weft_group_barrier(all, 10000));
    weft_group_close(mixed);
    /* Another list under the same name. */
    static const int mine[] = {0, 1, 2}, theirs[] = {0, 2, 1};
    must_not_open(agent, "odd", me == 1 ? theirs : mine, 3, 10000, WEFT_ERR_INVALID,
                  "rank 1 gave other members for that name");
    MUST_OK(weft_group_barrier(all, 10000));
    weft_group_close(all);
}

WORLD_TEST(mistakes, 1, 1, SCENE, .size = 3)

/* ---- The end of a group, a member, an agent ---------------------------------------------------------------------- */

/* With an operation under way: it is over for all, also for who comes later. */
static void destroyed(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_future *future;
    weft_group *all = make(agent, "all", NULL, 0), *last = make(agent, "last", NULL, 0);
    MUST_OK(weft_group_barrier(last, 10000));
    if (me != 2) {
        MUST_OK(weft_group_barrier_async(all, WEFT_FOREVER, &future));
        world_sleep_ms(scene, 50);
        if (me == 0)
            weft_group_close(all);
        must_fail(future, WEFT_ERR_CANCELLED, "rank 0 has closed it");
    }
    MUST_OK(weft_group_barrier(last, 10000));
    if (me != 0) {
        MUST_BE(weft_group_barrier(all, 1000), WEFT_ERR_CANCELLED);
        weft_group_close(all);
    }
    /* Without one: whoever still calls hears that it is gone. */
    weft_group *other = make(agent, "other", NULL, 0);
    if (me == 0)
        weft_group_close(other);
    MUST_OK(weft_group_barrier(last, 10000));
    if (me != 0) {
        MUST_BE(weft_group_barrier(other, WEFT_FOREVER), WEFT_ERR_CANCELLED);
        MUST_OK(weft_group_barrier(last, 10000));
        weft_group_close(other);
    } else {
        MUST_OK(weft_group_barrier(last, 10000));
    }
    weft_group_close(last);
}

WORLD_TEST(destroyed, 1, 1, SCENE, .size = 3)

/* Left open when the agent stops: its operations fail, and it can still be destroyed. */
static weft_group *left_open[4];
static weft_future *left_waiting[4];

static void leave_open(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    left_open[me] = make(agent, "all", NULL, 0);
    weft_status status = weft_group_barrier(left_open[me], 10000);
    MUST(status == WEFT_OK || status == WEFT_ERR_PEER_LEFT ||
         status == WEFT_ERR_STORE_LOST); /* others stop once they are through */
    left_waiting[me] = NULL;
    if (me != 2) {
        status = weft_group_barrier_async(left_open[me], WEFT_FOREVER, &left_waiting[me]);
        MUST(status == WEFT_OK || status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_STORE_LOST);
    }
}

static void nobody_waits_any_more(world *w)
{
    for (int rank = 0; rank < 3; rank++) {
        weft_status status = left_waiting[rank] ? weft_error_code(weft_future_error(left_waiting[rank])) : WEFT_OK;
        assert_true(!left_waiting[rank] || status == WEFT_ERR_CLOSED || status == WEFT_ERR_PEER_LEFT ||
                    status == WEFT_ERR_STORE_LOST || status == WEFT_ERR_CANCELLED);
        weft_future_unref(left_waiting[rank]);
        assert_int_equal(weft_group_barrier(left_open[rank], 10), WEFT_ERR_CLOSED);
        weft_group_close(left_open[rank]);
    }
}

WORLD_TEST(leave_open, 1, 1, .size = 3, .begin = begin, .stop = true, .end = nobody_waits_any_more)

/* One dies, by rank, while the others wait: before it opened the group (early), or in it. */
typedef struct death {
    world w;
    int victim;
    bool pause, early;
    atomic_int waiting;
} death;

static void killer(weft_sim *sim, int rank, void *arg)
{
    death *d = arg;
    (void)rank;
    weft_sim_sleep(sim, 1000000);
    if (d->pause)
        weft_sim_pause(sim, d->victim);
    else
        weft_sim_kill(sim, d->victim);
}

static void with_death(weft_agent *agent, void *arg)
{
    death *d = arg;
    int me = weft_agent_rank(agent), last = d->victim == 2 ? 3 : 2;
    weft_group *meet = make(agent, "meet", NULL, 0), *all;
    MUST_OK(weft_group_barrier(meet, 10000));
    if (!d->early)
        all = make(agent, "all", NULL, 0);
    if (me == d->victim) {
        weft_sim_sleep(d->w.sim, 5000000000);
        if (!d->early)
            weft_group_close(all);
        weft_group_close(meet);
        return; /* not reached, unless it was but paused */
    }
    if (me == last)
        MUST_OK(weft_sim_spawn(d->w.sim, me, killer, d));
    uint64_t began = weft_sim_now(d->w.sim);
    weft_error *error = NULL;
    if (d->early) {
        MUST_BE(weft_group_open(agent, "all", NULL, 0, WEFT_FOREVER, &all, &error), WEFT_ERR_PEER_DEAD);
    } else {
        MUST_BE(weft_group_barrier(all, WEFT_FOREVER), WEFT_ERR_PEER_DEAD);
        error = weft_error_ref(weft_group_error(all));
        weft_group_close(all);
    }
    MUST(weft_error_worker(error) == d->victim);
    MUST(weft_sim_now(d->w.sim) - began < 4000000000); /* the bound of 2 s, and some */
    weft_error_unref(error);
    MUST_BE(weft_group_barrier(meet, 1000), WEFT_ERR_PEER_DEAD);
    weft_group_close(meet);
    /* Those who live meet without it. */
    int ranks[3], count = 0;
    for (int rank = 0; rank < 4; rank++)
        if (rank != d->victim)
            ranks[count++] = rank;
    all = make(agent, "all", ranks, 3);
    MUST_OK(weft_group_barrier(all, 10000));
    weft_group_close(all);
    if (me == last && d->pause)
        weft_sim_resume(d->w.sim, d->victim);
}

static void test_death(void **state)
{
    enum { VICTIMS = 3 };
    int rounds = (int)world_seeds(60);
    if (rounds && rounds < VICTIMS)
        rounds = VICTIMS;
    for (int round = 0; round < rounds; round++) {
        int victim = 1 + round % VICTIMS;
        for (int way = 0; way < 4; way++) {
            death d = {.w = {.fabric = WORLD_SIM,
                             .size = 4,
                             .seed = (uint64_t)round + 1,
                             .program = with_death,
                             .adjust = adjust,
                             .close_may_fail = true},
                       .victim = victim,
                       .pause = way % 2,
                       .early = way / 2};
            d.w.arg = &d;
            world_run(&d.w);
        }
    }
}

/* The first of the list dies: not rank 0, whose death ends the job. */
static void first_dies(weft_agent *agent, void *arg)
{
    static const int ranks[] = {1, 0, 2};
    death *d = arg;
    weft_group *group = make(agent, "all", ranks, 3);
    MUST_OK(weft_group_barrier(group, 10000));
    if (weft_agent_rank(agent) == 1) {
        weft_sim_sleep(d->w.sim, 1000000);
        weft_sim_kill(d->w.sim, 1);
    }
    MUST_BE(weft_group_barrier(group, WEFT_FOREVER), WEFT_ERR_PEER_DEAD);
    MUST_BE(weft_group_barrier(group, WEFT_FOREVER), WEFT_ERR_PEER_DEAD);
    weft_group_close(group);
}

static void test_first_dies(void **state)
{
    death d = {.w = {.fabric = WORLD_SIM, .size = 3, .seed = 8, .program = first_dies, .adjust = adjust}};
    d.w.arg = &d;
    world_run(&d.w);
}

UNIT_MAIN(test_barriers, test_gathers, test_some, test_pipelined, test_by_hand, test_from_handlers, test_no_group,
          test_mistakes, test_destroyed, test_leave_open, test_death, test_first_dies)
