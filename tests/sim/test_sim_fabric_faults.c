/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sim_fabric_faults.c - faults of one kind of fabric, while the worker's other fabrics work: it fails, never
 * opens, is cut, or refuses registrations.
 */
#include "sim_host.h"
#include "lanes.h"
#include "said.h"
#include "make.h"

enum { KINDS = 4, SEEDS = 40 };

static const char *const kinds[KINDS] = {"sim", "sim-verbs", "sim-reads", "sim-rdm"};
static const bool is_quiet[KINDS] = {false, true, false, true};

static int kind; /* whose fault it is */

/* A connection of every kind between workers 0 and 1. */
typedef struct link {
    sim_host a, b;
    wfi_lane *lane_a, *lane_b;
    uint8_t memory_a[8], memory_b[8];
    wfi_region *region_a, *region_b;
} link;

static void link_open(link *l, weft_sim *sim, const char *name)
{
    unsigned access = WFI_LOCAL | WFI_REMOTE_READ;
    host_open_kind(&l->a, sim, 0, name);
    host_open_kind(&l->b, sim, 1, name);
    host_join(&l->a, &l->b, &l->lane_a, &l->lane_b);
    assert_int_equal(l->a.ops->region_open(l->a.fabric, &WFI_HOST_MEMORY(l->memory_a, 8), access, &l->region_a),
                     WEFT_OK);
    assert_int_equal(l->b.ops->region_open(l->b.fabric, &WFI_HOST_MEMORY(l->memory_b, 8), access, &l->region_b),
                     WEFT_OK);
}

static void link_close(link *l)
{
    l->a.ops->region_close(l->a.fabric, l->region_a);
    l->b.ops->region_close(l->b.fabric, l->region_b);
    l->a.ops->lane_close(l->lane_a);
    l->b.ops->lane_close(l->lane_b);
    host_close(&l->a);
    host_close(&l->b);
}

static void post_message(link *l, bool from_a, uint8_t byte, wfi_fabric_op *send, wfi_fabric_op *receive)
{
    wfi_lane *from = from_a ? l->lane_a : l->lane_b, *to = from_a ? l->lane_b : l->lane_a;
    uint8_t *source = from_a ? l->memory_a : l->memory_b, *target = from_a ? l->memory_b : l->memory_a;
    wfi_region *its = from_a ? l->region_a : l->region_b, *others = from_a ? l->region_b : l->region_a;
    *source = byte;
    target[1] = 0;
    assert_int_equal(l->a.ops->post_recv(to, receive, &(wfi_receive_buffer){target + 1, 1, others}, 1), WEFT_OK);
    assert_int_equal(l->a.ops->send(from, send, &(wfi_iov){source, 1, its}, 1), WEFT_OK);
    host_expect(from_a ? &l->a : &l->b, send, WEFT_OK);
}

static void exchange(link *l, bool from_a)
{
    wfi_fabric_op send, receive;
    post_message(l, from_a, 42, &send, &receive);
    host_expect(from_a ? &l->b : &l->a, &receive, WEFT_OK);
    assert_int_equal((from_a ? l->memory_b : l->memory_a)[1], 42);
}

static weft_status read_byte(link *l, wfi_fabric_op *op)
{
    return l->a.ops->read(l->lane_a, op, l->memory_a, 1, l->region_a, l->region_b->base, l->region_b->key);
}

static void links_open(link *links, weft_sim *sim)
{
    for (int i = 0; i < KINDS; i++)
        link_open(&links[i], sim, kinds[i]);
}

/* The fabrics of other kinds work in both directions. */
static void others_work(link *links)
{
    for (int i = 0; i < KINDS; i++) {
        if (i == kind)
            continue;
        exchange(&links[i], true);
        exchange(&links[i], false);
    }
}

static void links_close(link *links)
{
    for (int i = 0; i < KINDS; i++)
        link_close(&links[i]);
}

static void all_kinds(void (*body)(weft_sim *sim))
{
    for (kind = 0; kind < KINDS; kind++)
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            host_world(&(weft_sim_options){.seed = seed}, body);
}

/* ---- Failures -------------------------------------------------------------------------------------------------- */

