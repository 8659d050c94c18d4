/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_cancel.c - giving up: cancelling against completing, time-outs against replies, a thousand at once, what
 * waits for room, from callbacks; and what is known of the handler afterwards. No tensor is touched after its call
 * has ended.
 */
#include "rpc/world.h"
#include "prng.h"
#include "tensors.h"

#define SIZE 3
#define MANY 1000
#define LARGE 40000
#define CANARY 77
#define PLACES 64 /* of results that land, and how many elements each has */
#define PLACE 12000
#define RACE_SEEDS 150

static world *the_world;
static weft_call *held[2 * MANY];
static atomic_int holding, handlers_begun, seen_cancelled, forwarded;

static weft_status run_hold(weft_call *call, void *user)
{
    held[atomic_fetch_add(&holding, 1)] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

/* Runs until nobody wants it: a long handler that stops early. */
static weft_status run_until_cancelled(weft_call *call, void *user)
{
    weft_future *unwanted = weft_call_cancellation(call);
    atomic_fetch_add(&handlers_begun, 1);
    MUST_BE(weft_future_wait(unwanted, 20000), WEFT_ERR_CANCELLED);
    MUST(weft_call_cancelled(call));
    weft_future_unref(unwanted);
    atomic_fetch_add(&seen_cancelled, 1);
    return WEFT_ERR_CANCELLED;
}

/* Floods rank 2, which cannot be reached, until a call waits for room, for the sake of this one. */
static weft_status run_flood(weft_call *call, void *user)
{
    static const char text[1500];
    weft_agent *agent = weft_call_agent(call);
    weft_args args = WEFT_VALUES(weft_of_bytes(text, sizeof(text)));
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER}, waiting = {.timeout_ms = 60, .wait_for_room = true};
    weft_future *future = NULL;
    weft_status status;
    while ((status = weft_rpc_async(agent, weft_to_rank(2), "hold", args, &options, &future)) == WEFT_OK)
        weft_future_unref(future);
    MUST_BE(status, WEFT_ERR_AGAIN);
    MUST_BE(weft_rpc_async(agent, weft_to_rank(2), "hold", args, &waiting, &future), WEFT_ERR_TIMEOUT);
    waiting.timeout_ms = WEFT_FOREVER;
    waiting.parent = call;
    MUST_BE(weft_rpc_async(agent, weft_to_rank(2), "hold", args, &waiting, &future), WEFT_ERR_CANCELLED);
    atomic_fetch_add(&forwarded, 1);
    return WEFT_OK;
}

static weft_status run_many(weft_call *call, void *user)
{
    weft_tensor *all[PLACES];
    for (int i = 0; i < PLACES; i++)
        all[i] = tensor_full(WEFT_SHAPE(PLACE), WEFT_DTYPE_INT32, 5);
    weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){all, PLACES})));
    for (int i = 0; i < PLACES; i++)
        weft_tensor_unref(all[i]);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "hold", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_hold},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "until cancelled", .gives = {WEFT_TYPE_REST}, .run = run_until_cancelled},
    {.name = "flood", .run = run_flood},
    {.name = "many", .gives = {WEFT_TYPE_TENSORS}, .run = run_many},
};

static void finish_held(void)
{
    for (int i = 0; i < atomic_load(&holding); i++)
        weft_call_finish(held[i], WEFT_OK);
    atomic_store(&holding, 0);
}

/* ---- One --------------------------------------------------------------------------------------------------------- */

static void reaches_the_handler(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int to = 0; to < 2; to++) {
        weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
        weft_future *future;
        atomic_store(&seen_cancelled, 0);
        atomic_store(&handlers_begun, 0);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(to), "until cancelled", WEFT_NO_VALUES, &options, &future));
        while (!atomic_load(&handlers_begun)) /* one that has not begun may never run */
            MUST_BE(weft_future_wait(future, 1), WEFT_ERR_TIMEOUT);
        MUST_OK(weft_future_cancel(future));
        MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
        MUST(weft_error_ran(weft_future_error(future)) == WEFT_RAN_MAYBE);
        MUST(strcmp(weft_error_function(weft_future_error(future)), "until cancelled") == 0);
        MUST_BE(weft_future_cancel(future), WEFT_ERR_COMPLETED);
        while (!atomic_load(&seen_cancelled))
            world_sleep_ms(the_world, 1);
        weft_future_unref(future);
    }
}

