/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_late.c - a peer that goes on writing after a call has timed out or failed, on tcp. It reaches into its
 * own agent for the landing place's address and key, and pushes there again and again, whatever it is told.
 */
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

#include <pthread.h>
#include <time.h>

#define BYTES (64 << 20)
#define WATCH_MS 350
#define CANARY 0x5a

/* The peer's doings. */
static struct attack {
    weft_call *call;
    weft_tensor *junk;
    inside_range source;
    bool fail_at_once;
} attack;

static weft_status run_push_for_ever(weft_call *call, void *user)
{
    inside_range place = inside_landing(call);
    MUST(place.size == BYTES);
    inside_raid_begin(call, place, attack.junk, true);
    if (attack.fail_at_once)
        return WEFT_ERR_SHAPE;
    attack.call = weft_call_defer(call);
    return WEFT_DEFERRED;
}

/* Notes where the arguments lie, fails, and begins to read there when told. */
static weft_status run_pull_later(weft_call *call, void *user)
{
    attack.source = inside_argument(call);
    MUST(attack.source.size == BYTES);
    return WEFT_ERR_SHAPE;
}

static weft_status run_pull_now(weft_call *call, void *user)
{
    inside_raid_begin(call, attack.source, attack.junk, false);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "push for ever", .gives = {WEFT_TYPE_REST}, .run = run_push_for_ever},
    {.name = "pull later", .takes = {WEFT_TYPE_TENSOR}, .run = run_pull_later},
    {.name = "pull now", .run = run_pull_now},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

/* ---- The victim ------------------------------------------------------------------------------------------------ */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool all_canary(const weft_tensor *tensor)
{
    const uint8_t *bytes = weft_tensor_data(tensor);
    return bytes[0] == CANARY && memcmp(bytes, bytes + 1, BYTES - 1) == 0;
}

/* For a while no byte changes, and other calls to the same worker go on. */
static void watch(weft_agent *agent, weft_tensor *tensor)
{
    double until = now_s() + WATCH_MS * 1e-3;
    memset(weft_tensor_data(tensor), CANARY, BYTES);
    weft_tensor *x = tensor_arange(100000, WEFT_DTYPE_INT32),
                *land = tensor_zeros(WEFT_SHAPE(100000), WEFT_DTYPE_INT32);
    do {
        weft_rpc_options options = {.land = {&land, 1}, .timeout_ms = 20000};
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL));
        MUST(memcmp(weft_tensor_data(x), weft_tensor_data(land), 400000) == 0);
        MUST(all_canary(tensor));
    } while (now_s() < until);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
}

static void end_attack(void)
{
    atomic_store(&inside_raid.stop, true);
    for (int i = 0; i < 20000 && atomic_load(&inside_raid.running); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    MUST(!atomic_load(&inside_raid.running));
}

static void pushed_upon(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        return;
    weft_tensor *land = tensor_zeros(WEFT_SHAPE(BYTES), WEFT_DTYPE_UINT8);
    weft_rpc_options options = {.land = {&land, 1}, .timeout_ms = attack.fail_at_once ? 20000 : 60};
    weft_status status = weft_rpc_sync(agent, weft_to_rank(0), "push for ever", WEFT_NO_VALUES, &options, NULL);
    MUST_BE(status, attack.fail_at_once ? WEFT_ERR_REMOTE : WEFT_ERR_TIMEOUT);
    watch(agent, land);
    /* Its slab goes to the next tensor of that size. */
    const void *before = weft_tensor_data(land);
    weft_tensor_unref(land);
    land = tensor_empty(WEFT_SHAPE(BYTES), WEFT_DTYPE_UINT8);
    if (weft_tensor_data(land) != before)
        printf("         the slab was not used again at once\n");
    watch(agent, land);
    weft_tensor_unref(land);
    end_attack();
    printf("         %d pushes went through, %d were refused\n", atomic_load(&inside_raid.succeeded),
           atomic_load(&inside_raid.failed));
    if (attack.call)
        weft_call_finish(attack.call, WEFT_OK);
}

static void pulled_from(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        return;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(BYTES), WEFT_DTYPE_UINT8);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "pull later", WEFT_VALUES(weft_of_tensor(x)), NULL, NULL),
            WEFT_ERR_REMOTE);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "pull now", WEFT_NO_VALUES, NULL, NULL));
    watch(agent, x);
    end_attack();
    MUST(atomic_load(&inside_raid.succeeded) == 0); /* nothing of it could be read any more */
    weft_tensor_unref(x);
}

static void run(void (*program)(weft_agent *, void *), bool fail_at_once)
{
    memset(&attack, 0, sizeof(attack));
    attack.fail_at_once = fail_at_once;
    attack.junk = tensor_full(WEFT_SHAPE(BYTES), WEFT_DTYPE_UINT8, 0xee);
    world_run(&(world){.fabric = WORLD_TCP, .size = 2, WORLD_FUNCTIONS(functions), .program = program});
    weft_tensor_unref(attack.junk);
}

static void test_after_a_time_out(void **s)
{
    run(pushed_upon, false);
}

static void test_after_a_failure(void **s)
{
    run(pushed_upon, true);
}

static void test_arguments_cannot_be_read_later(void **s)
{
    run(pulled_from, false);
}

UNIT_MAIN(test_after_a_time_out, test_after_a_failure, test_arguments_cannot_be_read_later)
