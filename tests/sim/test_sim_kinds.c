/* SPDX-License-Identifier: Apache-2.0 */
/* test_sim_kinds.c - the kinds of simulated fabrics: several at a worker, and what each of them does not do. */
#include "sim_host.h"
#include "lanes.h"

enum { KINDS = 4, SEEDS = 40 };

static const char *const kinds[KINDS] = {"sim", "sim-verbs", "sim-reads", "sim-rdm"};
static const bool is_quiet[KINDS] = {false, true, false, true};

static int kind; /* of the world that runs */
static size_t reordered;

typedef struct pair {
    sim_host a, b;
    wfi_lane *lane_a, *lane_b;
    uint8_t memory[64]; /* of b */
    uint8_t local[64];  /* of a */
    wfi_region *remote_region, *local_region;
} pair;

static void join(pair *p, weft_sim *sim)
{
    wfi_memory cuda = {.data = p->memory, .size = sizeof(p->memory), .kind = WFI_MEMORY_CUDA};
    host_open_kind(&p->a, sim, 0, kinds[kind]);
    host_open_kind(&p->b, sim, 1, kinds[kind]);
    assert_int_equal(p->b.ops->region_open(p->b.fabric, &cuda, WFI_REMOTE_READ, &p->remote_region),
                     WEFT_ERR_UNSUPPORTED);
    host_join(&p->a, &p->b, &p->lane_a, &p->lane_b);
    for (size_t i = 0; i < sizeof(p->memory); i++)
        p->memory[i] = (uint8_t)(i * 7);
    assert_int_equal(p->b.ops->region_open(p->b.fabric, &WFI_HOST_MEMORY(p->memory, sizeof(p->memory)), WFI_REMOTE_READ,
                                           &p->remote_region),
                     WEFT_OK);
    assert_int_equal(
        p->a.ops->region_open(p->a.fabric, &WFI_HOST_MEMORY(p->local, sizeof(p->local)), WFI_LOCAL, &p->local_region),
        WEFT_OK);
}

static void part(pair *p)
{
    p->a.ops->region_close(p->a.fabric, p->local_region);
    p->b.ops->region_close(p->b.fabric, p->remote_region);
    p->a.ops->lane_close(p->lane_a);
    p->b.ops->lane_close(p->lane_b);
    host_close(&p->a);
    host_close(&p->b);
}

static weft_status send_byte(pair *p, wfi_fabric_op *op)
{
    return p->a.ops->send(p->lane_a, op, &(wfi_iov){p->local, 1, p->local_region}, 1);
}

static weft_status read_byte(pair *p, wfi_fabric_op *op, size_t at)
{
    return p->a.ops->read(p->lane_a, op, p->local + at, 1, p->local_region, p->remote_region->base + at,
                          p->remote_region->key);
}

static void all_kinds(void (*body)(weft_sim *sim))
{
    for (kind = 0; kind < KINDS; kind++)
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            host_world(&(weft_sim_options){.seed = seed}, body);
}

static void quiet_kinds(void (*body)(weft_sim *sim))
{
    for (kind = 0; kind < KINDS; kind++)
        for (uint64_t seed = 0; seed < SEEDS && is_quiet[kind]; seed++)
            host_world(&(weft_sim_options){.seed = seed}, body);
}

/* ---- Several at a worker --------------------------------------------------------------------------------------- */

static void one_of_each(weft_sim *sim)
{
    sim_host a[KINDS], b[KINDS];
    wfi_lane *lane_a[KINDS], *lane_b[KINDS], *wrong;
    wfi_fabric *second;
    for (int i = 0; i < KINDS; i++) {
        host_open_kind(&a[i], sim, 0, kinds[i]);
        host_open_kind(&b[i], sim, 1, kinds[i]);
        assert_int_equal(a[i].ops->open(&(wfi_fabric_options){.sim = sim}, &second, NULL), WEFT_ERR_FABRIC);
    }
    for (int i = 0; i < KINDS; i++) {
        uint8_t address[WFI_ADDRESS_MAX], other[WFI_ADDRESS_MAX];
        char text[32], wanted[32];
        size_t size = host_address(&b[i], address);
        snprintf(wanted, sizeof(wanted), "%s:1", kinds[i]);
        a[i].ops->address_text(address, size, text, sizeof(text));
        assert_string_equal(text, wanted);
        (void)host_address(&b[(i + 1) % KINDS], other);
        assert_int_equal(lanes_connect(a[i].fabric, other, size, NULL, 0, NULL, &wrong), WEFT_ERR_INVALID);
        host_join(&a[i], &b[i], &lane_a[i], &lane_b[i]);
    }
    for (int i = 0; i < KINDS; i++) { /* the end of one concerns no other */
        a[i].ops->lane_close(lane_a[i]);
        b[i].ops->lane_close(lane_b[i]);
        host_close(&a[i]);
        for (int k = i + 1; k < KINDS; k++)
            host_silence(&b[k], SECOND_NS);
        host_close(&b[i]);
    }
}

static void test_one_of_each(void **state)
{
    host_world(NULL, one_of_each);
}

