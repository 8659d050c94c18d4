/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_owed.c - references and full queues. Answers and parts that name references stay behind the calls that
 * wait for the same worker, and are not refused as these are: whoever asked waits for them. And a reference may be
 * passed on while the call that is to make its value waits for room. On sim.
 */
#include "rpc/world.h"

#include <weft/sim.h>

enum { PIECE = 900, CALLS_MAX = 200, QUEUE_BYTES = 32768, PATIENT_MS = 5000, HALF_MS = PATIENT_MS / 2 };

static struct shared {
    world *w;
    _Atomic(weft_call *) held;
    atomic_int taken, parts, made;
    bool gives_up;
} shared;

static char piece[PIECE + 1];

static weft_status run_lend(weft_call *call, void *user)
{
    atomic_store(&shared.held, weft_call_defer(call));
    return WEFT_DEFERRED;
}

static weft_status run_take(weft_call *call, void *user)
{
    atomic_fetch_add(&shared.taken, 1);
    return WEFT_OK;
}

static weft_status run_make(weft_call *call, void *user)
{
    atomic_fetch_add(&shared.made, 1);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(3)));
    return WEFT_OK;
}

static weft_status run_read(weft_call *call, void *user)
{
    weft_values *got;
    int64_t number;
    weft_status status = weft_rref_to_here(weft_call_rref(call, 0), PATIENT_MS, &got, NULL);
    if (status)
        return status;
    MUST_OK(weft_values_get_i64(got, 0, &number));
    MUST(number == 3);
    weft_values_unref(got);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "make", .gives = {WEFT_TYPE_I64}, .run = run_make},
    {.name = "read", .takes = {WEFT_TYPE_RREF}, .run = run_read},
    {.name = "lend", .gives = {WEFT_TYPE_RREF}, .run = run_lend},
    {.name = "take", .takes = {WEFT_TYPE_STRING}, .run = run_take},
};

static void adjust(weft_agent_options *options, void *arg)
{
    options->queue_limit_bytes = QUEUE_BYTES;
    options->death_timeout_ms = WEFT_FOREVER; /* who stands still is not dead */
    options->leaks_fail = true;
}

static void must_read(weft_rref *rref, int64_t wanted)
{
    weft_values *got;
    int64_t number;
    MUST_OK(weft_rref_to_here(rref, HALF_MS, &got, NULL));
    MUST_OK(weft_values_get_i64(got, 0, &number));
    MUST(number == wanted);
    weft_values_unref(got);
}

static int fill_queue(weft_agent *agent, weft_future **futures)
{
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    weft_args args = WEFT_VALUES(weft_of_string(piece));
    int count = 0;
    weft_status status;
    while (!(status = weft_rpc_async(agent, weft_to_rank(1), "take", args, &options, &futures[count])))
        MUST(++count < CALLS_MAX);
    MUST_BE(status, WEFT_ERR_AGAIN);
    return count;
}

/* Has its caller's question in hand, and no room for calls to it. */
static void lender(weft_agent *agent)
{
    weft_future *futures[CALLS_MAX];
    weft_rref *first, *second;
    while (!atomic_load(&shared.held))
        world_sleep_ms(shared.w, 1);
    weft_sim_pause(shared.w->sim, 1);
    int count = fill_queue(agent, futures);
    MUST_OK(weft_rref_create(agent, weft_of_i64(1), &first, NULL));
    MUST_OK(weft_rref_create(agent, weft_of_i64(2), &second, NULL));
    weft_call *call = atomic_load(&shared.held);
    MUST_OK(weft_call_send_item(call, WEFT_VALUES(weft_of_rref(first))));
    weft_call_give(call, WEFT_VALUES(weft_of_rref(second)));
    weft_call_finish(call, WEFT_OK);
    weft_rref_unref(first);
    weft_rref_unref(second);
    weft_sim_resume(shared.w->sim, 1);
    for (int i = 0; i < count; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    MUST(atomic_load(&shared.taken) == count);
}

static void on_item(const weft_values *part, void *arg)
{
    weft_rref *rref;
    MUST_OK(weft_values_get_rref(part, 0, &rref));
    must_read(rref, 1);
    atomic_fetch_add(&shared.parts, 1);
}

static void borrower(weft_agent *agent)
{
    weft_values *got;
    weft_rref *rref;
    weft_rpc_options options = {.timeout_ms = PATIENT_MS, .on_item = on_item};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "lend", WEFT_NO_VALUES, &options, &got));
    MUST(atomic_load(&shared.parts) == 1);
    MUST_OK(weft_values_get_rref(got, 0, &rref));
    must_read(rref, 2);
    weft_values_unref(got);
}

static void program(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        lender(agent);
    else
        borrower(agent);
}

/* Rank 1 stands still until the handle is rank 2's, or until no attempt is left. */
static void passed_early(weft_agent *agent, void *arg)
{
    weft_future *futures[CALLS_MAX], *read, *made[2];
    weft_rref *rrefs[2];
    weft_rpc_options options = {.timeout_ms = PATIENT_MS,
                                .retry = {.attempts = shared.gives_up ? 3 : 1000, .pause_ms = 10, .pause_most_ms = 10}};
    if (weft_agent_rank(agent) != 0)
        return;
    weft_sim_pause(shared.w->sim, 1);
    int count = fill_queue(agent, futures);
    for (int i = 0; i < 2; i++) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, &options, &rrefs[i]));
        made[i] = weft_rref_created(rrefs[i]);
    }
    weft_args args = WEFT_VALUES(weft_of_rref(rrefs[1]));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(2), "read", args, &(weft_rpc_options){.timeout_ms = PATIENT_MS}, &read));
    for (int i = 0; shared.gives_up && i < 2; i++)
        MUST_BE(weft_future_wait(made[i], HALF_MS), WEFT_ERR_AGAIN);
    world_sleep_ms(shared.w, 50); /* attempts find no room; the handle's new holder has spoken to its owner */
    weft_sim_resume(shared.w->sim, 1);
    weft_status status = weft_future_wait(read, HALF_MS);
    MUST(weft_future_done(read) && (status != WEFT_OK) == shared.gives_up);
    for (int i = 0; i < 2; i++) {
        MUST_BE(weft_future_wait(made[i], HALF_MS), shared.gives_up ? WEFT_ERR_AGAIN : WEFT_OK);
        weft_future_unref(made[i]);
        weft_rref_unref(rrefs[i]);
    }
    for (int i = 0; i < count; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    weft_future_unref(read);
    MUST(atomic_load(&shared.made) == (shared.gives_up ? 0 : 2));
}

static void run(void (*played)(weft_agent *, void *), int size, bool gives_up)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world w = {.fabric = WORLD_SIM,
                   .size = size,
                   .seed = seed,
                   WORLD_FUNCTIONS(functions),
                   .program = played,
                   .adjust = adjust};
        memset(&shared, 0, sizeof(shared));
        shared.w = &w;
        shared.gives_up = gives_up;
        world_run(&w);
    }
}

static void test_full_queue(void **state)
{
    run(program, 2, false);
}

static void test_passed_early(void **state)
{
    run(passed_early, 3, false);
}

static void test_passed_and_given_up(void **state)
{
    run(passed_early, 3, true);
}

int main(void)
{
    memset(piece, 'x', PIECE);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_queue), cmocka_unit_test(test_passed_early),
                                       cmocka_unit_test(test_passed_and_given_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
