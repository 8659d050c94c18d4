/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_one_way.c - of two workers only one can dial the other, or neither can any more: large payloads go over a
 * lane that the other opens, or end as unreachable within the bound, while small calls go on and nobody is declared
 * dead.
 */
#include "rpc/world.h"
#include "sim/sim.h"
#include "tensors.h"

enum { OWNER, OUTSIDE, INSIDE, SIZE }; /* INSIDE is behind a firewall: OUTSIDE cannot dial it; the store is OWNER's */

#define BOUND_MS 500
#define LARGE (4 << 20)

typedef struct scene {
    world w;
    int deaths, met;
    bool met_outside, done;
} scene;

static scene *playing;

static weft_status run_give(weft_call *call, void *user)
{
    weft_tensor *large = tensor_full(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8, 7);
    MUST(large);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(large)));
    weft_tensor_unref(large);
    return WEFT_OK;
}

static bool is_all(const weft_tensor *tensor, int byte)
{
    const uint8_t *data = weft_tensor_data(tensor);
    return data[0] == byte && memcmp(data, data + 1, LARGE - 1) == 0;
}

static weft_status run_take(weft_call *call, void *user)
{
    MUST(is_all(weft_call_tensor(call, 0), 3));
    return WEFT_OK;
}

static weft_status run_meet(weft_call *call, void *user)
{
    playing->met++;
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "give", .gives = {WEFT_TYPE_TENSOR}, .run = run_give},
    {.name = "take", .takes = {WEFT_TYPE_TENSOR}, .run = run_take},
    {.name = "meet", .run = run_meet},
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

static uint64_t ms_of(weft_agent *agent)
{
    return weft_agent_now_ns(agent) / 1000000;
}

/* A call without a time limit. */
static weft_future *start(weft_agent *agent, int to, const char *function, weft_args args)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), function, args, &(weft_rpc_options){.timeout_ms = WEFT_FOREVER},
                           &future));
    return future;
}

static void must_end_well(weft_future *future)
{
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
}

static void must_meet(weft_agent *agent, int rank)
{
    must_end_well(start(agent, rank, "meet", WEFT_NO_VALUES));
}

static void must_give(weft_agent *agent, int rank)
{
    weft_tensor *large;
    weft_future *future = start(agent, rank, "give", WEFT_NO_VALUES);
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST_OK(weft_values_get_tensor(weft_future_values(future), 0, &large));
    MUST(is_all(large, 7));
    weft_future_unref(future);
}

static void must_take(weft_agent *agent, int rank)
{
    weft_tensor *large = tensor_full(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8, 3);
    must_end_well(start(agent, rank, "take", WEFT_VALUES(weft_of_tensor(large))));
    weft_tensor_unref(large);
}

/* It ended in time, and says where and why. */
static void must_be_unreachable(weft_agent *agent, weft_future *future, uint64_t begun_ms, const char *address)
{
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_UNREACHABLE);
    const char *text = weft_error_message(weft_future_error(future));
    if (!strstr(text, address) || !strstr(text, "not answered"))
        fail_msg("%s", text);
    MUST(ms_of(agent) - begun_ms <= BOUND_MS + 1);
    weft_future_unref(future);
}

static void sleep_ms(uint64_t ms)
{
    weft_sim_sleep(playing->w.sim, ms * 1000000);
}

/* INSIDE dials OUTSIDE, so that small messages go both ways; then OUTSIDE plays, and the others wait for the end. */
static bool is_outside(weft_agent *agent, scene *s)
{
    int rank = weft_agent_rank(agent);
    if (rank == OWNER)
        wfi_sim_wall(s->w.sim, OUTSIDE, INSIDE, true);
    if (rank == INSIDE) {
        sleep_ms(1);
        must_meet(agent, OUTSIDE);
        s->met_outside = true;
    }
    while (rank == OUTSIDE && !s->met_outside)
        sleep_ms(1);
    while (rank != OUTSIDE && !s->done)
        sleep_ms(10);
    return rank == OUTSIDE;
}

static void run(scene *s, uint64_t seed, void (*program)(weft_agent *agent, void *arg))
{
    s->w =
        (world){.size = SIZE, .seed = seed, WORLD_FUNCTIONS(functions), .program = program, .adjust = adjust, .arg = s};
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

/* OUTSIDE pulls what INSIDE gives; INSIDE pulls what OUTSIDE passes; and again when the lane has closed for want of
 * use. */
static void walled_off(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_outside(agent, s))
        return;
    for (int i = 0; i < 2; i++) {
        uint64_t begun_ms = ms_of(agent);
        must_give(agent, INSIDE);
        MUST(ms_of(agent) - begun_ms < BOUND_MS);
        must_take(agent, INSIDE);
        sleep_ms(12000);
    }
    s->done = true;
}