static void carries(weft_sim *sim)
{
    enum { COUNT = 20 };
    pair p;
    wfi_fabric_op sends[COUNT], receives[COUNT], read;
    uint8_t got[COUNT];
    wfi_region *got_region;
    join(&p, sim);
    assert_int_equal(p.b.ops->region_open(p.b.fabric, &WFI_HOST_MEMORY(got, sizeof(got)), WFI_LOCAL, &got_region),
                     WEFT_OK);
    for (size_t i = 0; i < COUNT; i++) {
        p.local[i] = (uint8_t)i;
        assert_int_equal(p.b.ops->post_recv(p.lane_b, &receives[i], &(wfi_receive_buffer){&got[i], 1, got_region}, 1),
                         WEFT_OK);
    }
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(p.a.ops->send(p.lane_a, &sends[i], &(wfi_iov){&p.local[i], 1, p.local_region}, 1), WEFT_OK);
    for (size_t i = 0; i < COUNT; i++) {
        host_expect(&p.a, &sends[i], WEFT_OK);
        host_expect(&p.b, &receives[i], WEFT_OK);
        assert_int_equal(got[i], i);
    }
    assert_int_equal(read_byte(&p, &read, 33), WEFT_OK);
    host_expect(&p.a, &read, WEFT_OK);
    assert_int_equal(p.local[33], p.memory[33]);
    host_silence(&p.a, 5 * SECOND_NS); /* idle is not broken */
    p.b.ops->region_close(p.b.fabric, got_region);
    part(&p);
}

static void test_each_carries(void **state)
{
    all_kinds(carries);
}

static void replays(weft_sim *sim)
{
    int mine = kind;
    for (kind = 0; kind < KINDS; kind++)
        carries(sim);
    kind = mine;
}

static void test_seeds_replay(void **state)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        weft_sim_options options = {.seed = seed};
        assert_true(host_world(&options, replays) == host_world(&options, replays));
    }
}

/* ---- What one kind has not ------------------------------------------------------------------------------------- */

static void test_reads_only(void **state)
{
    for (int i = 0; i < KINDS; i++)
        assert_int_equal(wfi_fabric_find(kinds[i])->write != NULL, strcmp(kinds[i], "sim-reads") != 0);
}

static void wants_regions(weft_sim *sim)
{
    enum { REGIONS = 16384 };
    static wfi_region *regions[REGIONS];
    pair p;
    wfi_fabric_op op;
    wfi_region *region;
    size_t count = 0;
    join(&p, sim);
    assert_true(p.a.ops->limits(p.a.fabric)->needs_local_regions && !p.a.ops->limits(p.a.fabric)->keys_per_transfer);
    assert_int_equal(p.a.ops->send(p.lane_a, &op, &(wfi_iov){p.local, 1, NULL}, 1), WEFT_ERR_INVALID);
    assert_int_equal(p.a.ops->post_recv(p.lane_a, &op, &(wfi_receive_buffer){p.local, 1, NULL}, 1), WEFT_ERR_INVALID);
    assert_int_equal(p.a.ops->read(p.lane_a, &op, p.local, 1, NULL, p.remote_region->base, p.remote_region->key),
                     WEFT_ERR_INVALID);
    weft_status status;
    while (!(status = p.a.ops->region_open(p.a.fabric, &WFI_HOST_MEMORY(p.local, 1), WFI_REMOTE_READ, &region))) {
        assert_true(count < REGIONS && region->key <= 0xffff);
        regions[count++] = region;
    }
    assert_int_equal(status, WEFT_ERR_MEMORY);
    assert_int_equal(count, REGIONS - 1); /* one is open already */
    while (count)
        p.a.ops->region_close(p.a.fabric, regions[--count]);
    part(&p);
}

static void test_verbs_wants_regions(void **state)
{
    kind = 1;
    host_world(NULL, wants_regions);
}

static void reads_overtake(weft_sim *sim)
{
    enum { COUNT = 16 };
    pair p;
    wfi_fabric_op reads[COUNT];
    join(&p, sim);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(read_byte(&p, &reads[i], i), WEFT_OK);
    for (size_t i = 0; i < COUNT; i++) {
        wfi_completion done = host_completion(&p.a);
        assert_int_equal(done.status, WEFT_OK);
        reordered += done.op != &reads[i];
    }
    assert_memory_equal(p.local, p.memory, COUNT);
    part(&p);
}

static void test_rdm_reads_in_any_order(void **state)
{
    kind = 3;
    reordered = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        host_world(&(weft_sim_options){.seed = seed}, reads_overtake);
    assert_true(reordered > SEEDS * 8);
}

/* ---- Breaks and closes that nobody announces ------------------------------------------------------------------- */

