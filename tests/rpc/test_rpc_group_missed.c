/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_group_missed.c - operations of a group that a member cannot take part in, that gather too much, or that are over when
 * the gathering member stops: all members see the same end, and stay in step. The linker puts wfi_calloc below in the place of the
 * library's.
 */
#include "rpc/world.h"

void *__real_wfi_calloc(size_t count, size_t size);
void *__wrap_wfi_calloc(size_t count, size_t size);

enum { SIZE = 3 };

static atomic_int until_failure = -1; /* allocations that still succeed; -1: all */
static atomic_bool goes_on;           /* all that follow fail too */

void *__wrap_wfi_calloc(size_t count, size_t size)
{
    if (until_failure < 0 || (until_failure > 0 && until_failure--))
        return __real_wfi_calloc(count, size);
    if (!goes_on)
        until_failure = -1;
    return NULL;
}

static void fail_allocations(bool all)
{
    until_failure = all ? 0 : -1;
    goes_on = all;
}

static world *scene; /* the one that runs */

static void begin(world *w)
{
    scene = w;
}

#define SCENE .size = SIZE, .begin = begin

static weft_group *make(weft_agent *agent, const char *name)
{
    weft_group *group;
    MUST_OK(weft_group_create(agent, name, NULL, 0, &group));
    return group;
}

/* `future` may be NULL: it was not started, with `st`. */
static weft_status end_of(weft_status st, weft_future *future, char *text, size_t room)
{
    text[0] = '\0';
    if (st)
        return st;
    st = weft_future_wait(future, WEFT_FOREVER);
    if (st)
        snprintf(text, room, "%s", weft_error_message(weft_future_error(future)));
    weft_future_unref(future);
    return st;
}

static void must_speak_of(const char *text, const char *of)
{
    if (!strstr(text, of)) {
        fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", text, of);
        abort();
    }
}

/* All gather their own numbers of the place in the program where they are: those must be equal. */
static weft_status meet_at(weft_group *group, int64_t place, int64_t timeout_ms)
{
    weft_values *got;
    weft_args list;
    weft_status st = weft_group_all_gather(group, WEFT_VALUES(weft_of_i64(place)), timeout_ms, &got);
    if (st)
        return st;
    for (size_t i = 0; i < SIZE; i++) {
        MUST_OK(weft_values_get_list(got, i, &list));
        MUST(list.count == 1 && list.items[0].as.i64 == place);
    }
    weft_values_unref(got);
    return WEFT_OK;
}

/* ---- Operations that a member cannot start --------------------------------------------------------------------------- */

static void cannot_start(weft_agent *agent, weft_group *all, int who, weft_args bad, int64_t timeout_ms,
                         weft_status wanted, const char *of)
{
    bool is_me = weft_agent_rank(agent) == who;
    weft_future *future;
    char text[320], worker[32];
    weft_status st = weft_group_all_gather_async(all, is_me ? bad : WEFT_VALUES(weft_of_i64(1)),
                                                 is_me ? timeout_ms : 30000, &future);
    MUST(!st == !is_me);
    MUST_BE(end_of(st, future, text, sizeof text), wanted);
    snprintf(worker, sizeof worker, "rank %d could not", who);
    if (!is_me) {
        must_speak_of(text, worker);
        must_speak_of(text, of);
    }
}

