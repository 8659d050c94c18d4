/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_unreachable.c - the link between two workers is cut, and both go on reaching the store: calls between
 * them fail within bounded time, nobody is declared dead, and once it is healed they work again.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <sys/mman.h>

enum { OWNER, CALLER, CALLEE, SIZE }; /* the store is OWNER's, which reaches both */

#define BOUND_MS 500
#define MOST_MS (4 * BOUND_MS) /* three bounds, and what the looking costs */
#define LARGE (64 << 20)
#define SMALL 400 /* bytes: it rides in the frame */
#define PAGE 4096

typedef struct scene {
    world w;
    int runs, deaths;
    bool elastic;
    bool slow; /* the handler takes its time */
    int done;
} scene;

static scene *playing;

static weft_status run_count(weft_call *call, void *user)
{
    playing->runs++;
    if (playing->slow)
        weft_sim_sleep(playing->w.sim, 6 * (uint64_t)BOUND_MS * 1000000);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static weft_status run_large(weft_call *call, void *user)
{
    playing->runs++;
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8);
    MUST(large);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(large)));
    weft_tensor_unref(large);
    return WEFT_OK;
}

static weft_status run_take(weft_call *call, void *user)
{
    playing->runs++;
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "count", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_count},
    {.name = "large", .gives = {WEFT_TYPE_TENSOR}, .run = run_large},
    {.name = "take", .takes = {WEFT_TYPE_REST}, .run = run_take},
};

static void count_deaths(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    ((scene *)arg)->deaths +=
        event == WEFT_MEMBER_DEAD || event == WEFT_MEMBER_SELF_EVICTED || event == WEFT_MEMBER_STORE_LOST;
}

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = BOUND_MS;
    options->on_membership = count_deaths;
    options->membership_arg = arg;
}

static void adjust_elastic(weft_agent_options *options, void *arg)
{
    adjust(options, arg);
    options->elastic = true;
}

static uint64_t ms_of(weft_agent *agent)
{
    return weft_agent_now_ns(agent) / 1000000;
}

static void pause_ms(uint64_t ms)
{
    weft_sim_sleep(playing->w.sim, ms * 1000000);
}

/* Starts it without a time limit. */
static weft_future *start(weft_agent *agent, int to, const char *function, weft_args args)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), function, args, &(weft_rpc_options){.timeout_ms = WEFT_FOREVER},
                           &future));
    return future;
}

/* It ends as unreachable, with what is known of the handler, in bounded time. */
static void must_be_unreachable(weft_agent *agent, weft_future *future, uint64_t begun_ms, weft_ran ran)
{
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_UNREACHABLE);
    MUST(weft_error_ran(weft_future_error(future)) == ran);
    MUST(strstr(weft_error_message(weft_future_error(future)), "the last attempt to connect to"));
    MUST(ms_of(agent) - begun_ms <= MOST_MS);
    weft_future_unref(future);
}

static void must_count(weft_agent *agent, int to)
{
    weft_future *future = start(agent, to, "count", WEFT_VALUES(weft_of_i64(41)));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
}

/* Tries as a program would; healed, it must work before another such time is over. */
static void must_count_again(weft_agent *agent, int to)
{
    uint64_t begun_ms = ms_of(agent);
    weft_rpc_options options = {.timeout_ms = MOST_MS, .retry = {.attempts = 100}};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "count", WEFT_VALUES(weft_of_i64(1)), &options, NULL));
    MUST(ms_of(agent) - begun_ms <= MOST_MS);
}

/* The others do nothing of their own until the caller is through. */
static void run(scene *s, uint64_t seed, void (*program)(weft_agent *agent, void *arg))
{
    s->w = (world){.size = SIZE,
                   .seed = seed,
                   WORLD_FUNCTIONS(functions),
                   .program = program,
                   .adjust = s->elastic ? adjust_elastic : adjust,
                   .arg = s};
    playing = s;
    world_run(&s->w);
    assert_int_equal(s->deaths, 0);
}

