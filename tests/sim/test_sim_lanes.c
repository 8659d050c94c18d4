/* SPDX-License-Identifier: Apache-2.0 */
/* test_sim_lanes.c - connections of the simulated fabric: handshakes, refusals, messages and their order. */
#include "sim_host.h"
#include "lanes.h"

static void carries_private_data(weft_sim *sim)
{
    sim_host a, b;
    wfi_lane *lane_a, *lane_b;
    char data[WFI_CONNECT_DATA_MAX + 1];
    memset(data, 'x', WFI_CONNECT_DATA_MAX);
    data[WFI_CONNECT_DATA_MAX] = 0;
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    lane_a = host_connect(&a, &b, data);
    wfi_event event = host_event(&b, WFI_EVENT_REQUEST);
    assert_int_equal(event.data_size, WFI_CONNECT_DATA_MAX);
    assert_memory_equal(event.data, data, WFI_CONNECT_DATA_MAX);
    assert_int_equal(lanes_accept(b.fabric, event.request, "yes", 3, &b, &lane_b), WEFT_OK);
    event = host_event(&a, WFI_EVENT_CONNECTED);
    assert_ptr_equal(event.lane, lane_a);
    assert_ptr_equal(event.lane_user, &a);
    assert_int_equal(event.data_size, 3);
    assert_memory_equal(event.data, "yes", 3);
    event = host_event(&b, WFI_EVENT_CONNECTED);
    assert_ptr_equal(event.lane, lane_b);
    assert_ptr_equal(event.lane_user, &b);
    a.ops->lane_close(lane_a);
    b.ops->lane_close(lane_b);
    host_close(&a);
    host_close(&b);
}

static void test_private_data(void **state)
{
    host_world(NULL, carries_private_data);
}

static void refuses_bad_connects(weft_sim *sim)
{
    sim_host a;
    uint8_t address[WFI_ADDRESS_MAX] = {0}, data[WFI_CONNECT_DATA_MAX + 1] = {0};
    wfi_lane *lane;
    host_open(&a, sim, 0);
    size_t size = host_address(&a, address);
    assert_int_equal(lanes_connect(a.fabric, address, size, data, sizeof(data), NULL, &lane), WEFT_ERR_INVALID);
    assert_int_equal(lanes_connect(a.fabric, address, size - 1, NULL, 0, NULL, &lane), WEFT_ERR_INVALID);
    memset(address, 0xff, sizeof(address));
    assert_int_equal(lanes_connect(a.fabric, address, size, NULL, 0, NULL, &lane), WEFT_ERR_INVALID);
    host_close(&a);
}

static void test_bad_connects(void **state)
{
    host_world(NULL, refuses_bad_connects);
}

static void nobody_listens(weft_sim *sim)
{
    sim_host a, b;
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    uint8_t address[WFI_ADDRESS_MAX];
    size_t size = host_address(&b, address);
    host_close(&b);
    for (int again = 0; again < 2; again++) { /* a new fabric at that rank is not the one that was asked */
        wfi_lane *lane;
        assert_int_equal(lanes_connect(a.fabric, address, size, NULL, 0, NULL, &lane), WEFT_OK);
        wfi_event event = host_event(&a, WFI_EVENT_CLOSED);
        assert_int_equal(event.status, WEFT_ERR_UNREACHABLE);
        assert_ptr_equal(event.lane, lane);
        a.ops->lane_close(lane);
        if (!again)
            host_open(&b, sim, 1);
    }
    host_close(&a);
    host_close(&b);
}

static void test_nobody_listens(void **state)
{
    host_world(NULL, nobody_listens);
}

static void rejects(weft_sim *sim)
{
    sim_host a, b;
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    wfi_lane *lane = host_connect(&a, &b, "");
    b.ops->reject(b.fabric, host_event(&b, WFI_EVENT_REQUEST).request);
    wfi_event event = host_event(&a, WFI_EVENT_CLOSED);
    assert_int_equal(event.status, WEFT_ERR_UNREACHABLE);
    a.ops->lane_close(lane);
    host_silence(&b, SECOND_NS);
    host_close(&a);
    host_close(&b);
}

static void test_reject(void **state)
{
    host_world(NULL, rejects);
}

static void both_connect(weft_sim *sim)
{
    sim_host hosts[2];
    wfi_lane *lanes[2][2];
    host_open(&hosts[0], sim, 0);
    host_open(&hosts[1], sim, 1);
    lanes[0][0] = host_connect(&hosts[0], &hosts[1], "a");
    lanes[1][0] = host_connect(&hosts[1], &hosts[0], "b");
    for (int i = 0; i < 2; i++) {
        wfi_event event = host_event(&hosts[i], WFI_EVENT_REQUEST);
        assert_int_equal(lanes_accept(hosts[i].fabric, event.request, NULL, 0, NULL, &lanes[i][1]), WEFT_OK);
    }
    for (int i = 0; i < 4; i++)
        host_event(&hosts[i % 2], WFI_EVENT_CONNECTED);
    for (int i = 0; i < 4; i++)
        hosts[i / 2].ops->lane_close(lanes[i / 2][i % 2]);
    host_silence(&hosts[0], SECOND_NS);
    host_close(&hosts[0]);
    host_close(&hosts[1]);
}