static void missed(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all");
    weft_value *many = calloc(WEFT_MAX_VALUES + 1, sizeof *many);
    size_t large = 65u << 20;
    char *bytes = calloc(1, large);
    for (int i = 0; i <= WEFT_MAX_VALUES; i++)
        many[i] = weft_of_null();
    for (int who = 0; who < SIZE; who++) {
        cannot_start(agent, all, who, (weft_args){many, WEFT_MAX_VALUES + 1}, 30000, WEFT_ERR_TOO_LARGE, "1025 values");
        MUST_OK(meet_at(all, who * 10, 30000));
        cannot_start(agent, all, who, WEFT_VALUES(weft_of_i64(3), weft_of_tensor(NULL)), 30000, WEFT_ERR_INVALID,
                     "value 1 is a NULL tensor");
        cannot_start(agent, all, who, (weft_args){NULL, 2}, 30000, WEFT_ERR_INVALID, "2 values at NULL");
        cannot_start(agent, all, who, WEFT_NO_VALUES, -7, WEFT_ERR_INVALID, "timeout_ms is -7");
        MUST_OK(meet_at(all, who * 10 + 1, 30000));
        cannot_start(agent, all, who, WEFT_VALUES(weft_of_bytes(bytes, large)), 30000, WEFT_ERR_TOO_LARGE,
                     "carries 67108864");
        MUST_OK(meet_at(all, who * 10 + 2, 30000));
    }
    free(bytes);
    free(many);
    weft_group_destroy(all);
}

WORLD_TEST(missed, 1, 1, SCENE)

/* ---- Too much together ------------------------------------------------------------------------------------------------ */

static void too_much(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all");
    size_t third = 25u << 20, fits = 20u << 20;
    char *bytes = calloc(1, third), text[320];
    size_t count = WEFT_MAX_CALL_TENSORS / SIZE + 1;
    weft_tensor **tensors = calloc(count, sizeof *tensors);
    weft_tensor *one = weft_tensor_full(WEFT_SHAPE(1), WEFT_FLOAT32, 1);
    weft_future *future;
    weft_values *got;
    weft_status st = weft_group_all_gather_async(all, WEFT_VALUES(weft_of_bytes(bytes, third)), 60000, &future);
    MUST_BE(end_of(st, future, text, sizeof text), WEFT_ERR_TOO_LARGE);
    must_speak_of(text, "7864"); /* 3 * 25 MiB */
    must_speak_of(text, "a call carries 67108864");
    if (scene->sim) {
        MUST_OK(weft_group_all_gather(all, WEFT_VALUES(weft_of_bytes(bytes, fits)), 60000, &got));
        weft_values_unref(got);
    }
    for (size_t i = 0; i < count; i++)
        tensors[i] = one;
    st = weft_group_all_gather_async(all, WEFT_VALUES(weft_of_tensors((weft_tensors){tensors, count})), 60000, &future);
    MUST_BE(end_of(st, future, text, sizeof text), WEFT_ERR_TOO_LARGE);
    must_speak_of(text, "65538 tensors");
    MUST_OK(meet_at(all, 1, 30000));
    weft_tensor_unref(one);
    free(tensors);
    free(bytes);
    weft_group_destroy(all);
}

WORLD_TEST(too_much, 1, 1, SCENE)

/* ---- Memory ------------------------------------------------------------------------------------------------------------ */

static int victim, missed_count, unsaid_count;

/* One allocation of the victim's fails as it starts: whoever is told at all is told the same, and all stay in step. */
static void without_memory(weft_agent *agent, void *arg)
{
    bool is_victim = weft_agent_rank(agent) == victim;
    weft_future *future;
    char text[320];
    for (int step = 0; step < 16; step++) {
        weft_group *group = make(agent, "all");
        MUST_OK(weft_group_barrier(group, 10000)); /* so that connections are there */
        if (is_victim)
            until_failure = step;
        weft_status st = weft_group_barrier_async(group, 10000, &future);
        if (is_victim)
            until_failure = -1;
        bool started = !st;
        st = end_of(st, future, text, sizeof text);
        MUST(st == WEFT_OK || st == WEFT_ERR_MEMORY);
        if (is_victim && st)
            missed_count++;
        if (st && !is_victim)
            must_speak_of(text, "could not take part in operation 1");
        MUST(started || is_victim);
        MUST_OK(meet_at(group, step, 10000));
        weft_group_destroy(group);
    }
}