/* ---- Races ------------------------------------------------------------------------------------------------------- */

typedef struct racer {
    weft_future *future;
    weft_tensor *x, *land;
    bool ended_badly;
} racer;

static void cancel_it(weft_future *future, void *arg)
{
    weft_status status = weft_future_cancel(arg); /* whatever has become of it */
    (void)status;
}

static void drop_future(void *future)
{
    weft_future_unref(future);
}

static void start_racer(weft_agent *agent, racer *r, uint64_t *random)
{
    int64_t size = (uint32_t)prng_next(random) % 2 ? 16 : LARGE;
    bool lands = (uint32_t)prng_next(random) % 2;
    r->x = tensor_full(WEFT_SHAPE(size), WEFT_DTYPE_INT32, 5);
    r->land = tensor_full(WEFT_SHAPE(size), WEFT_DTYPE_INT32, 0);
    weft_rpc_options options = {.land = {&r->land, lands}, .timeout_ms = WEFT_FOREVER};
    if ((uint32_t)prng_next(random) % 4 == 0)
        options.timeout_ms = 1 + (uint32_t)prng_next(random) % 2;
    if ((uint32_t)prng_next(random) % 4 == 0)
        options.retry = (weft_retry){.attempts = 3, .attempt_ms = 1, .pause_ms = 1};
    MUST_OK(weft_rpc_async(agent, weft_to_rank((int)((uint32_t)prng_next(random) % SIZE)), "echo",
                           WEFT_VALUES(weft_of_tensor(r->x)), &options, &r->future));
}

/* Once it has ended badly, nobody touches its tensors: what is written there now stays. */
static void end_racer(racer *r)
{
    weft_status status = weft_future_wait(r->future, WEFT_FOREVER);
    MUST(status == WEFT_OK || status == WEFT_ERR_CANCELLED || status == WEFT_ERR_TIMEOUT);
    r->ended_badly = status != WEFT_OK;
    if (!status) {
        const int32_t *data = weft_tensor_data(weft_future_tensor(r->future, 0));
        for (int64_t i = 0; i < weft_tensor_numel(r->x); i++)
            MUST(data[i] == 5);
        return;
    }
    weft_tensor_fill(r->land, CANARY);
    weft_tensor_fill(r->x, CANARY);
}

static void check_racer(racer *r)
{
    const int32_t *land = weft_tensor_data(r->land), *x = weft_tensor_data(r->x);
    for (int64_t i = 0; r->ended_badly && i < weft_tensor_numel(r->land); i++)
        MUST(land[i] == CANARY && x[i] == CANARY);
    weft_future_unref(r->future);
    weft_tensor_unref(r->x);
    weft_tensor_unref(r->land);
}

static void races(weft_agent *agent, void *arg)
{
    enum { RACERS = 40 };
    racer racers[RACERS] = {{0}};
    uint64_t random = the_world->seed * 31 + (uint64_t)weft_agent_rank(agent);
    for (int i = 0; i < RACERS; i++) {
        start_racer(agent, &racers[i], &random);
        uint32_t what = (uint32_t)prng_next(&random) % 6;
        weft_status status = WEFT_OK;
        if (what == 0)
            status = weft_future_cancel(racers[i].future);
        else if (what == 1 && the_world->sim)
            weft_sim_sleep(the_world->sim, (uint32_t)prng_next(&random) % 60000);
        else if (what == 2 && i)
            MUST_OK(weft_future_add_done_callback(racers[i].future, cancel_it, weft_future_ref(racers[i - 1].future),
                                                  drop_future));
        if (what == 1)
            status = weft_future_cancel(racers[i].future);
        if (what == 3) { /* twice, and what has been cancelled already */
            status = weft_future_cancel(racers[i].future);
            status = weft_future_cancel(racers[(uint32_t)prng_next(&random) % (uint32_t)(i + 1)].future);
        }
        (void)status; /* whoever came first */
    }
    for (int i = 0; i < RACERS; i++)
        end_racer(&racers[i]);
    world_sleep_ms(the_world, 5); /* what would still be under way arrives */
    for (int i = 0; i < RACERS; i++)
        check_racer(&racers[i]);
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    MUST(stats.calls_started == stats.calls_finished);
}

