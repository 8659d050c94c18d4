/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_crowd.c - over tcp: two that connect at the same moment, again and again; sixteen agents, all to all. */
#include "net/net_host.h"

#include <stdio.h>

static void body_all_to_all(net_host *host)
{
    int others = host->world->size - 1;
    for (int other = 0; other <= others; other++) {
        if (other != host->rank)
            assert_int_equal(host_send_free(host, other, 0, 10), WEFT_OK);
    }
    host_until(host, &host->done_ok, others);
    host_until(host, &host->arrived, others);
    assert_int_equal(host->gone, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(sixteen_agents_talk_all_to_all, body_all_to_all, 16, 0, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

/* ---- Both at once ---------------------------------------------------------------------------------------------- */

#define ROUNDS 100

static void body_collide(net_host *host)
{
    atomic_int *meetings = host->world->user;
    for (int round = 0; round < ROUNDS; round++) {
        host_meet(host, &meetings[2 * round]);
        assert_int_equal(host_send_free(host, 1 - host->rank, (uint64_t)round, 10), WEFT_OK);
        host_until(host, &host->done_ok, round + 1);
        host_until(host, &host->arrived, round + 1);
        host_meet(host, &meetings[2 * round + 1]);
        inside_close_conn(host->net, 1 - host->rank);
    }
    assert_int_equal(host->done_failed, 0);
    host_meet(host, &host->world->finished);
}

static void connecting_at_once_always_ends_well(void **state)
{
    static atomic_int meetings[2 * ROUNDS];
    net_world world = {.on_message = host_check_order, .user = meetings, .death_timeout_ms = 20000};
    world_tcp(&world, 2, body_collide);
}

UNIT_MAIN(sixteen_agents_talk_all_to_all, connecting_at_once_always_ends_well)
