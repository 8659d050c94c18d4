/* SPDX-License-Identifier: Apache-2.0 */
/* rdm_idle_test.c - what an idle fabric costs, how it is woken, and the options that only some providers have. */
#include "lanes.h"
#include "net/net_measure.h"
#include "ofi/ofi_node.h"
#include "said.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int woken;

static void on_ready(void *arg)
{
    (void)arg;
    atomic_fetch_add(&woken, 1);
}

/* A fabric without a descriptor says that operations were settled outside poll; others make theirs readable. */
static void what_a_close_cancels_wakes_the_poller(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_job receive;
    uint8_t byte;
    ofi_node_open_with(&a, &(wfi_fabric_options){.towards = "127.0.0.1", .ready = on_ready});
    ofi_node_open(&b);
    ofi_link *other = ofi_join(&a, &b, &link);
    ofi_job_init(&receive);
    assert_int_equal(ofi_ops()->post_recv(link.lane, &receive.op, &(wfi_receive_buffer){&byte, 1, NULL}, 1), WEFT_OK);
    ofi_until(&a, &b, ofi_ops()->may_sleep(a.fabric));
    int before = atomic_load(&woken), fd = ofi_ops()->wait_fd(a.fabric);
    ofi_hang_up(&link);
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    if (fd < 0)
        assert_true(atomic_load(&woken) > before);
    else
        assert_int_equal(poll(&readable, 1, 0), 1);
    assert_false(ofi_ops()->may_sleep(a.fabric));
    ofi_until(&a, &b, receive.reports && other->closed);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* Nobody calls poll, as in a worker without lanes on a fabric that has no descriptor. The request still comes. */
static void a_request_is_seen_without_a_poll(void **state)
{
    ofi_node a, b;
    ofi_link link;
    wfi_event event;
    ofi_node_open(&a);
    ofi_node_open(&b);
    if (ofi_ops()->wait_fd(b.fabric) < 0) {
        ofi_dial(&a, &b, &link, NULL, 0);
        uint64_t limit = ofi_now_ms() + 5000 * ofi_slow();
        while (!lanes_await_event(b.fabric, &event, 2, -1)) {
            ofi_step(&a, NULL);
            assert_true(ofi_now_ms() < limit);
        }
        assert_int_equal(event.kind, WFI_EVENT_REQUEST);
        ofi_ops()->reject(b.fabric, event.request);
        ofi_until(&a, &b, link.closed);
        assert_int_equal(link.why, WEFT_ERR_UNREACHABLE);
        ofi_hang_up(&link);
    }
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* How often a thread that sleeps as weft's poller does would wake in a second. */
static void an_idle_lane_lets_the_poller_sleep(void **state)
{
    ofi_node a, b;
    ofi_link link;
    wfi_completion done[4];
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_join(&a, &b, &link);
    int fd = ofi_ops()->wait_fd(a.fabric), wakes = 0;
    for (uint64_t until = ofi_now_ms() + 200; ofi_now_ms() < until;)
        ofi_step(&a, &b);
    for (uint64_t until = ofi_now_ms() + 1000; fd >= 0 && ofi_now_ms() < until; wakes++) {
        assert_int_equal(ofi_ops()->poll(a.fabric, done, 4), 0);
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (ofi_ops()->may_sleep(a.fabric))
            (void)poll(&readable, 1, 100);
    }
    printf("%s: %d wake-ups in a second\n", ofi_ops()->name, wakes);
    assert_true(wakes < 100);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void reads_have_a_reason_where_they_do_not_work(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_job read;
    uint8_t byte;
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_link *other = ofi_join(&a, &b, &link);
    assert_int_equal(!link.text, ofi_reads(&a));
    assert_int_equal(!other->text, ofi_reads(&a));
    ofi_job_init(&read);
    if (!ofi_reads(&a))
        assert_int_equal(ofi_ops()->read(link.lane, &read.op, &byte, 1, NULL, 0, 0), WEFT_ERR_UNSUPPORTED);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* An endpoint of a range of ports; only providers over IP have ports. */
static void ports_are_kept_where_there_are_ports(void **state)
{
    char text[128];
    int low = 42000 + getpid() % 8000;
    ofi_node a;
    weft_error *error = NULL;
    wfi_fabric *none = NULL;
    if (ofi_ops() == &wfi_fabric_shm)
        skip();
    ofi_node_open_with(&a, &(wfi_fabric_options){.towards = "127.0.0.1", .port_low = low, .port_high = low + 100});
    ofi_ops()->address_text(a.address, a.address_size, text, sizeof(text));
    const char *port = strrchr(text, ':');
    assert_non_null(port);
    assert_in_range(atoi(port + 1), low, low + 100);
    assert_int_equal(ofi_ops()->open(&(wfi_fabric_options){.port_low = 9, .port_high = 8}, &none, &error),
                     WEFT_ERR_INVALID);
    weft_error_unref(error);
    error = NULL;
    assert_int_equal(ofi_ops()->open(&(wfi_fabric_options){.iface = "nosuch0"}, &none, &error), WEFT_ERR_INVALID);
    weft_error_unref(error);
    ofi_node_close(&a);
}

/* Strangers can harm a worker inside libfabric. The warning comes once, and only for an address that they can reach. */
static void an_address_that_strangers_reach_is_warned_of(void **state)
{
    char text[128];
    ofi_node a;
    wfi_fabric *open = NULL;
    weft_error *error = NULL;
    if (ofi_ops() == &wfi_fabric_shm)
        skip();
    said_line[0] = '\0';
    weft_logging_set_sink(said_sink, NULL);
    ofi_node_open_with(&a, &(wfi_fabric_options){.towards = "127.0.0.1"});
    assert_string_equal(said_line, "");
    ofi_node_close(&a);
    uint8_t address[WFI_ADDRESS_MAX];
    if (ofi_ops()->open(&(wfi_fabric_options){0}, &open, &error) != WEFT_OK) {
        weft_error_unref(error);
        skip();
    }
    ofi_ops()->address_text(address, ofi_ops()->address(open, address), text, sizeof(text));
    bool is_here = strstr(text, "127.") || strstr(text, "[::1]");
    assert_int_equal(strstr(said_line, "private network") != NULL, !is_here);
    said_line[0] = '\0';
    ofi_ops()->close(open);
    weft_logging_set_sink(NULL, NULL);
    assert_string_equal(said_line, "");
}

UNIT_MAIN(an_address_that_strangers_reach_is_warned_of, what_a_close_cancels_wakes_the_poller,
          a_request_is_seen_without_a_poll, an_idle_lane_lets_the_poller_sleep,
          reads_have_a_reason_where_they_do_not_work, ports_are_kept_where_there_are_ports)