SCENE_TEST(whoever_can_dial_does, walled_off, 5)

/* INSIDE has no reason of its own to dial OUTSIDE, and nothing has passed between them when OUTSIDE calls. */
static void called_from_outside(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int rank = weft_agent_rank(agent);
    if (rank == OWNER)
        wfi_sim_wall(s->w.sim, OUTSIDE, INSIDE, true);
    while (rank != OUTSIDE && !s->done)
        sleep_ms(10);
    if (rank != OUTSIDE)
        return;
    sleep_ms(1);
    uint64_t begun_ms = ms_of(agent);
    must_meet(agent, INSIDE);
    MUST(ms_of(agent) - begun_ms < 2 * BOUND_MS);
    must_give(agent, INSIDE);
    s->done = true;
}

/* Neither can dial the other. Once nobody wants anything the store hears nothing any more. */
static void called_in_vain(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int rank = weft_agent_rank(agent);
    if (rank == OWNER) {
        wfi_sim_wall(s->w.sim, OUTSIDE, INSIDE, true);
        wfi_sim_wall(s->w.sim, INSIDE, OUTSIDE, true);
    }
    while (rank != OUTSIDE && !s->done)
        sleep_ms(10);
    if (rank != OUTSIDE)
        return;
    sleep_ms(1);
    weft_future *future = start(agent, INSIDE, "meet", WEFT_NO_VALUES);
    sleep_ms(3 * BOUND_MS / 2);
    MUST_OK(weft_future_cancel(future)); /* before anybody is given up */
    weft_future_unref(future);
    sleep_ms(20000);
    uint64_t before = wfi_sim_channel_messages(s->w.sim);
    sleep_ms(10000);
    MUST(wfi_sim_channel_messages(s->w.sim) == before);
    s->done = true;
}

SCENE_TEST(nobody_is_sent_for_when_nothing_is_wanted, called_in_vain, 5)
SCENE_TEST(a_first_call_asks_by_way_of_the_store, called_from_outside, 5)

static void walled_both_ways(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_outside(agent, s))
        return;
    wfi_sim_wall(s->w.sim, INSIDE, OUTSIDE, true);
    weft_tensor *large = tensor_full(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8, 3);
    for (int i = 0; i < 2; i++) {
        uint64_t begun_ms = ms_of(agent);
        must_be_unreachable(agent, start(agent, INSIDE, "give", WEFT_NO_VALUES), begun_ms, "sim:2");
        begun_ms = ms_of(agent);
        weft_args args = WEFT_VALUES(weft_of_tensor(large));
        must_be_unreachable(agent, start(agent, INSIDE, "take", args), begun_ms, "sim:1");
        must_meet(agent, INSIDE);
    }
    weft_tensor_unref(large);
    wfi_sim_wall(s->w.sim, OUTSIDE, INSIDE, false);
    weft_rpc_options again = {.timeout_ms = 4 * BOUND_MS, .retry = {.attempts = 100}};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(INSIDE), "give", WEFT_NO_VALUES, &again, NULL));
    must_give(agent, INSIDE);
    s->done = true;
}

SCENE_TEST(payloads_end_within_the_bound, walled_both_ways, 5)

/* INSIDE stands still for most of the bound while a lane is wanted: that is no wall. */
static void stopped_meanwhile(weft_agent *agent, void *arg)
{
    scene *s = arg;
    if (!is_outside(agent, s))
        return;
    wfi_sim_wall(s->w.sim, OUTSIDE, INSIDE, false);
    weft_future *future = start(agent, INSIDE, "give", WEFT_NO_VALUES);
    for (int i = 0; i < 3; i++) {
        weft_sim_pause(s->w.sim, INSIDE);
        sleep_ms(BOUND_MS * 8 / 10);
        weft_sim_resume(s->w.sim, INSIDE);
        weft_sim_sleep(s->w.sim, 20000);
    }
    must_end_well(future);
    s->done = true;
}

SCENE_TEST(who_stands_still_is_not_behind_a_wall, stopped_meanwhile, 5)

UNIT_MAIN(whoever_can_dial_does, a_first_call_asks_by_way_of_the_store, nobody_is_sent_for_when_nothing_is_wanted,
          payloads_end_within_the_bound, who_stands_still_is_not_behind_a_wall)