/* cmocka's test of one program, with so many seeds. */
#define SCENE_TEST(name, program, seeds)                                                                               \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        for (uint64_t seed = 1; seed <= (seeds); seed++)                                                               \
            run(&(scene){0}, seed, program);                                                                           \
    }

static bool is_caller(weft_agent *agent, scene *s)
{
    if (weft_agent_rank(agent) == CALLER)
        return true;
    while (!s->done)
        pause_ms(10);
    return false;
}

static void cut_caller_and_callee(scene *s)
{
    weft_sim_cut(s->w.sim, CALLER, CALLEE);
}

static void heal_caller_and_callee(scene *s)
{
    weft_sim_heal(s->w.sim, CALLER, CALLEE);
}

/* ---- Programs -------------------------------------------------------------------------------------------------- */

static void before_any_lane(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_caller(agent, s))
        return;
    cut_caller_and_callee(s);
    for (int i = 0; i < 3; i++) {
        uint64_t begun_ms = ms_of(agent);
        weft_future *future = start(agent, CALLEE, "count", WEFT_VALUES(weft_of_i64(1)));
        must_be_unreachable(agent, future, begun_ms, WEFT_RAN_NO);
        must_count(agent, OWNER);
    }
    MUST(s->runs == 3); /* the owner's */
    heal_caller_and_callee(s);
    must_count_again(agent, CALLEE);
    s->done = 1;
}

SCENE_TEST(a_lane_that_never_comes_up, before_any_lane, 5)

static void while_it_runs(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_caller(agent, s))
        return;
    must_count(agent, CALLEE);
    s->slow = true;
    weft_future *running = start(agent, CALLEE, "count", WEFT_VALUES(weft_of_i64(1)));
    pause_ms(BOUND_MS);
    uint64_t cut_ms = ms_of(agent);
    MUST(s->runs == 2);
    cut_caller_and_callee(s);
    weft_future *leaves = start(agent, CALLEE, "count", WEFT_VALUES(weft_of_i64(1)));
    must_be_unreachable(agent, running, cut_ms, WEFT_RAN_MAYBE);
    must_be_unreachable(agent, leaves, cut_ms, WEFT_RAN_MAYBE);
    MUST(s->runs == 2);
    weft_future *waits = start(agent, CALLEE, "count", WEFT_VALUES(weft_of_i64(1)));
    must_be_unreachable(agent, waits, ms_of(agent), WEFT_RAN_NO);
    s->slow = false;
    heal_caller_and_callee(s);
    must_count_again(agent, CALLEE);
    /* What had left may run, and was cancelled behind; what had not does not. None runs twice. */
    MUST(s->runs >= 3 && s->runs <= 4);
    s->done = 1;
}

SCENE_TEST(a_lane_that_breaks_under_a_call, while_it_runs, 5)

/* A call that takes longer than all bounds together, over a link that is well. */
static void slowly(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_caller(agent, s))
        return;
    s->slow = true;
    must_count(agent, CALLEE);
    s->done = 1;
}

static void who_only_waits_is_not_failed(void **state)
{
    scene s = {0};
    run(&s, 1, slowly);
    assert_int_equal(s.runs, 1);
}

static void under_payload(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_caller(agent, s))
        return;
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8);
    must_count(agent, CALLEE);
    for (int pulls = 0; pulls < 2; pulls++) {
        weft_args sent = pulls ? WEFT_NO_VALUES : WEFT_VALUES(weft_of_tensor(large));
        weft_future *future = start(agent, CALLEE, pulls ? "large" : "take", sent);
        pause_ms(3); /* 64 MiB take more than 6 */
        cut_caller_and_callee(s);
        MUST(!weft_future_done(future));
        must_be_unreachable(agent, future, ms_of(agent), WEFT_RAN_MAYBE);
        heal_caller_and_callee(s);
        must_count_again(agent, CALLEE);
        weft_future *again = start(agent, CALLEE, pulls ? "large" : "take", sent);
        MUST_OK(weft_future_wait(again, WEFT_FOREVER));
        weft_future_unref(again);
    }
    weft_tensor_unref(large);
    s->done = 1;
}