static void test_without_memory(void **state)
{
    for (victim = 0; victim < 2; victim++) {
        missed_count = 0;
        world_play(&(world){SCENE, .program = without_memory}, 1, 0);
        assert_true(missed_count > 2);
    }
}

/* There is no memory even to say so: the group is over for the victim; others hear by their time limit, or from it. */
static void unsaid(weft_agent *agent, void *arg)
{
    bool is_victim = weft_agent_rank(agent) == victim;
    weft_group *group = make(agent, "all"), *other = make(agent, "other");
    weft_future *future;
    char text[320];
    MUST_OK(weft_group_barrier(group, 10000));
    if (is_victim)
        fail_allocations(true);
    weft_status st = weft_group_barrier_async(group, 1000, &future);
    if (is_victim)
        fail_allocations(false);
    st = end_of(st, future, text, sizeof text);
    MUST_BE(st, is_victim ? WEFT_ERR_MEMORY : victim ? WEFT_ERR_TIMEOUT : WEFT_ERR_STATE);
    if (!is_victim)
        must_speak_of(text, victim ? "rank 1 did not come" : "rank 0 could neither take part in operation 1");
    if (is_victim || !victim) {
        MUST_BE(weft_group_barrier(group, 1000), WEFT_ERR_STATE);
        MUST_BE(weft_group_barrier(group, 1000), WEFT_ERR_STATE);
        unsaid_count++;
    }
    MUST_OK(meet_at(other, 1, 10000));
    weft_group_destroy(group);
    weft_group_destroy(other);
}

static void test_unsaid(void **state)
{
    unsaid_count = 0;
    for (victim = 0; victim < 2; victim++)
        world_play(&(world){SCENE, .program = unsaid}, 1, 0);
    assert_int_equal(unsaid_count, 1 + SIZE); /* where the gathering member cannot go on, nobody can */
}

/* ---- Stopping after it ---------------------------------------------------------------------------------------------- */

/* Not rank 0: with that the store would go. */
static const int first_is_1[] = {1, 0, 2};
static atomic_int good;
static bool with_values, by_hand;

static void stop_after(weft_agent *agent, void *arg)
{
    weft_group *group;
    weft_future *future;
    weft_tensor *x = weft_tensor_full(WEFT_SHAPE(1 << 17), WEFT_FLOAT32, 1); /* 512 KiB: to be pulled from the first */
    char text[320];
    MUST_OK(weft_group_create(agent, "all", first_is_1, SIZE, &group));
    weft_status st = with_values ? weft_group_all_gather_async(group, WEFT_VALUES(weft_of_tensor(x)), 30000, &future)
                                 : weft_group_barrier_async(group, 30000, &future);
    MUST_OK(st);
    while (by_hand && !weft_future_done(future))
        weft_agent_progress(agent, 1);
    st = end_of(st, future, text, sizeof text);
    if (st)
        fprintf(stderr, "rank %d: %s: %s\n", weft_agent_rank(agent), weft_status_name(st), text);
    else
        good++;
    weft_tensor_unref(x);
    weft_group_destroy(group);
    /* The others stay until rank 1 has gone. */
    if (weft_agent_rank(agent) != 1)
        while (weft_agent_alive(agent, 1)) {
            if (by_hand)
                weft_agent_progress(agent, 1);
            else
                world_sleep_ms(scene, 1);
        }
}

static void test_stop(void **state)
{
    for (int round = 0; round < 40; round++) {
        good = 0;
        with_values = round % 2;
        world w = {.fabric = round < 30 ? WORLD_SIM : WORLD_TCP,
                   .size = SIZE,
                   .seed = (uint64_t)round + 1,
                   .program = stop_after,
                   .stop = true};
        by_hand = round >= 36;
        if (by_hand)
            w.adjust = world_no_threads;
        scene = &w;
        world_run(&w);
        assert_int_equal(good, SIZE);
    }
}

UNIT_MAIN(test_missed, test_too_much, test_without_memory, test_unsaid, test_stop)
