/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_tcp.c - nets over tcp in one process: messages, transfers, waiting threads. */
#include "net/net_host.h"

#define MANY 2000

static void send_paced(net_host *host, int to, int count)
{
    for (int i = 0; i < count; i++) {
        size_t size = (size_t)(i * 37) % (i % 10 ? 200 : WFI_MESSAGE_MAX - 8);
        while (host_send_free(host, to, (uint64_t)i, size) == WEFT_ERR_AGAIN)
            host_pause(host, 100000);
    }
}

static void body_exchange(net_host *host)
{
    send_paced(host, 1 - host->rank, MANY);
    host_until(host, &host->done_ok, MANY);
    host_until(host, &host->arrived, MANY);
    host_meet(host, &host->world->finished);
}

static void messages_arrive_once_and_in_order(void **state)
{
    net_world world = {.on_message = host_check_order};
    (void)state;
    world_tcp(&world, 2, body_exchange);
}

static void messages_arrive_without_threads(void **state)
{
    net_world world = {.on_message = host_check_order, .no_threads = true};
    (void)state;
    world_tcp(&world, 2, body_exchange);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_once_and_in_order),
        cmocka_unit_test(messages_arrive_without_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
