/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_messages.c - messages on the simulation: order, exactly once, credits, coalescing, urgency, ends. */
#include "net/net_host.h"

#define MANY 300

/* Sends `count` numbered messages of many sizes to `to`, with pauses that follow from the seed. */
static void send_many(net_host *host, int to, int count)
{
    for (int i = 0; i < count; i++) {
        size_t size = (size_t)(i * 37) % (i % 10 ? 200 : WFI_MESSAGE_MAX - 8);
        assert_int_equal(host_send_free(host, to, (uint64_t)i, size), WEFT_OK);
        if (i % 7 == 0)
            host_pause(host, 20000);
    }
}

static void body_exchange(net_host *host)
{
    int other = 1 - host->rank;
    send_many(host, other, MANY);
    host_until(host, &host->done_ok, MANY);
    host_until(host, &host->arrived, MANY);
    assert_int_equal(host->arrived, MANY);
    assert_int_equal(host->done_failed, 0);
    host_meet(host, &host->world->finished);
}

static void trouble(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    (void)rank;
    while (atomic_load(&world->ready) < world->size)
        weft_sim_sleep(sim, 10000);
    for (int i = 0; i < 12; i++) {
        weft_sim_sleep(sim, wfi_sim_random(sim) % 100000);
        if (wfi_sim_random(sim) % 3) {
            weft_sim_reset_link(sim, 0, 1);
        } else {
            weft_sim_cut(sim, 0, 1);
            weft_sim_sleep(sim, wfi_sim_random(sim) % 300000);
            weft_sim_heal(sim, 0, 1);
        }
    }
}

static void messages_arrive_once_and_in_order(void **state)
{
    net_world world = {.on_message = host_check_order};
    (void)state;
    world_sim(&world, 1, 2, body_exchange, NULL);
}

static void messages_survive_resets_and_cuts(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        net_world world = {.on_message = host_check_order};
        world_sim(&world, seed, 2, body_exchange, trouble);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_once_and_in_order),
        cmocka_unit_test(messages_survive_resets_and_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