SCENE_TEST(payload_that_is_under_way, under_payload, 3)

/* The owner calls; what it passes on is the caller's, whom the callee cannot ask. */
static void a_reference(weft_agent *agent, void *arg)
{
    scene *s = arg;
    weft_rref *rref;
    weft_values *values;
    if (weft_agent_rank(agent) != OWNER) {
        while (!s->done)
            pause_ms(10);
        return;
    }
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(CALLER), "count", WEFT_VALUES(weft_of_i64(1)), NULL, &rref));
    MUST_OK(weft_rref_to_here(rref, WEFT_FOREVER, &values, NULL));
    weft_values_unref(values);
    cut_caller_and_callee(s);
    uint64_t begun_ms = ms_of(agent);
    weft_future *future = start(agent, CALLEE, "take", WEFT_VALUES(weft_of_rref(rref)));
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_UNREACHABLE);
    MUST(ms_of(agent) - begun_ms <= MOST_MS && s->runs == 1);
    weft_future_unref(future);
    heal_caller_and_callee(s);
    future = start(agent, CALLEE, "take", WEFT_VALUES(weft_of_rref(rref)));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
    weft_rref_unref(rref);
    s->done = 1;
}

SCENE_TEST(a_reference_whose_owner_cannot_be_asked, a_reference, 5)

/* Each leaves something for the other that never arrives. */
static void without_healing(weft_agent *agent, void *arg)
{
    scene *s = arg;
    weft_rref *rref;
    if (!is_caller(agent, s))
        return;
    while (!weft_agent_name(agent, CALLEE)) /* elastic: it may join later */
        pause_ms(1);
    must_count(agent, CALLEE);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(CALLEE), "count", WEFT_VALUES(weft_of_i64(1)), NULL, &rref));
    weft_values *values;
    MUST_OK(weft_rref_to_here(rref, WEFT_FOREVER, &values, NULL));
    weft_values_unref(values);
    s->slow = true;
    weft_future *future = start(agent, CALLEE, "count", WEFT_VALUES(weft_of_i64(1)));
    pause_ms(BOUND_MS);
    cut_caller_and_callee(s);
    must_be_unreachable(agent, future, ms_of(agent), WEFT_RAN_MAYBE);
    weft_rref_unref(rref);
    s->done = 1;
}

static void a_job_ends_though_a_link_stays_cut(void **state)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        scene s = {.elastic = seed % 2};
        run(&s, seed, without_healing);
        assert_int_equal(s.runs, 3);
    }
}

/* A late call's message leaves again when the lane is back: by then nothing of the caller's memory is looked at. */
static void late_then_back(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_caller(agent, s))
        return;
    must_count(agent, CALLEE);
    cut_caller_and_callee(s);
    uint8_t *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    weft_tensor *x = tensor_wrap(WEFT_SHAPE(SMALL), WEFT_DTYPE_UINT8, memory, NULL, NULL, NULL);
    const weft_rpc_options late = {.timeout_ms = 20};
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(CALLEE), "take", WEFT_VALUES(weft_of_tensor(x)), &late, NULL),
            WEFT_ERR_TIMEOUT);
    weft_tensor_unref(x);
    MUST(mprotect(memory, PAGE, PROT_NONE) == 0);
    pause_ms(3 * BOUND_MS / 2); /* the lane is given up meanwhile */
    heal_caller_and_callee(s);
    must_count_again(agent, CALLEE);
    MUST(munmap(memory, PAGE) == 0);
    s->done = 1;
}

SCENE_TEST(a_late_call_leaves_the_callers_memory_alone, late_then_back, 5)

UNIT_MAIN(a_lane_that_never_comes_up, a_lane_that_breaks_under_a_call, who_only_waits_is_not_failed,
          payload_that_is_under_way, a_reference_whose_owner_cannot_be_asked, a_job_ends_though_a_link_stays_cut,
          a_late_call_leaves_the_callers_memory_alone)