static void expect_closed(sim_host *host)
{
    assert_int_equal(host_event(host, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
}

static void fails(weft_sim *sim)
{
    link links[KINDS], *l = &links[kind];
    wfi_fabric_op read, back;
    wfi_lane *lane;
    uint8_t address[WFI_ADDRESS_MAX];
    links_open(links, sim);
    assert_int_equal(read_byte(l, &read), WEFT_OK);
    assert_int_equal(weft_sim_fabric_fail(sim, 1, kinds[kind]), WEFT_OK);
    assert_int_equal(weft_sim_fabric_fail(sim, 1, kinds[kind]), WEFT_OK);
    host_expect(&l->a, &read, WEFT_ERR_UNREACHABLE);
    expect_closed(&l->a);
    if (is_quiet[kind]) { /* the other end learns it when it sends */
        host_silence(&l->b, 5 * SECOND_NS);
        assert_int_equal(
            l->b.ops->read(l->lane_b, &back, l->memory_b, 1, l->region_b, l->region_a->base, l->region_a->key),
            WEFT_OK);
        host_expect(&l->b, &back, WEFT_ERR_UNREACHABLE);
    }
    expect_closed(&l->b);
    others_work(links);
    l->a.ops->lane_close(l->lane_a);
    l->b.ops->lane_close(l->lane_b);
    size_t size = host_address(&l->a, address);
    assert_int_equal(lanes_connect(l->b.fabric, address, size, NULL, 0, NULL, &lane), WEFT_ERR_FABRIC);
    lane = host_connect(&l->a, &l->b, "");
    if (is_quiet[kind])
        host_silence(&l->a, 5 * SECOND_NS); /* no answer */
    else
        assert_int_equal(host_event(&l->a, WFI_EVENT_CLOSED).status, WEFT_ERR_UNREACHABLE);
    l->a.ops->lane_close(lane);
    host_silence(&l->b, SECOND_NS);
    assert_int_equal(weft_sim_fabric_repair(sim, 1, kinds[kind]), WEFT_OK);
    assert_int_equal(weft_sim_fabric_repair(sim, 1, kinds[kind]), WEFT_OK);
    host_join(&l->a, &l->b, &l->lane_a, &l->lane_b);
    exchange(l, true);
    exchange(l, false);
    links_close(links);
}

static void test_fails(void **state)
{
    all_kinds(fails);
}

/* A failure while connections are being made: each end learns it, or hears nothing and gives up by itself. */
static void fails_in_handshake(weft_sim *sim)
{
    sim_host a, b;
    wfi_lane *lane_b = NULL;
    host_open_kind(&a, sim, 0, kinds[kind]);
    host_open_kind(&b, sim, 1, kinds[kind]);
    wfi_lane *lane_a = host_connect(&a, &b, "");
    wfi_event event;
    uint64_t fail_ns = weft_sim_now(sim) + wfi_sim_random(sim) % 60000;
    while (weft_sim_now(sim) < fail_ns) {
        if (b.ops->poll_events(b.fabric, &event, 1) && event.kind == WFI_EVENT_REQUEST)
            assert_int_equal(lanes_accept(b.fabric, event.request, NULL, 0, NULL, &lane_b), WEFT_OK);
        weft_sim_sleep(sim, 1000);
    }
    assert_int_equal(weft_sim_fabric_fail(sim, 1, kinds[kind]), WEFT_OK);
    weft_sim_sleep(sim, SECOND_NS);
    if (!lane_b && b.ops->poll_events(b.fabric, &event, 1)) {
        wfi_lane *late;
        assert_int_equal(event.kind, WFI_EVENT_REQUEST);
        assert_int_equal(lanes_accept(b.fabric, event.request, NULL, 0, NULL, &late), WEFT_ERR_FABRIC);
    }
    a.ops->lane_close(lane_a);
    if (lane_b)
        b.ops->lane_close(lane_b);
    assert_int_equal(weft_sim_fabric_repair(sim, 1, kinds[kind]), WEFT_OK);
    weft_sim_sleep(sim, SECOND_NS);
    while (a.ops->poll_events(a.fabric, &event, 1) || b.ops->poll_events(b.fabric, &event, 1))
        ;
    host_join(&a, &b, &lane_a, &lane_b);
    a.ops->lane_close(lane_a);
    b.ops->lane_close(lane_b);
    host_close(&a);
    host_close(&b);
}

static void test_fails_in_handshake(void **state)
{
    all_kinds(fails_in_handshake);
}

static void never_opens(weft_sim *sim)
{
    sim_host host;
    wfi_fabric *fabric;
    weft_error *error = NULL;
    wfi_fabric_options options = {.sim = sim, .rank = 3};
    assert_int_equal(weft_sim_fabric_fail(sim, 3, kinds[kind]), WEFT_OK);
    assert_int_equal(wfi_fabric_find(kinds[kind])->open(&options, &fabric, &error), WEFT_ERR_FABRIC);
    assert_non_null(strstr(weft_error_message(error), "weft_sim_fabric_fail"));
    weft_error_unref(error);
    for (int i = 0; i < KINDS; i++) {
        if (i != kind) {
            host_open_kind(&host, sim, 3, kinds[i]);
            host_close(&host);
        }
        host_open_kind(&host, sim, 2, kinds[i]);
        host_close(&host);
    }
    assert_int_equal(weft_sim_fabric_repair(sim, 3, kinds[kind]), WEFT_OK);
    host_open_kind(&host, sim, 3, kinds[kind]);
    host_close(&host);
}

static void test_never_opens(void **state)
{
    all_kinds(never_opens);
}

/* ---- Cuts ------------------------------------------------------------------------------------------------------ */

/* Messages from worker 0 to worker 1 are held; those of the other direction arrive. */
static void cut_one_way(weft_sim *sim)
{
    link links[KINDS], *l = &links[kind];
    wfi_fabric_op send, receive, read;
    links_open(links, sim);
    assert_int_equal(weft_sim_fabric_cut(sim, 0, 1, kinds[kind]), WEFT_OK);
    assert_int_equal(weft_sim_fabric_cut(sim, 0, 1, kinds[kind]), WEFT_OK);
    exchange(l, false);
    others_work(links);
    post_message(l, true, 7, &send, &receive);
    host_silence(&l->b, SECOND_NS / 10);
    if (is_quiet[kind]) {
        expect_closed(&l->a);
        assert_int_equal(weft_sim_fabric_heal(sim, 0, 1, kinds[kind]), WEFT_OK);
        host_silence(&l->b, 5 * SECOND_NS); /* what was held is lost */
        l->b.ops->lane_close(l->lane_b);
        host_expect(&l->b, &receive, WEFT_ERR_CANCELLED);
        l->a.ops->lane_close(l->lane_a);
        host_join(&l->a, &l->b, &l->lane_a, &l->lane_b);
    } else {
        assert_int_equal(read_byte(l, &read), WEFT_OK);
        host_silence(&l->a, 5 * SECOND_NS);
        assert_int_equal(weft_sim_fabric_heal(sim, 0, 1, kinds[kind]), WEFT_OK);
        host_expect(&l->b, &receive, WEFT_OK);
        assert_int_equal(l->memory_b[1], 7);
        host_expect(&l->a, &read, WEFT_OK);
    }
    assert_int_equal(weft_sim_fabric_heal(sim, 0, 1, kinds[kind]), WEFT_OK);
    exchange(l, true);
    links_close(links);
}

static void test_cut_one_way(void **state)
{
    all_kinds(cut_one_way);
}

/* A short cut loses nothing over any fabric, and keeps the order. */
static void cut_both_ways(weft_sim *sim)
{
    enum { COUNT = 60 };
    link links[KINDS], *l = &links[kind];
    wfi_fabric_op sends[COUNT], receives[COUNT];
    uint8_t sent[COUNT], got[COUNT];
    wfi_region *source, *target;
    links_open(links, sim);
    assert_int_equal(l->a.ops->region_open(l->a.fabric, &WFI_HOST_MEMORY(sent, COUNT), WFI_LOCAL, &source), WEFT_OK);
    assert_int_equal(l->b.ops->region_open(l->b.fabric, &WFI_HOST_MEMORY(got, COUNT), WFI_LOCAL, &target), WEFT_OK);
    for (int i = 0; i < COUNT; i++) {
        sent[i] = (uint8_t)i;
        assert_int_equal(l->b.ops->post_recv(l->lane_b, &receives[i], &(wfi_receive_buffer){&got[i], 1, target}, 1),
                         WEFT_OK);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(l->a.ops->send(l->lane_a, &sends[i], &(wfi_iov){&sent[i], 1, source}, 1), WEFT_OK);
        weft_sim_sleep(sim, wfi_sim_random(sim) % 4000);
        for (int way = 0; way < 2; way++) {
            if (i % 10 == 5)
                assert_int_equal(weft_sim_fabric_cut(sim, way, 1 - way, kinds[kind]), WEFT_OK);
            if (i % 10 == 9)
                assert_int_equal(weft_sim_fabric_heal(sim, way, 1 - way, kinds[kind]), WEFT_OK);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        host_expect(&l->a, &sends[i], WEFT_OK);
        host_expect(&l->b, &receives[i], WEFT_OK);
    }
    assert_memory_equal(sent, got, COUNT);
    l->a.ops->region_close(l->a.fabric, source);
    l->b.ops->region_close(l->b.fabric, target);
    links_close(links);
}

static void test_cut_both_ways(void **state)
{
    all_kinds(cut_both_ways);
}

/* A world may end with cuts that hold something. */
static void ends_while_cut(weft_sim *sim)
{
    link links[KINDS];
    wfi_fabric_op send, receive;
    links_open(links, sim);
    assert_int_equal(weft_sim_fabric_cut(sim, 0, 1, kinds[kind]), WEFT_OK);
    post_message(&links[kind], true, 7, &send, &receive);
    weft_sim_sleep(sim, 100000);
    links_close(links);
}

static void test_ends_while_cut(void **state)
{
    all_kinds(ends_while_cut);
}

/* ---- Registrations --------------------------------------------------------------------------------------------- */

static void refuses_memory(weft_sim *sim)
{
    link links[KINDS], *l = &links[kind];
    wfi_region *region;
    uint8_t memory[8];
    links_open(links, sim);
    assert_int_equal(weft_sim_fabric_refuse_memory(sim, 1, kinds[kind], true), WEFT_OK);
    assert_int_equal(l->b.ops->region_open(l->b.fabric, &WFI_HOST_MEMORY(memory, 8), WFI_LOCAL, &region),
                     WEFT_ERR_MEMORY);
    assert_int_equal(l->a.ops->region_open(l->a.fabric, &WFI_HOST_MEMORY(memory, 8), WFI_LOCAL, &region), WEFT_OK);
    l->a.ops->region_close(l->a.fabric, region);
    exchange(l, true); /* what is registered stays so */
    others_work(links);
    for (int i = 0; i < KINDS; i++) {
        if (i == kind)
            continue;
        assert_int_equal(
            links[i].b.ops->region_open(links[i].b.fabric, &WFI_HOST_MEMORY(memory, 8), WFI_LOCAL, &region), WEFT_OK);
        links[i].b.ops->region_close(links[i].b.fabric, region);
    }
    assert_int_equal(weft_sim_fabric_refuse_memory(sim, 1, kinds[kind], false), WEFT_OK);
    assert_int_equal(l->b.ops->region_open(l->b.fabric, &WFI_HOST_MEMORY(memory, 8), WFI_LOCAL, &region), WEFT_OK);
    l->b.ops->region_close(l->b.fabric, region);
    links_close(links);
}

static void test_refuses_memory(void **state)
{
    all_kinds(refuses_memory);
}

/* ---- Misuse ---------------------------------------------------------------------------------------------------- */

static void test_wrong_arguments(void **state)
{
    weft_sim *sim = sim_open(NULL);
    REFUSES(weft_sim_fabric_fail(NULL, 0, "sim"), WEFT_ERR_INVALID, "weft_sim_fabric_fail: the simulation is NULL");
    REFUSES(weft_sim_fabric_fail(sim, 0, NULL), WEFT_ERR_INVALID, "weft_sim_fabric_fail: fabric is NULL");
    REFUSES(weft_sim_fabric_fail(sim, -1, "sim"), WEFT_ERR_INVALID, "weft_sim_fabric_fail: rank is -1: 0 to");
    REFUSES(weft_sim_fabric_repair(sim, 0, "tcp"), WEFT_ERR_INVALID,
            "weft_sim_fabric_repair: no simulated fabric has the name \"tcp\"");
    REFUSES(weft_sim_fabric_cut(sim, 0, 1 << 20, "sim"), WEFT_ERR_INVALID, "weft_sim_fabric_cut: to is 1048576: 0 to");
    REFUSES(weft_sim_fabric_cut(sim, 2, 2, "sim"), WEFT_ERR_INVALID, "weft_sim_fabric_cut: from and to are both 2");
    REFUSES(weft_sim_fabric_heal(sim, -2, 1, "sim"), WEFT_ERR_INVALID, "weft_sim_fabric_heal: from is -2: 0 to");
    REFUSES(weft_sim_fabric_refuse_memory(sim, 0, "", true), WEFT_ERR_INVALID,
            "weft_sim_fabric_refuse_memory: no simulated fabric has the name \"\"");
    weft_sim_close(sim);
}

UNIT_MAIN(test_fails, test_fails_in_handshake, test_never_opens, test_cut_one_way, test_cut_both_ways,
          test_ends_while_cut, test_refuses_memory, test_wrong_arguments)