static void test_both_connect(void **state)
{
    host_world(NULL, both_connect);
}

/* Who asked goes away before, while, and after the request is looked at. */
static void asker_leaves(weft_sim *sim)
{
    sim_host a, b;
    wfi_lane *lane_b;
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    a.ops->lane_close(host_connect(&a, &b, "")); /* both arrive, nothing is seen */
    host_silence(&b, SECOND_NS);
    wfi_lane *lane_a = host_connect(&a, &b, "");
    wfi_event event = host_event(&b, WFI_EVENT_REQUEST);
    a.ops->lane_close(lane_a);
    weft_sim_sleep(sim, SECOND_NS); /* the goodbye is there, the request still in our hands */
    assert_int_equal(lanes_accept(b.fabric, event.request, NULL, 0, NULL, &lane_b), WEFT_OK);
    assert_int_equal(host_event(&b, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    b.ops->lane_close(lane_b);
    lane_a = host_connect(&a, &b, "");
    event = host_event(&b, WFI_EVENT_REQUEST);
    assert_int_equal(lanes_accept(b.fabric, event.request, NULL, 0, NULL, &lane_b), WEFT_OK);
    a.ops->lane_close(lane_a); /* the answer finds nobody */
    host_event(&b, WFI_EVENT_CLOSED);
    b.ops->lane_close(lane_b);
    host_silence(&a, SECOND_NS);
    host_close(&a);
    host_close(&b);
}

static void test_asker_leaves(void **state)
{
    host_world(NULL, asker_leaves);
}

/* A fabric that closes with requests pending refuses them; one that closes with lanes open closes them. */
static void fabric_closes(weft_sim *sim)
{
    sim_host a, b;
    wfi_lane *lanes[3], *lane_b;
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    host_join(&a, &b, &lanes[0], &lane_b);
    lanes[1] = host_connect(&a, &b, "");
    host_event(&b, WFI_EVENT_REQUEST);
    lanes[2] = host_connect(&a, &b, "");
    weft_sim_sleep(sim, SECOND_NS);
    host_close(&b);
    for (int i = 0; i < 3; i++) {
        wfi_event event = host_event(&a, WFI_EVENT_CLOSED);
        assert_int_equal(event.status, event.lane == lanes[0] ? WEFT_ERR_FABRIC : WEFT_ERR_UNREACHABLE);
        a.ops->lane_close(event.lane);
    }
    host_close(&a);
}

static void test_fabric_closes(void **state)
{
    host_world(NULL, fabric_closes);
}

static void one_fabric_a_rank(weft_sim *sim)
{
    sim_host a;
    wfi_fabric *second;
    weft_error *error = NULL;
    host_open(&a, sim, 0);
    assert_int_equal(a.ops->open(&(wfi_fabric_options){.sim = sim}, &second, &error), WEFT_ERR_FABRIC);
    assert_int_equal(weft_error_code(error), WEFT_ERR_FABRIC);
    weft_error_unref(error);
    assert_int_equal(a.ops->open(&(wfi_fabric_options){.rank = 1}, &second, NULL), WEFT_ERR_INVALID);
    assert_int_equal(a.ops->open(&(wfi_fabric_options){.sim = sim, .rank = -1}, &second, NULL), WEFT_ERR_INVALID);
    host_close(&a);
}

static void test_one_fabric_a_rank(void **state)
{
    host_world(NULL, one_fabric_a_rank);
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

enum { MANY = 200 };

static void messages_in_order(weft_sim *sim)
{
    sim_host a, b;
    wfi_lane *lane_a, *lane_b;
    static wfi_fabric_op sends[MANY], receives[MANY];
    static uint32_t sent[MANY], got[MANY];
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    host_join(&a, &b, &lane_a, &lane_b);
    for (int i = 0; i < MANY / 2; i++) /* half of the messages find a receive, half wait for one */
        assert_int_equal(
            b.ops->post_recv(lane_b, &receives[i], &(wfi_receive_buffer){&got[i], sizeof(got[i]), NULL}, 1), WEFT_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        sent[i] = i * 7919;
        wfi_iov parts[] = {{&sent[i], 1, NULL}, {(uint8_t *)&sent[i] + 1, 3, NULL}};
        assert_int_equal(a.ops->send(lane_a, &sends[i], parts, 2), WEFT_OK);
    }
    for (int i = 0; i < MANY; i++)
        host_expect(&a, &sends[i], WEFT_OK);
    weft_sim_sleep(sim, SECOND_NS);
    for (int i = MANY / 2; i < MANY; i++)
        assert_int_equal(
            b.ops->post_recv(lane_b, &receives[i], &(wfi_receive_buffer){&got[i], sizeof(got[i]), NULL}, 1), WEFT_OK);
    for (int i = 0; i < MANY; i++)
        host_expect(&b, &receives[i], WEFT_OK);
    assert_memory_equal(sent, got, sizeof(sent));
    a.ops->lane_close(lane_a);
    b.ops->lane_close(lane_b);
    host_close(&a);
    host_close(&b);
}

static void test_messages_in_order(void **state)
{
    for (uint64_t seed = 0; seed < 10; seed++)
        host_world(&(weft_sim_options){.seed = seed, .latency_max_ns = 1000000}, messages_in_order);
}

static void odd_messages(weft_sim *sim)
{
    sim_host a, b;
    wfi_lane *lane_a, *lane_b;
    wfi_fabric_op op, receive, unused;
    uint8_t small[4] = {0};
    wfi_iov parts[5] = {{"abcdefgh", 8, NULL}};
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    host_join(&a, &b, &lane_a, &lane_b);
    assert_int_equal(a.ops->send(lane_a, &unused, parts, 5), WEFT_ERR_TOO_LARGE);
    size_t most = a.ops->limits(a.fabric)->message_max;
    assert_int_equal(a.ops->send(lane_a, &unused, &(wfi_iov){parts, most + 1, NULL}, 1), WEFT_ERR_TOO_LARGE);
    assert_int_equal(b.ops->post_recv(lane_b, &receive, &(wfi_receive_buffer){small, 3, NULL}, 1), WEFT_OK);
    assert_int_equal(a.ops->send(lane_a, &op, NULL, 0), WEFT_OK); /* empty */
    wfi_completion done = host_completion(&b);
    assert_int_equal(done.status, WEFT_OK);
    assert_int_equal(done.size, 0);
    host_expect(&a, &op, WEFT_OK);
    assert_int_equal(b.ops->post_recv(lane_b, &receive, &(wfi_receive_buffer){small, 3, NULL}, 1), WEFT_OK);
    assert_int_equal(a.ops->send(lane_a, &op, parts, 1), WEFT_OK); /* longer than the receive */
    done = host_completion(&b);
    assert_int_equal(done.status, WEFT_ERR_TOO_LARGE);
    assert_int_equal(done.size, 8);
    assert_memory_equal(small, "abc", 4);
    a.ops->lane_close(lane_a);
    b.ops->lane_close(lane_b);
    host_close(&a);
    host_close(&b);
}

static void test_odd_messages(void **state)
{
    host_world(NULL, odd_messages);
}

static void needs_a_connected_lane(weft_sim *sim)
{
    sim_host a, b;
    wfi_fabric_op op, receive;
    char buffer[8];
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    wfi_lane *lane = host_connect(&a, &b, "");
    assert_int_equal(a.ops->post_recv(lane, &receive, &(wfi_receive_buffer){buffer, sizeof(buffer), NULL}, 1), WEFT_OK);
    assert_int_equal(host_send(&a, lane, &op, "x"), WEFT_ERR_STATE);
    b.ops->reject(b.fabric, host_event(&b, WFI_EVENT_REQUEST).request);
    host_event(&a, WFI_EVENT_CLOSED);
    host_expect(&a, &receive, WEFT_ERR_UNREACHABLE);
    assert_int_equal(host_send(&a, lane, &op, "x"), WEFT_ERR_UNREACHABLE);
    assert_int_equal(a.ops->post_recv(lane, &receive, &(wfi_receive_buffer){buffer, sizeof(buffer), NULL}, 1),
                     WEFT_ERR_UNREACHABLE);
    a.ops->lane_close(lane);
    host_close(&a);
    host_close(&b);
}

static void test_needs_a_connected_lane(void **state)
{
    host_world(NULL, needs_a_connected_lane);
}

static void talks_to_itself(weft_sim *sim)
{
    sim_host a;
    wfi_lane *lanes[2];
    wfi_fabric_op send, receive;
    char buffer[8];
    host_open(&a, sim, 0);
    lanes[0] = host_connect(&a, &a, "me");
    wfi_event event = host_event(&a, WFI_EVENT_REQUEST);
    assert_int_equal(lanes_accept(a.fabric, event.request, NULL, 0, NULL, &lanes[1]), WEFT_OK);
    host_event(&a, WFI_EVENT_CONNECTED);
    host_event(&a, WFI_EVENT_CONNECTED);
    assert_int_equal(a.ops->post_recv(lanes[1], &receive, &(wfi_receive_buffer){buffer, sizeof(buffer), NULL}, 1),
                     WEFT_OK);
    assert_int_equal(host_send(&a, lanes[0], &send, "echo"), WEFT_OK);
    host_expect(&a, &send, WEFT_OK);
    host_expect(&a, &receive, WEFT_OK);
    assert_memory_equal(buffer, "echo", 4);
    a.ops->lane_close(lanes[0]);
    a.ops->lane_close(lanes[1]);
    host_close(&a);
}

static void test_talks_to_itself(void **state)
{
    host_world(NULL, talks_to_itself);
}

UNIT_MAIN(test_private_data, test_bad_connects, test_nobody_listens, test_reject, test_both_connect, test_asker_leaves,
          test_fabric_closes, test_one_fabric_a_rank, test_messages_in_order, test_odd_messages,
          test_needs_a_connected_lane, test_talks_to_itself)
