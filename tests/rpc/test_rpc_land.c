/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_land.c - functions that say where arriving tensors are to land; and what the counters say of payloads. */
#include "rpc/must.h"
#include "rpc/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

static struct shared {
    weft_tensor *place;   /* what `land` hands out, if it fits or not */
    weft_tensor *arrived; /* what the handler saw, not referenced: to be compared only */
    atomic_int asked;
    bool no_place;
} shared;

static weft_tensor *land_there(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    (void)dtype;
    (void)shape;
    MUST(from_rank == 1 && index == 0 && user == &shared);
    atomic_fetch_add(&shared.asked, 1);
    return shared.no_place ? NULL : weft_tensor_ref(shared.place);
}

static weft_status run_take(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *tensor = weft_call_tensor(call, 0);
    shared.arrived = tensor;
    weft_call_give(call, WEFT_VALUES(weft_of_f64(weft_tensor_get_f64(tensor, weft_tensor_numel(tensor) - 1))));
    return WEFT_OK;
}

static weft_status run_echo(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "take", .takes = {WEFT_TENSOR}, .gives = {WEFT_F64}, .run = run_take, .land = land_there, .user = &shared},
    {.name = "echo", .takes = {WEFT_TENSOR}, .gives = {WEFT_TENSOR}, .run = run_echo},
};

static weft_status send_there(weft_agent *agent, weft_tensor *x)
{
    weft_values *got;
    double last;
    weft_status st = weft_rpc_sync(agent, weft_to_rank(0), "take", WEFT_VALUES(weft_of_tensor(x)), NULL, &got);
    if (st)
        return st;
    MUST(!weft_values_get_f64(got, 0, &last) && last == (double)(weft_tensor_numel(x) - 1));
    weft_values_unref(got);
    return WEFT_OK;
}

static void land_requests(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {1, 10, 400, 1000, 300000, 3000000}; /* in meta, in the frame, pulled */
    (void)arg;
    for (size_t i = 0; weft_agent_rank(agent) == 1 && i < sizeof counts / sizeof *counts; i++) {
        weft_tensor *x = weft_tensor_arange(counts[i], WEFT_FLOAT32);
        shared.place = weft_tensor_zeros(WEFT_SHAPE(counts[i]), WEFT_FLOAT32);
        shared.no_place = false;
        MUST_OK(send_there(agent, x));
        MUST(shared.arrived == shared.place); /* straight into it */
        MUST(memcmp(weft_tensor_data(x), weft_tensor_data(shared.place), weft_tensor_nbytes(x)) == 0);
        shared.no_place = true;
        MUST_OK(send_there(agent, x));
        MUST(shared.arrived != shared.place);
        shared.no_place = false;
        weft_tensor_unref(shared.place);
        shared.place = weft_tensor_zeros(WEFT_SHAPE(counts[i] + 1), WEFT_FLOAT32);
        MUST_BE(send_there(agent, x), WEFT_ERR_SHAPE);
        weft_tensor_unref(shared.place);
        shared.place = weft_tensor_zeros(WEFT_SHAPE(counts[i]), WEFT_INT32);
        MUST_BE(send_there(agent, x), WEFT_ERR_SHAPE);
        weft_tensor_unref(shared.place);
        shared.no_place = true;
        MUST_OK(send_there(agent, x)); /* and all goes on */
        MUST(atomic_load(&shared.asked) == 5 * ((int)i + 1));
        weft_tensor_unref(x);
    }
}

static weft_stats stats_of(weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats;
}

static uint64_t sent, received; /* by the caller */

static void count_bytes(weft_agent *agent, void *arg)
{
    enum { CALLS = 5, COUNT = 1000000 };
    const uint64_t payload = UINT64_C(4) * CALLS * COUNT;
    (void)arg;
    if (weft_agent_rank(agent) != 1)
        return;
    weft_tensor *x = weft_tensor_arange(COUNT, WEFT_FLOAT32),
                *land = weft_tensor_zeros(WEFT_SHAPE(COUNT), WEFT_FLOAT32);
    for (int with_land = 0; with_land < 2; with_land++) {
        weft_stats before = stats_of(agent);
        for (int i = 0; i < CALLS; i++) {
            weft_rpc_options options = {.land = {&land, with_land}};
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL));
        }
        weft_stats after = stats_of(agent);
        sent = after.bytes_sent - before.bytes_sent;
        received = after.bytes_received - before.bytes_received;
        if (sent < payload || sent > payload + 10000)
            fprintf(stderr, "sent %llu of %llu, received %llu\n", (unsigned long long)sent, (unsigned long long)payload,
                    (unsigned long long)received);
        MUST(sent >= payload && sent < payload + 10000);
        MUST(received >= payload && received < payload + 10000);
        MUST(after.bytes_copied == 0 && after.bytes_packed == 0);
        MUST(after.calls_started - before.calls_started == CALLS && after.calls_failed == 0);
        MUST(after.calls_started == after.calls_finished);
    }
    weft_tensor *wide = weft_tensor_reshape(x, WEFT_SHAPE(1000, 1000)), *turned = weft_tensor_transpose(wide, 0, 1);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(turned)), NULL, NULL));
    MUST(stats_of(agent).bytes_packed == 4 * COUNT && stats_of(agent).bytes_copied == 0);
    weft_tensor_unref(turned);
    weft_tensor_unref(wide);
    weft_tensor_unref(land);
    weft_tensor_unref(x);
}

/* At the callee, once the caller has told it that it is done. */
static void count_at_both(weft_agent *agent, void *arg)
{
    world *w = arg;
    count_bytes(agent, NULL);
    if (weft_agent_rank(agent) != 0)
        return;
    const uint64_t payload = UINT64_C(11) * 4000000;
    for (int i = 0; i < 5000 && stats_of(agent).bytes_sent < payload; i++)
        world_sleep_ms(w, 1);
    weft_stats stats = stats_of(agent);
    MUST(stats.bytes_sent >= payload && stats.bytes_sent < payload + 20000);
    MUST(stats.bytes_received >= payload && stats.bytes_received < payload + 20000);
    MUST(stats.bytes_copied == 0 && stats.calls_served == 11);
}

static void run_both(void (*program)(weft_agent *, void *))
{
    for (int fabric = WORLD_SIM; fabric <= WORLD_TCP; fabric++) {
        world w = {
            .fabric = (world_fabric)fabric, .seed = 4, .size = 2, WORLD_FUNCTIONS(functions), .program = program};
        w.arg = &w;
        memset(&shared, 0, sizeof shared);
        world_run(&w);
    }
}

static void test_requests_land(void **s)
{
    (void)s;
    run_both(land_requests);
}

static void test_counters(void **s)
{
    (void)s;
    run_both(count_at_both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_land),
        cmocka_unit_test(test_counters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
