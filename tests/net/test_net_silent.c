/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_silent.c - callers of the fabric's port who say nothing and are hung up on: members among them, who were
 * stopped before they could ask, and ask again, are not counted as refused; all others are.
 */
#include "net/net_host.h"

#define CALLERS 5
#define ATTEMPTS 3 /* of these, the peer's */

/* The peer's numbers go on as if so many of its attempts had come to nothing; the next one comes through. */
static void ask_again(net_host *host)
{
    inside_count_up(host->net, 1, ATTEMPTS);
    assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
}

static atomic_int warnings;

static void count_warnings(weft_log_level level, const char *line, void *arg)
{
    (void)arg;
    warnings += level <= WEFT_LOG_WARN && strstr(line, "connections to the fabric's port");
}

static void body(net_host *host)
{
    net_world *world = host->world;
    if (host->rank == 0)
        weft_logging_set_sink(count_warnings, NULL);
    if (host->rank == 1)
        inside_hang_up_on(host->net, CALLERS);
    host_meet(host, &world->turns[0]);
    if (host->rank == 0)
        ask_again(host);
    else
        host_until(host, &host->arrived, 1);
    host_meet(host, &world->turns[1]);
    if (host->rank == 1) {
        host_pause(host, 2 * WFI_SILENT_NS);
        assert_int_equal(host_refused(host), CALLERS - ATTEMPTS);
        inside_hang_up_on(host->net, CALLERS); /* and with nobody who comes back */
        host_pause(host, 2 * WFI_SILENT_NS);
        assert_int_equal(host_refused(host), 2 * CALLERS - ATTEMPTS);
    }
    host_meet(host, &world->finished);
    if (host->rank == 0)
        weft_logging_set_sink(NULL, NULL);
    assert_int_equal(warnings, 0); /* nobody knows that they were no members */
}

NET_TEST(members_who_come_back_are_not_refusals, body, 2, 3, false, .on_message = host_check_order)

UNIT_MAIN(members_who_come_back_are_not_refusals)
