/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_owed.c - answers and parts that name references stay behind the calls that wait for the same worker, and are not refused
 * as these are when the queue is full: whoever asked waits for them. On sim.
 */
#include "rpc/must.h"
#include "rpc/world.h"

#include <weft/sim.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

enum { PIECE = 900, CALLS_MAX = 200, QUEUE_BYTES = 32768, PATIENT_MS = 5000, HALF_MS = PATIENT_MS / 2 };

static struct shared {
    world *w;
    _Atomic(weft_call *) held;
    atomic_int taken, parts;
} shared;

static char piece[PIECE + 1];

static weft_status run_lend(weft_call *call, void *user)
{
    (void)user;
    atomic_store(&shared.held, weft_call_defer(call));
    return WEFT_DEFERRED;
}

static weft_status run_take(weft_call *call, void *user)
{
    (void)call, (void)user;
    atomic_fetch_add(&shared.taken, 1);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "lend", .gives = {WEFT_RREF}, .run = run_lend},
    {.name = "take", .takes = {WEFT_STRING}, .run = run_take},
};

static void adjust(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->queue_limit_bytes = QUEUE_BYTES;
    options->death_timeout_ms = WEFT_FOREVER; /* who stands still is not dead */
    options->leaks_fail = true;
}

static void must_read(weft_rref *rref, int64_t wanted)
{
    weft_values *got;
    int64_t number;
    MUST_OK(weft_rref_to_here(rref, HALF_MS, &got));
    MUST_OK(weft_values_get_i64(got, 0, &number));
    MUST(number == wanted);
    weft_values_unref(got);
}

static int fill_queue(weft_agent *agent, weft_future **futures)
{
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    weft_args args = WEFT_VALUES(weft_of_string(piece));
    int count = 0;
    weft_status st;
    while (!(st = weft_rpc_async(agent, weft_to_rank(1), "take", args, &options, &futures[count])))
        MUST(++count < CALLS_MAX);
    MUST_BE(st, WEFT_ERR_AGAIN);
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
    MUST_OK(weft_rref_create(agent, weft_of_i64(1), &first));
    MUST_OK(weft_rref_create(agent, weft_of_i64(2), &second));
    weft_call *call = atomic_load(&shared.held);
    MUST_OK(weft_call_send_part(call, WEFT_VALUES(weft_of_rref(first))));
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

static void on_part(const weft_values *part, void *arg)
{
    weft_rref *rref;
    (void)arg;
    MUST_OK(weft_values_get_rref(part, 0, &rref));
    must_read(rref, 1);
    atomic_fetch_add(&shared.parts, 1);
}

static void borrower(weft_agent *agent)
{
    weft_values *got;
    weft_rref *rref;
    weft_rpc_options options = {.timeout_ms = PATIENT_MS, .on_part = on_part};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "lend", WEFT_NO_VALUES, &options, &got));
    MUST(atomic_load(&shared.parts) == 1);
    MUST_OK(weft_values_get_rref(got, 0, &rref));
    must_read(rref, 2);
    weft_values_unref(got);
}

static void program(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) == 0)
        lender(agent);
    else
        borrower(agent);
}

static void test_full_queue(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world w = {.fabric = WORLD_SIM,
                   .size = 2,
                   .seed = seed,
                   WORLD_FUNCTIONS(functions),
                   .program = program,
                   .adjust = adjust};
        memset(&shared, 0, sizeof shared);
        shared.w = &w;
        world_run(&w);
    }
}

int main(void)
{
    memset(piece, 'x', PIECE);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_queue)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