/* An end that is idle learns nothing; one that sends learns it later. */
static void expect_late_break(pair *p)
{
    wfi_fabric_op send, read;
    host_silence(&p->a, 5 * SECOND_NS);
    uint64_t start = weft_sim_now(p->a.sim);
    assert_int_equal(send_byte(p, &send), WEFT_OK);
    host_expect(&p->a, &send, WEFT_OK); /* it left */
    assert_int_equal(read_byte(p, &read, 1), WEFT_OK);
    host_expect(&p->a, &read, WEFT_ERR_UNREACHABLE);
    assert_int_equal(host_event(&p->a, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    assert_in_range(weft_sim_now(p->a.sim) - start, SECOND_NS / 5, 3 * SECOND_NS);
}

static void death_is_not_told(weft_sim *sim)
{
    pair p;
    join(&p, sim);
    weft_sim_kill(sim, 1);
    expect_late_break(&p);
    p.a.ops->region_close(p.a.fabric, p.local_region);
    p.a.ops->lane_close(p.lane_a);
    host_close(&p.a);
}

static void test_death_is_not_told(void **state)
{
    quiet_kinds(death_is_not_told);
}

static void reset_is_not_told(weft_sim *sim)
{
    pair p;
    join(&p, sim);
    weft_sim_reset_link(sim, 0, 1);
    expect_late_break(&p);
    host_silence(&p.b, 5 * SECOND_NS);
    p.a.ops->lane_close(p.lane_a);
    host_silence(&p.b, 5 * SECOND_NS); /* nor does it hear of the close */
    p.b.ops->lane_close(p.lane_b);
    host_join(&p.a, &p.b, &p.lane_a, &p.lane_b);
    part(&p);
}

static void test_reset_is_not_told(void **state)
{
    quiet_kinds(reset_is_not_told);
}

static void close_is_told(weft_sim *sim)
{
    pair p;
    wfi_fabric_op send;
    join(&p, sim);
    p.b.ops->lane_close(p.lane_b);
    if (strcmp(kinds[kind], "sim-rdm") == 0) { /* only the answer to a packet tells it */
        host_silence(&p.a, 5 * SECOND_NS);
        assert_int_equal(send_byte(&p, &send), WEFT_OK);
        host_expect(&p.a, &send, WEFT_OK);
    }
    uint64_t start = weft_sim_now(sim);
    assert_int_equal(host_event(&p.a, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    assert_in_range(weft_sim_now(sim) - start, 0, 40000);
    p.a.ops->lane_close(p.lane_a);
    host_silence(&p.a, 5 * SECOND_NS);
    p.lane_a = host_connect(&p.a, &p.b, "");
    p.b.ops->reject(p.b.fabric, host_event(&p.b, WFI_EVENT_REQUEST).request);
    assert_int_equal(host_event(&p.a, WFI_EVENT_CLOSED).status, WEFT_ERR_UNREACHABLE); /* a refusal is told */
    p.a.ops->lane_close(p.lane_a);
    host_join(&p.a, &p.b, &p.lane_a, &p.lane_b);
    part(&p);
}

static void test_close_is_told(void **state)
{
    all_kinds(close_is_told);
}

static void pause_is_no_break(weft_sim *sim)
{
    pair p;
    wfi_fabric_op send, read;
    join(&p, sim);
    weft_sim_pause(sim, 1);
    assert_int_equal(send_byte(&p, &send), WEFT_OK);
    host_expect(&p.a, &send, WEFT_OK);
    assert_int_equal(read_byte(&p, &read, 2), WEFT_OK);
    host_silence(&p.a, 10 * SECOND_NS);
    weft_sim_resume(sim, 1);
    host_expect(&p.a, &read, WEFT_OK);
    host_silence(&p.a, 10 * SECOND_NS);
    part(&p);
}

static void test_pause_is_no_break(void **state)
{
    all_kinds(pause_is_no_break);
}

static void slow_is_no_break(weft_sim *sim)
{
    static uint8_t far[1 << 20], near[1 << 20];
    pair p;
    wfi_fabric_op reads[4];
    wfi_region *from, *to;
    join(&p, sim);
    assert_int_equal(p.b.ops->region_open(p.b.fabric, &WFI_HOST_MEMORY(far, sizeof(far)), WFI_REMOTE_READ, &from),
                     WEFT_OK);
    assert_int_equal(p.a.ops->region_open(p.a.fabric, &WFI_HOST_MEMORY(near, sizeof(near)), WFI_LOCAL, &to), WEFT_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(p.a.ops->read(p.lane_a, &reads[i], near, sizeof(near), to, from->base, from->key), WEFT_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(host_completion(&p.a).status, WEFT_OK);
    assert_true(weft_sim_now(sim) > 8 * SECOND_NS);
    p.b.ops->region_close(p.b.fabric, from);
    p.a.ops->region_close(p.a.fabric, to);
    part(&p);
}

static void test_slow_is_no_break(void **state)
{
    for (kind = 0; kind < KINDS; kind++)
        host_world(&(weft_sim_options){.bytes_per_second = 500000}, slow_is_no_break);
}

UNIT_MAIN(test_one_of_each, test_each_carries, test_seeds_replay, test_reads_only, test_verbs_wants_regions,
          test_rdm_reads_in_any_order, test_death_is_not_told, test_reset_is_not_told, test_close_is_told,
          test_pause_is_no_break, test_slow_is_no_break)
