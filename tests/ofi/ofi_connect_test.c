/* SPDX-License-Identifier: Apache-2.0 */
/* ofi_connect_test.c - coming up, refusing, closing, ports and interfaces, over a fabric of libfabric. */
#include "net/net_measure.h"
#include "lanes.h"
#include "ofi/ofi_node.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static void both_ends_learn_what_the_other_sent(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_join(&a, &b, &link);
    assert_int_equal(b.asked_size, 5);
    assert_memory_equal(b.asked, "hello", 5);
    assert_int_equal(link.data_size, 3);
    assert_memory_equal(link.data, "yes", 3);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void private_data_of_full_size_arrives_and_more_is_refused(void **state)
{
    ofi_node a, b;
    ofi_link link;
    wfi_lane *lane;
    uint8_t data[WFI_CONNECT_DATA_MAX + 1];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7);
    ofi_node_open(&a);
    ofi_node_open(&b);
    assert_int_equal(lanes_connect(a.fabric, b.address, b.address_size, data, sizeof(data), NULL, &lane),
                     WEFT_ERR_INVALID);
    ofi_dial(&a, &b, &link, data, WFI_CONNECT_DATA_MAX);
    ofi_until(&a, &b, link.connected);
    assert_int_equal(b.asked_size, WFI_CONNECT_DATA_MAX);
    assert_memory_equal(b.asked, data, WFI_CONNECT_DATA_MAX);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void a_refusal_closes_the_lane(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_node_open(&a);
    ofi_node_open(&b);
    b.refuse = true;
    ofi_dial(&a, &b, &link, NULL, 0);
    ofi_until(&a, &b, link.closed);
    assert_int_equal(link.why, WEFT_ERR_UNREACHABLE);
    assert_int_equal(link.connected, 0);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void nobody_listening_closes_the_lane(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_node gone = b;
    ofi_node_close(&b);
    ofi_dial(&a, &gone, &link, NULL, 0);
    ofi_until(&a, NULL, link.closed);
    assert_int_equal(link.why, WEFT_ERR_UNREACHABLE);
    ofi_hang_up(&link);
    ofi_node_close(&a);
}

static void both_may_connect_at_once(void **state)
{
    ofi_node a, b;
    ofi_link ab, ba;
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_dial(&a, &b, &ab, NULL, 0);
    ofi_dial(&b, &a, &ba, NULL, 0);
    ofi_until(&a, &b, ab.connected && ba.connected && a.accepted_count == 1 && b.accepted_count == 1);
    ofi_hang_up(&ba);
    ofi_until(&a, &b, a.accepted[0].closed);
    assert_int_equal(ab.closed, 0);
    ofi_hang_up(&ab);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void closing_one_end_is_announced_once_at_the_other(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_link *other = ofi_join(&a, &b, &link);
    ofi_hang_up(&link);
    ofi_until(&a, &b, other->closed);
    for (int i = 0; i < 50; i++)
        ofi_step(&a, &b);
    assert_int_equal(other->closed, 1);
    assert_int_equal(other->why, WEFT_ERR_FABRIC);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* The other side takes the connection and never answers, as an address that drops everything would not. */
static void a_lane_that_never_connects_can_be_closed(void **state)
{
    ofi_node a, b;
    ofi_link links[8];
    ofi_job receive;
    uint8_t buffer[16];
    ofi_node_open(&a);
    ofi_node_open(&b);
    for (int i = 0; i < 8; i++)
        ofi_dial(&a, &b, &links[i], NULL, 0);
    wfi_region *into = ofi_local(&a, buffer, sizeof(buffer));
    ofi_job_init(&receive);
    assert_int_equal(
        ofi_ops()->post_recv(links[3].lane, &receive.op, &(wfi_receive_buffer){buffer, sizeof(buffer), into}, 1),
        WEFT_OK);
    for (int i = 0; i < 20; i++) /* b sleeps: requests are sent, never answered */
        ofi_step(&a, NULL);
    for (int i = 0; i < 8; i++)
        ofi_hang_up(&links[i]);
    ofi_until(&a, NULL, receive.reports);
    assert_int_equal(receive.status, WEFT_ERR_CANCELLED);
    for (int i = 0; i < 100; i++)
        ofi_step(&a, &b);
    for (int i = 0; i < 8; i++)
        assert_int_equal(links[i].connected, 0);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void a_request_may_wait_and_its_caller_may_leave(void **state)
{
    ofi_node a, b;
    ofi_link link, accepted = {0};
    ofi_node_open(&a);
    ofi_node_open(&b);
    b.passive = true;
    ofi_dial(&a, &b, &link, NULL, 0);
    ofi_until(&a, &b, b.waiting);
    ofi_hang_up(&link);
    weft_status status = lanes_accept(b.fabric, b.waiting, NULL, 0, &accepted, &accepted.lane);
    b.waiting = NULL;
    assert_true(status == WEFT_OK || !ofi_announces()); /* the fabric may know already */
    if (status == WEFT_OK)
        ofi_until(&a, &b, accepted.closed);
    ofi_hang_up(&accepted);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void requests_unanswered_at_the_end_are_refused(void **state)
{
    ofi_node a, b;
    ofi_link first, second;
    ofi_node_open(&a);
    ofi_node_open(&b);
    b.passive = true;
    ofi_dial(&a, &b, &first, NULL, 0);
    ofi_until(&a, &b, b.waiting);
    b.waiting = NULL; /* forgotten by its owner */
    ofi_dial(&a, &b, &second, NULL, 0);
    for (int i = 0; i < 20; i++)
        ofi_step(&a, NULL);
    ofi_node_close(&b);
    ofi_until(&a, NULL, first.closed && second.closed);
    ofi_hang_up(&first);
    ofi_hang_up(&second);
    ofi_node_close(&a);
}

/* Receives that were posted before the connection get its first messages, in both directions. */
static void receives_may_be_posted_before_connect(void **state)
{
    ofi_node a, b;
    ofi_link asking = {0}, taken = {0};
    ofi_job receives[2], sends[2];
    char got[2][8] = {{0}};
    ofi_node_open(&a);
    ofi_node_open(&b);
    b.passive = true;
    for (int i = 0; i < 2; i++) {
        ofi_job_init(&receives[i]);
        ofi_job_init(&sends[i]);
    }
    wfi_region *at_a = ofi_local(&a, got[0], 8), *at_b = ofi_local(&b, got[1], 8);
    assert_int_equal(ofi_ops()->lane_open(a.fabric, b.address, b.address_size, &asking, &asking.lane), WEFT_OK);
    assert_int_equal(ofi_ops()->post_recv(asking.lane, &receives[0].op, &(wfi_receive_buffer){got[0], 8, at_a}, 1),
                     WEFT_OK);
    assert_int_equal(ofi_ops()->connect(asking.lane, NULL, 0), WEFT_OK);
    ofi_until(&a, &b, b.waiting);
    assert_int_equal(ofi_ops()->lane_take(b.fabric, b.waiting, &taken, &taken.lane), WEFT_OK);
    b.waiting = NULL;
    assert_int_equal(ofi_ops()->post_recv(taken.lane, &receives[1].op, &(wfi_receive_buffer){got[1], 8, at_b}, 1),
                     WEFT_OK);
    assert_int_equal(ofi_ops()->connect(taken.lane, NULL, 0), WEFT_OK);
    ofi_until(&a, &b, asking.connected && taken.connected);
    assert_int_equal(ofi_ops()->send(asking.lane, &sends[0].op, &(wfi_iov){"to b", 5, NULL}, 1), WEFT_OK);
    assert_int_equal(ofi_ops()->send(taken.lane, &sends[1].op, &(wfi_iov){"to a", 5, NULL}, 1), WEFT_OK);
    ofi_until(&a, &b, receives[0].reports && receives[1].reports && sends[0].reports && sends[1].reports);
    assert_string_equal(got[0], "to a");
    assert_string_equal(got[1], "to b");
    ofi_hang_up(&asking);
    ofi_hang_up(&taken);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* A lane that was never connected reports its receives; a request that was taken, and never accepted, is refused. */
static void lanes_that_never_connect_can_be_closed(void **state)
{
    const uint8_t data[WFI_CONNECT_DATA_MAX + 1] = {0};
    ofi_node a, b;
    ofi_link link, unused = {0}, taken = {0};
    ofi_job receives[2];
    char got[8];
    ofi_node_open(&a);
    ofi_node_open(&b);
    b.passive = true;
    wfi_region *at_a = ofi_local(&a, got, 8), *at_b = ofi_local(&b, got, 8);
    for (int i = 0; i < 2; i++)
        ofi_job_init(&receives[i]);
    assert_int_equal(ofi_ops()->lane_open(a.fabric, b.address, b.address_size, &unused, &unused.lane), WEFT_OK);
    assert_int_equal(ofi_ops()->post_recv(unused.lane, &receives[0].op, &(wfi_receive_buffer){got, 8, at_a}, 1),
                     WEFT_OK);
    assert_int_equal(ofi_ops()->connect(unused.lane, data, sizeof(data)), WEFT_ERR_INVALID);
    ofi_ops()->lane_close(unused.lane);
    ofi_until(&a, &b, receives[0].reports);
    assert_int_equal(receives[0].status, WEFT_ERR_CANCELLED);

    ofi_dial(&a, &b, &link, NULL, 0);
    ofi_until(&a, &b, b.waiting);
    assert_int_equal(ofi_ops()->lane_take(b.fabric, b.waiting, &taken, &taken.lane), WEFT_OK);
    b.waiting = NULL;
    assert_int_equal(ofi_ops()->post_recv(taken.lane, &receives[1].op, &(wfi_receive_buffer){got, 8, at_b}, 1),
                     WEFT_OK);
    assert_int_equal(ofi_ops()->connect(taken.lane, data, sizeof(data)), WEFT_ERR_INVALID);
    ofi_ops()->lane_close(taken.lane);
    ofi_until(&a, &b, receives[1].reports && link.closed);
    assert_int_equal(receives[1].status, WEFT_ERR_CANCELLED);
    assert_int_equal(link.connected + taken.connected + taken.closed + unused.connected + unused.closed, 0);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* Looks for events without taking them, until there is one; the other node may be NULL. */
static void await_event(const ofi_node *node, ofi_node *other)
{
    uint64_t due = UINT64_MAX, limit = ofi_now_ms() + 10000 * ofi_slow();
    wfi_completion done;
    while (ofi_ops()->events_arm(node->fabric, &due)) {
        assert_int_equal(ofi_ops()->poll(node->fabric, &done, 1), 0); /* tcp notices here that the peer has closed */
        if (other)
            ofi_step(other, NULL);
        assert_true(ofi_now_ms() < limit);
    }
}

/* Closes a lane before its event is read. Neither it nor a new lane, perhaps in its memory, gets the event. */
static void close_in_silence(ofi_node *node, ofi_node *other, ofi_link *link)
{
    ofi_link news[4] = {{0}};
    int connected = link->connected, closed = link->closed;
    ofi_hang_up(link);
    for (int i = 0; i < 4; i++)
        assert_int_equal(
            ofi_ops()->lane_open(node->fabric, other->address, other->address_size, &news[i], &news[i].lane), WEFT_OK);
    for (int i = 0; i < 20; i++)
        ofi_step(node, NULL);
    assert_int_equal(link->connected, connected);
    assert_int_equal(link->closed, closed);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(news[i].connected + news[i].closed, 0);
        ofi_hang_up(&news[i]);
    }
}

static void close_before_reading(ofi_node *node, ofi_node *other, ofi_link *link)
{
    await_event(node, other);
    close_in_silence(node, other, link);
}

static void skip_with(ofi_node *a, ofi_node *b, ofi_link *first, ofi_link *second)
{
    ofi_hang_up(first);
    ofi_hang_up(second);
    ofi_node_close(a);
    ofi_node_close(b);
    skip();
}

/* After a read of memory that is not registered. With some providers, poll has queued the event. */
static void the_event_of_a_failed_operation_ends_with_its_lane(void **state)
{
    ofi_node a, b;
    ofi_link links[2];
    uint8_t data[16] = {0};
    ofi_node_open(&a);
    ofi_node_open(&b);
    for (int i = 0; i < 2; i++)
        ofi_join(&a, &b, &links[i]);
    if (!ofi_reads(&a))
        skip_with(&a, &b, &links[0], &links[1]);
    wfi_region *into = ofi_local(&a, data, sizeof(data));
    for (int i = 0; i < 2; i++) {
        ofi_job job;
        wfi_completion done;
        uint64_t limit = ofi_now_ms() + 10000 * ofi_slow();
        ofi_job_init(&job);
        assert_int_equal(
            ofi_ops()->read(links[i].lane, &job.op, data, sizeof(data), into, (uintptr_t)&job, UINT64_C(0x12345678)),
            WEFT_OK);
        while (!ofi_ops()->poll(a.fabric, &done, 1)) {
            ofi_step(&b, NULL);
            assert_true(ofi_now_ms() < limit);
        }
        assert_ptr_equal(done.op, &job.op);
        assert_int_not_equal(done.status, WEFT_OK);
    }
    ofi_hang_up(&links[0]); /* the other lane's event is read ahead */
    close_in_silence(&a, &b, &links[1]);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void an_event_that_was_found_ends_with_its_lane(void **state)
{
    ofi_node a, b;
    ofi_link link, taken = {0};
    ofi_node_open(&a);
    ofi_node_open(&b);
    b.passive = true;
    ofi_dial(&a, &b, &link, NULL, 0);
    ofi_until(&a, &b, b.waiting);
    assert_int_equal(lanes_accept(b.fabric, b.waiting, "yes", 3, &taken, &taken.lane), WEFT_OK);
    b.waiting = NULL;
    close_before_reading(&a, &b, &link); /* connected */
    ofi_hang_up(&taken);
    b.passive = false;
    ofi_hang_up(ofi_join(&a, &b, &link));
    close_before_reading(&a, &b, &link); /* closed by the peer */
    b.refuse = true;
    ofi_dial(&a, &b, &link, NULL, 0);
    close_before_reading(&a, &b, &link); /* refused */
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* It may be looked for again and again. */
static void an_event_that_was_found_is_reported_once(void **state)
{
    ofi_node a, b;
    ofi_link link;
    wfi_event events[4];
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_dial(&a, &b, &link, NULL, 0);
    ofi_until(&a, &b, b.accepted_count == 1);
    for (int i = 0; i < 3; i++)
        await_event(&a, &b);
    assert_int_equal(ofi_ops()->poll_events(a.fabric, events, 0), 0);
    assert_int_equal(ofi_ops()->poll_events(a.fabric, events, 4), 1);
    assert_int_equal(events[0].kind, WFI_EVENT_CONNECTED);
    assert_ptr_equal(events[0].lane, link.lane);
    assert_ptr_equal(events[0].lane_user, &link);
    assert_memory_equal(events[0].data, "yes", 3);
    assert_int_equal(ofi_ops()->poll_events(a.fabric, events, 4), 0);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* A request that events_arm has found is refused when the fabric closes. */
static void a_request_that_was_found_is_refused_at_the_end(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_dial(&a, &b, &link, NULL, 0);
    for (int i = 0; i < 20; i++)
        ofi_step(&a, NULL);
    await_event(&b, &a);
    ofi_node_close(&b);
    ofi_until(&a, NULL, link.closed);
    ofi_hang_up(&link);
    ofi_node_close(&a);
}

static void a_malformed_address_is_invalid(void **state)
{
    ofi_node a;
    wfi_lane *lane;
    const uint8_t bad[][7] = {{0}, {4, 0, 0, 127, 0, 0, 1}, {4, 1, 1, 0, 0, 0, 0}, {6, 1, 1, 1, 1, 1, 1}};
    ofi_node_open(&a);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_int_equal(lanes_connect(a.fabric, bad[i], 7, NULL, 0, NULL, &lane), WEFT_ERR_INVALID);
    for (size_t size = 0; size < 7; size++)
        assert_int_equal(lanes_connect(a.fabric, bad[1], size, NULL, 0, NULL, &lane), WEFT_ERR_INVALID);
    ofi_node_close(&a);
}

static void connections_leave_no_descriptor(void **state)
{
    ofi_node a, b;
    ofi_link link;
    ofi_node_open(&a);
    ofi_node_open(&b);
    if (ofi_is_rdm()) { /* libfabric keeps what it needs to reach a peer */
        ofi_link *first = ofi_join(&a, &b, &link);
        ofi_hang_up(&link);
        ofi_hang_up(first);
        b.accepted_count = 0;
    }
    size_t before = measure_descriptors();
    for (uint64_t i = 0; i < 1000 / ofi_slow(); i++) {
        ofi_link *other = ofi_join(&a, &b, &link);
        ofi_hang_up(i % 2 ? &link : other);
        ofi_hang_up(i % 2 ? other : &link);
        b.accepted_count = 0;
        memset(b.accepted, 0, sizeof(*b.accepted));
    }
    assert_int_equal(measure_descriptors(), before);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static int port_of(const ofi_node *node)
{
    return node->address[1] << 8 | node->address[2];
}

/* Two neighbouring ports that were free a moment ago. */
static int free_pair(void)
{
    for (int port = 42000 + getpid() % 8000; port < 60000; port += 2) {
        bool free = true;
        for (int i = 0; i < 2; i++) {
            struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(port + i))};
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            free = free && bind(fd, (struct sockaddr *)&here, sizeof(here)) == 0;
            close(fd);
        }
        if (free)
            return port;
    }
    fail_msg("no two neighbouring ports are free");
    return 0;
}

static void a_range_of_ports_is_used_up_then_refused(void **state)
{
    if (!ofi_has_ports())
        skip();
    ofi_node a, b;
    int low = free_pair();
    wfi_fabric_options options = {.towards = "127.0.0.1", .port_low = low, .port_high = low + 1};
    ofi_node_open_with(&a, &options);
    ofi_node_open_with(&b, &options);
    assert_int_equal(port_of(&a), low);
    assert_int_equal(port_of(&b), low + 1);
    wfi_fabric *third = NULL;
    weft_error *error = NULL;
    assert_int_equal(ofi_ops()->open(&options, &third, &error), WEFT_ERR_EXISTS);
    char range[64];
    snprintf(range, sizeof(range), "WEFT_PORTS, from %d to %d: 2 ports,", low, low + 1);
    assert_non_null(strstr(weft_error_message(error), range));
    assert_non_null(strstr(weft_error_message(error), "Address already in use): widen the range"));
    assert_non_null(
        strstr(weft_error_message(error), "A program that a former worker started can still hold its ports"));
    weft_error_unref(error);
    assert_null(third);
    options.port_high = low;
    error = NULL;
    assert_int_equal(ofi_ops()->open(&options, &third, &error), WEFT_ERR_EXISTS);
    assert_non_null(strstr(weft_error_message(error), ": 1 port,"));
    weft_error_unref(error);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void open_fails(const wfi_fabric_options *options, weft_status expected, const char *says)
{
    wfi_fabric *fabric = NULL;
    weft_error *error = NULL;
    assert_int_equal(ofi_ops()->open(options, &fabric, &error), expected);
    assert_null(fabric);
    assert_non_null(strstr(weft_error_message(error), says));
    weft_error_unref(error);
}

static void bad_options_are_named(void **state)
{
    if (!ofi_has_ports())
        skip();
    open_fails(&(wfi_fabric_options){.iface = "nosuch0"}, WEFT_ERR_INVALID, "nosuch0");
    open_fails(&(wfi_fabric_options){.iface = "nosuch0"}, WEFT_ERR_INVALID, "lo");
    open_fails(&(wfi_fabric_options){.iface = "0.0.0.0"}, WEFT_ERR_INVALID, "0.0.0.0");
    open_fails(&(wfi_fabric_options){.iface = "192.0.2.77"}, WEFT_ERR_FABRIC, "192.0.2.77");
    if (ofi_is_tcp()) /* others choose a device, whatever the route */
        open_fails(&(wfi_fabric_options){.towards = "no such host"}, WEFT_ERR_INVALID, "no such host");
    open_fails(&(wfi_fabric_options){.port_low = 9, .port_high = 8}, WEFT_ERR_INVALID, "ports 9 to 8");
    open_fails(&(wfi_fabric_options){.port_low = 1, .port_high = 70000}, WEFT_ERR_INVALID, "70000");
}

static void an_interface_can_be_named(void **state)
{
    if (!ofi_has_ports())
        skip();
    ofi_node a, b, c;
    ofi_link link;
    char text[128];
    ofi_node_open(&a);
    ofi_ops()->address_text(a.address, a.address_size, text, sizeof(text));
    *strrchr(text, ':') = '\0'; /* the port */
    ofi_node_open_with(&b, &(wfi_fabric_options){.iface = ofi_ops()->iface(a.fabric)});
    ofi_node_open_with(&c, &(wfi_fabric_options){.iface = text});
    assert_string_equal(ofi_ops()->iface(b.fabric), ofi_ops()->iface(a.fabric));
    assert_int_equal(c.address_size, a.address_size);
    assert_memory_equal(c.address + 3, a.address + 3, a.address_size - 3);
    ofi_join(&b, &c, &link);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
    ofi_node_close(&c);
}

UNIT_MAIN(both_ends_learn_what_the_other_sent, private_data_of_full_size_arrives_and_more_is_refused,
          a_refusal_closes_the_lane, nobody_listening_closes_the_lane, both_may_connect_at_once,
          closing_one_end_is_announced_once_at_the_other, a_lane_that_never_connects_can_be_closed,
          a_request_may_wait_and_its_caller_may_leave, requests_unanswered_at_the_end_are_refused,
          receives_may_be_posted_before_connect, lanes_that_never_connect_can_be_closed,
          an_event_that_was_found_ends_with_its_lane, the_event_of_a_failed_operation_ends_with_its_lane,
          an_event_that_was_found_is_reported_once, a_request_that_was_found_is_refused_at_the_end,
          a_malformed_address_is_invalid, connections_leave_no_descriptor, a_range_of_ports_is_used_up_then_refused,
          bad_options_are_named, an_interface_can_be_named)