/* ---- While results land ------------------------------------------------------------------------------------------ */

/* Cancelled when some of its results have landed, and others are on their way: none lands after its end. */
static void while_they_land(weft_agent *agent, void *arg)
{
    weft_tensor *places[PLACES];
    weft_future *future;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int i = 0; i < PLACES; i++)
        places[i] = tensor_zeros(WEFT_SHAPE(PLACE), WEFT_DTYPE_INT32);
    const int32_t *first = weft_tensor_data(places[0]);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "many", WEFT_NO_VALUES,
                           &(weft_rpc_options){.timeout_ms = WEFT_FOREVER, .land = {places, PLACES}}, &future));
    while (!first[0])
        weft_sim_sleep(the_world->sim, 1000);
    weft_sim_sleep(the_world->sim, the_world->seed % 10 * 10000);
    MUST_OK(weft_future_cancel(future));
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    weft_future_unref(future);
    for (int i = 0; i < PLACES; i++)
        weft_tensor_fill(places[i], CANARY);
    world_sleep_ms(the_world, 5);
    for (int i = 0; i < PLACES; i++) {
        const int32_t *data = weft_tensor_data(places[i]);
        for (int k = 0; k < PLACE; k++)
            MUST(data[k] == CANARY);
        weft_tensor_unref(places[i]);
    }
}

/* ---- Many -------------------------------------------------------------------------------------------------------- */

static void count_one(weft_future *future, void *arg)
{
    MUST_BE(weft_error_code(weft_future_error(future)), WEFT_ERR_CANCELLED);
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void thousand_at_once(weft_agent *agent, void *arg)
{
    static weft_future *futures[MANY];
    static atomic_int called;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = tensor_full(WEFT_SHAPE(2000), WEFT_DTYPE_INT32, 5);
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .wait_for_room = true};
    atomic_store(&called, 0);
    for (int i = 0; i < MANY; i++) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(i % SIZE), "hold",
                               i % 10 ? WEFT_NO_VALUES : WEFT_VALUES(weft_of_tensor(x)), &options, &futures[i]));
        MUST_OK(weft_future_add_done_callback(futures[i], count_one, &called, NULL));
    }
    while (atomic_load(&holding) < MANY)
        MUST_BE(weft_future_wait(futures[0], 1), WEFT_ERR_TIMEOUT);
    weft_future *all = weft_future_when_all(futures, MANY);
    uint64_t begun = weft_agent_now_ns(agent);
    MUST_OK(weft_future_cancel(all));
    MUST_OK(weft_future_wait(all, WEFT_FOREVER));
    MUST(weft_agent_now_ns(agent) - begun < 5000000000u);
    while (atomic_load(&called) < MANY)
        world_sleep_ms(the_world, 1);
    for (int i = 0; i < MANY; i++) {
        while (!weft_call_cancelled(held[i])) /* each of them is told */
            world_sleep_ms(the_world, 1);
        weft_future_unref(futures[i]);
    }
    finish_held();
    weft_future_unref(all);
    weft_tensor_unref(x);
}

/* ---- What is known of the handler -------------------------------------------------------------------------------- */

static void must_end(weft_future *future, weft_status code, weft_ran ran)
{
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), code);
    MUST(weft_error_ran(weft_future_error(future)) == ran);
    weft_future_unref(future);
}

