/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_where.c - the interface and the ports that an agent is told to use: right ones, and clear words for wrong
 * ones. */
#include "net/net_host.h"

#include <stdio.h>
#include <unistd.h>

/* A world of one. */
static weft_status try_at(net_world *world, const char *iface, const char *ports, weft_error **error)
{
    *error = NULL;
    memset(world, 0, sizeof(*world));
    world_init(world, "tcp", 1, NULL);
    world->iface = iface;
    world->ports = ports;
    world->store_fd = listen_anywhere(&world->port);
    return host_try(&world->hosts[0], error);
}

static void opens_at(const char *iface, const char *ports)
{
    net_world world;
    weft_error *error;
    weft_status status = try_at(&world, iface, ports, &error);
    if (error)
        weft_error_print(error, stderr);
    assert_int_equal(status, WEFT_OK);
    host_close(&world.hosts[0]);
}

/* `word`: what the message must name. */
static void is_refused_at(const char *iface, const char *ports, weft_status code, const char *word)
{
    net_world world;
    weft_error *error;
    assert_int_equal(try_at(&world, iface, ports, &error), code);
    assert_non_null(error);
    if (!strstr(weft_error_message(error), word))
        print_message("\"%s\" does not name %s\n", weft_error_message(error), word);
    assert_non_null(strstr(weft_error_message(error), word));
    weft_error_unref(error);
    host_close(&world.hosts[0]);
}

static void a_free_range(char out[32])
{
    int port, fd = listen_anywhere(&port);
    close(fd);
    snprintf(out, 32, "%d-%d", port, port);
}

static void interfaces_go_by_name_or_address(void **state)
{
    opens_at("lo", NULL);
    opens_at("127.0.0.1", NULL);
    opens_at(NULL, NULL);
}

static void an_interface_that_is_not_there_is_named(void **state)
{
    is_refused_at("nosuch0", NULL, WEFT_ERR_INVALID, "nosuch0");
    is_refused_at("203.0.113.77", NULL, WEFT_ERR_FABRIC, "203.0.113.77");
}

static void ports_are_taken_from_the_range(void **state)
{
    char range[32];
    a_free_range(range);
    opens_at("lo", range);
    *strchr(range, '-') = 0;
    opens_at("lo", range);
}

static void malformed_ranges_are_refused(void **state)
{
    static const char *const wrong[] = {"x",  "0-5",   "70000",   "5-", "9000-8000", "1-2-3",
                                        "-1", "80,90", "1-70000", " ",  "1",         "1023"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        is_refused_at("lo", wrong[i], WEFT_ERR_INVALID, "ports");
}

static void one_port_serves_one_agent(void **state)
{
    char range[32];
    net_world first;
    weft_error *error;
    a_free_range(range);
    assert_int_equal(try_at(&first, "lo", range, &error), WEFT_OK);
    *strchr(range, '-') = 0;
    is_refused_at("lo", range, WEFT_ERR_EXISTS, range);
    host_close(&first.hosts[0]);
}

static void named(net_host *host)
{
    const char *name = wfi_net_interface(host->net);
    assert_string_equal(name, host->world->sim ? "sim" : "lo");
    host_meet(host, &host->world->finished);
}

NET_TEST(the_interface_has_a_name, named, 2, 1, true)

UNIT_MAIN(the_interface_has_a_name, interfaces_go_by_name_or_address, an_interface_that_is_not_there_is_named,
          ports_are_taken_from_the_range, malformed_ranges_are_refused, one_port_serves_one_agent)