/* The link is cut before anything was said: what is given up then has never left. One more was there before the cut. */
static void what_is_known(weft_agent *agent, void *arg)
{
    weft_sim *sim = the_world->sim;
    weft_rpc_options never = {.timeout_ms = WEFT_FOREVER}, soon = {.timeout_ms = 30};
    weft_future *arrived, *cancelled, *late, *dying;
    if (weft_agent_rank(agent) == 2)
        weft_sim_sleep(sim, 3600ull * 1000000000u); /* it will not live so long */
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, &never, &arrived));
    weft_sim_cut(sim, 0, 2);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(2), "hold", WEFT_NO_VALUES, &never, &cancelled));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(2), "hold", WEFT_NO_VALUES, &soon, &late));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(2), "hold", WEFT_NO_VALUES, &never, &dying));
    MUST_OK(weft_future_cancel(cancelled));
    must_end(cancelled, WEFT_ERR_CANCELLED, WEFT_RAN_NO);
    must_end(late, WEFT_ERR_TIMEOUT, WEFT_RAN_NO);
    while (!atomic_load(&holding))
        world_sleep_ms(the_world, 1);
    MUST_OK(weft_future_cancel(arrived));
    must_end(arrived, WEFT_ERR_CANCELLED, WEFT_RAN_MAYBE);
    finish_held();
    weft_sim_kill(sim, 2);
    must_end(dying, WEFT_ERR_PEER_DEAD, WEFT_RAN_NO);
    weft_error *error = NULL;
    soon.error = &error;
    MUST_BE(weft_rpc_async(agent, weft_to_rank(2), "hold", WEFT_NO_VALUES, &soon, &late), WEFT_ERR_PEER_DEAD);
    MUST(weft_error_ran(error) == WEFT_RAN_NO);
    weft_error_unref(error);
}

static void died_with_it(weft_agent *agent, void *arg)
{
    weft_sim *sim = the_world->sim;
    weft_rpc_options never = {.timeout_ms = WEFT_FOREVER};
    weft_future *future;
    weft_rref *reference;
    if (weft_agent_rank(agent) == 2)
        weft_sim_sleep(sim, 3600ull * 1000000000u);
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "hold", WEFT_NO_VALUES, &never, &reference));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(2), "hold", WEFT_NO_VALUES, &never, &future));
    weft_future *created = weft_rref_created(reference);
    while (atomic_load(&holding) < 2)
        world_sleep_ms(the_world, 1);
    weft_sim_kill(sim, 2);
    must_end(future, WEFT_ERR_PEER_DEAD, WEFT_RAN_MAYBE);
    must_end(created, WEFT_ERR_PEER_DEAD, WEFT_RAN_MAYBE);
    must_end(weft_rref_created(reference), WEFT_ERR_PEER_DEAD, WEFT_RAN_MAYBE); /* asked for afterwards */
    weft_rref_unref(reference);
    atomic_store(&holding, 0); /* these are gone with their worker */
}

/* ---- Room -------------------------------------------------------------------------------------------------------- */

static void waiting_for_room(weft_agent *agent, void *arg)
{
    weft_future *future;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_sim_cut(the_world->sim, 1, 2);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "flood", WEFT_NO_VALUES, NULL, &future));
    world_sleep_ms(the_world, 200);
    MUST(!weft_future_done(future));
    MUST_OK(weft_future_cancel(future));
    must_end(future, WEFT_ERR_CANCELLED, WEFT_RAN_MAYBE);
    while (!atomic_load(&forwarded))
        world_sleep_ms(the_world, 1);
    weft_sim_heal(the_world->sim, 1, 2);
    world_sleep_ms(the_world, 1000);
    finish_held();
}

static void little_room(weft_agent_options *options, void *arg)
{
    options->queue_limit_bytes = 16384;
    options->death_timeout_ms = WEFT_FOREVER;
}

/* ---- Running -------------------------------------------------------------------------------------------------- */

static void begin(world *w)
{
    the_world = w;
    atomic_store(&holding, 0);
    atomic_store(&forwarded, 0);
}

#define SCENE .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin

WORLD_TEST(reaches_the_handler, 20, 1, SCENE)
WORLD_TEST(races, RACE_SEEDS, 4, SCENE)
WORLD_TEST(while_they_land, 20, 0, SCENE)

WORLD_TEST(thousand_at_once, 2, 1, SCENE)

WORLD_TEST(what_is_known, 20, 0, SCENE, .close_may_fail = true)
WORLD_TEST(died_with_it, 20, 0, SCENE, .close_may_fail = true)

WORLD_TEST(waiting_for_room, 10, 0, SCENE, .adjust = little_room)

/* Cancelling, time-outs and retries leave no thread behind. */

UNIT_MAIN(test_reaches_the_handler, test_races, test_while_they_land, test_thousand_at_once, test_what_is_known,
          test_died_with_it, test_waiting_for_room)
