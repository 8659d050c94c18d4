/* SPDX-License-Identifier: Apache-2.0 */
/* test_sim_transfers.c - remote reads and writes of the simulated fabric: keys, bounds, bandwidth, closing under
 * way. */
#include "sim_host.h"

#include <stdlib.h>

enum { SIZE = 4096 };

typedef struct fixture {
    weft_sim *sim;
    sim_host a, b;
    wfi_lane *lane_a, *lane_b;
    wfi_region *region; /* of b's memory */
    uint8_t *memory;    /* b's, with SIZE more bytes that are not registered */
    uint8_t local[SIZE];
    wfi_fabric_op op;
} fixture;

static void setup(fixture *f, weft_sim *sim, unsigned access)
{
    *f = (fixture){.sim = sim};
    host_open(&f->a, sim, 0);
    host_open(&f->b, sim, 1);
    host_join(&f->a, &f->b, &f->lane_a, &f->lane_b);
    f->memory = malloc(SIZE * 2);
    assert_non_null(f->memory);
    for (int i = 0; i < SIZE * 2; i++)
        f->memory[i] = (i * 31 >> 3) & 0x7f; /* never the canary */
    assert_int_equal(f->b.ops->region_open(f->b.fabric, &WFI_HOST_MEMORY(f->memory, SIZE), access, &f->region),
                     WEFT_OK);
}

static void teardown(fixture *f)
{
    f->a.ops->lane_close(f->lane_a);
    f->b.ops->lane_close(f->lane_b);
    f->b.ops->region_close(f->b.fabric, f->region);
    host_close(&f->a);
    host_close(&f->b);
    free(f->memory);
}

static weft_status read_at(fixture *f, uint64_t offset, size_t size)
{
    return f->a.ops->read(f->lane_a, &f->op, f->local, size, NULL, f->region->base + offset, f->region->key);
}

static weft_status write_at(fixture *f, uint64_t offset, size_t size)
{
    return f->a.ops->write(f->lane_a, &f->op, f->local, size, NULL, f->region->base + offset, f->region->key);
}

static void reads(weft_sim *sim)
{
    fixture f;
    setup(&f, sim, WFI_REMOTE_READ);
    assert_int_equal(read_at(&f, 5, SIZE - 5), WEFT_OK);
    host_expect(&f.a, &f.op, WEFT_OK);
    assert_memory_equal(f.local, f.memory + 5, SIZE - 5);
    assert_int_equal(read_at(&f, SIZE, 0), WEFT_OK); /* nothing, at the end */
    host_expect(&f.a, &f.op, WEFT_OK);
    teardown(&f);
}

static void test_reads(void **state)
{
    host_world(NULL, reads);
}

static void writes(weft_sim *sim)
{
    fixture f;
    setup(&f, sim, WFI_REMOTE_WRITE);
    memset(f.local, 0xaa, SIZE);
    assert_int_equal(write_at(&f, 1, SIZE - 1), WEFT_OK);
    assert_int_equal(f.memory[1], 31 >> 3);
    host_expect(&f.a, &f.op, WEFT_OK);
    assert_memory_equal(f.local, f.memory + 1, SIZE - 1); /* there, when the completion says so */
    assert_int_equal(f.memory[0], 0);
    teardown(&f);
}

static void test_writes(void **state)
{
    host_world(NULL, writes);
}

/* Each of these breaks the connection on both sides and leaves both memories alone. */
typedef struct bad_access {
    bool is_write;
    unsigned access;
    int64_t offset;
    size_t size;
    bool wrong_key, withdrawn;
} bad_access;

static const bad_access bad_accesses[] = {
    {false, WFI_REMOTE_WRITE, 0, 8, false, false},
    {true, WFI_REMOTE_READ, 0, 8, false, false},
    {false, WFI_LOCAL, 0, 8, false, false},
    {false, WFI_REMOTE_READ, SIZE - 7, 8, false, false},
    {true, WFI_REMOTE_WRITE, SIZE - 7, 8, false, false},
    {false, WFI_REMOTE_READ, -1, 8, false, false},
    {true, WFI_REMOTE_WRITE, SIZE + 1, 0, false, false},
    {true, WFI_REMOTE_WRITE, INT64_MIN, SIZE, false, false},
    {false, WFI_REMOTE_READ, 0, 8, true, false},
    {true, WFI_REMOTE_WRITE, 0, 8, true, false},
    {false, WFI_REMOTE_READ, 0, 8, false, true},
    {true, WFI_REMOTE_WRITE, 0, 8, false, true},
};
static size_t bad_index;

static void breaks(weft_sim *sim)
{
    const bad_access *bad = &bad_accesses[bad_index];
    fixture f;
    setup(&f, sim, bad->access);
    uint8_t before[SIZE * 2];
    memcpy(before, f.memory, sizeof(before));
    memset(f.local, 0x55, SIZE);
    uint64_t remote = f.region->base + (uint64_t)bad->offset, key = f.region->key + bad->wrong_key;
    if (bad->withdrawn) {
        f.b.ops->region_close(f.b.fabric, f.region);
        f.region = NULL;
    }
    if (bad->is_write)
        assert_int_equal(f.a.ops->write(f.lane_a, &f.op, f.local, bad->size, NULL, remote, key), WEFT_OK);
    else
        assert_int_equal(f.a.ops->read(f.lane_a, &f.op, f.local, bad->size, NULL, remote, key), WEFT_OK);
    assert_int_equal(host_event(&f.b, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    assert_int_equal(host_event(&f.a, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    host_expect(&f.a, &f.op, WEFT_ERR_UNREACHABLE);
    host_silence(&f.a, SECOND_NS);
    host_silence(&f.b, 0);
    assert_memory_equal(before, f.memory, sizeof(before));
    assert_int_equal(f.local[0], 0x55);
    teardown(&f);
}

static void test_bad_accesses_break(void **state)
{
    for (bad_index = 0; bad_index < sizeof(bad_accesses) / sizeof(*bad_accesses); bad_index++)
        host_world(NULL, breaks);
}

static void many_regions(weft_sim *sim)
{
    enum { COUNT = 500 };
    fixture f;
    wfi_region *regions[COUNT];
    setup(&f, sim, WFI_REMOTE_READ);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(
            f.b.ops->region_open(f.b.fabric, &WFI_HOST_MEMORY(f.memory + i, 1), WFI_REMOTE_READ, &regions[i]), WEFT_OK);
        assert_int_not_equal(regions[i]->key, f.region->key);
    }
    for (int i = 0; i < COUNT; i += 100) {
        assert_int_equal(f.a.ops->read(f.lane_a, &f.op, f.local, 1, NULL, regions[i]->base, regions[i]->key), WEFT_OK);
        host_expect(&f.a, &f.op, WEFT_OK);
        assert_int_equal(f.local[0], f.memory[i]);
    }
    for (int i = 0; i < COUNT; i++)
        f.b.ops->region_close(f.b.fabric, regions[i]);
    teardown(&f);
}

static void test_many_regions(void **state)
{
    host_world(NULL, many_regions);
}

static void takes_time(weft_sim *sim)
{
    enum { BIG = 1 << 20 };
    fixture f;
    wfi_fabric_op second;
    wfi_region *region;
    uint8_t *from = calloc(1, BIG), *to = calloc(1, BIG);
    setup(&f, sim, WFI_REMOTE_READ);
    assert_int_equal(
        f.b.ops->region_open(f.b.fabric, &WFI_HOST_MEMORY(from, BIG), WFI_REMOTE_READ | WFI_REMOTE_WRITE, &region),
        WEFT_OK);
    uint64_t start = weft_sim_now(sim);
    assert_int_equal(f.a.ops->read(f.lane_a, &f.op, to, BIG, NULL, region->base, region->key), WEFT_OK);
    assert_int_equal(f.a.ops->read(f.lane_a, &second, to, BIG, NULL, region->base, region->key), WEFT_OK);
    host_completion(&f.a);
    host_completion(&f.a);
    uint64_t took = weft_sim_now(sim) - start;
    assert_in_range(took, 2000000000ull / 1000 * 1048, 2000000000ull / 1000 * 1050); /* 2 MiB at 1 MB/s */
    start = weft_sim_now(sim);
    assert_int_equal(f.a.ops->write(f.lane_a, &f.op, to, BIG, NULL, region->base, region->key), WEFT_OK);
    weft_sim_sleep(sim, 1048 * SECOND_NS / 1000);
    host_silence(&f.a, 0);
    host_completion(&f.a);
    assert_in_range(weft_sim_now(sim) - start, 1048 * SECOND_NS / 1000, 1050 * SECOND_NS / 1000);
    f.b.ops->region_close(f.b.fabric, region);
    teardown(&f);
    free(from);
    free(to);
}

static void test_bandwidth(void **state)
{
    host_world(&(weft_sim_options){.bytes_per_second = 1000000}, takes_time);
}

/* Remote writes are not ordered among themselves: over some seeds both orders are seen. */
static int later_won;

static void races(weft_sim *sim)
{
    fixture f;
    wfi_fabric_op second;
    uint8_t one = 1, two = 2;
    setup(&f, sim, WFI_REMOTE_WRITE);
    uint64_t base = f.region->base, key = f.region->key;
    assert_int_equal(f.a.ops->write(f.lane_a, &f.op, &one, 1, NULL, base, key), WEFT_OK);
    assert_int_equal(f.a.ops->write(f.lane_a, &second, &two, 1, NULL, base, key), WEFT_OK);
    host_completion(&f.a);
    host_completion(&f.a);
    later_won += f.memory[0] == 2;
    teardown(&f);
}

static void test_no_order_between_writes(void **state)
{
    later_won = 0;
    for (uint64_t seed = 0; seed < 40; seed++)
        host_world(&(weft_sim_options){.seed = seed}, races);
    assert_in_range(later_won, 5, 35);
}

/* ---- Closing with operations under way ------------------------------------------------------------------------- */

enum { OPS = 64 };

/* Starts reads and writes of everything, and receives on both sides; lets `ns` pass. */
static void begin_traffic(fixture *f, wfi_fabric_op *ops, wfi_fabric_op *receives, uint8_t *inbox, uint64_t ns)
{
    for (int i = 0; i < OPS; i++) {
        assert_int_equal(f->b.ops->post_recv(f->lane_b, &receives[i], &(wfi_receive_buffer){inbox + i, 1, NULL}, 1),
                         WEFT_OK);
        uint64_t remote = f->region->base + (uint64_t)i * (SIZE / OPS);
        uint8_t *local = f->local + i * (SIZE / OPS);
        weft_status status;
        if (i % 3 == 0)
            status = f->a.ops->read(f->lane_a, &ops[i], local, SIZE / OPS, NULL, remote, f->region->key);
        else if (i % 3 == 1)
            status = f->a.ops->write(f->lane_a, &ops[i], local, SIZE / OPS, NULL, remote, f->region->key);
        else
            status = f->a.ops->send(f->lane_a, &ops[i], &(wfi_iov){local, 1, NULL}, 1);
        assert_int_equal(status, WEFT_OK);
    }
    weft_sim_sleep(f->sim, ns);
}

/* All `count` operations from `ops` on are reported once; returns how many were cancelled or failed. */
static int collect(sim_host *host, const wfi_fabric_op *ops, int count)
{
    bool seen[OPS] = {false};
    int failed = 0;
    for (int i = 0; i < count; i++) {
        wfi_completion done = host_completion(host);
        ptrdiff_t index = done.op - ops;
        assert_in_range(index, 0, count - 1);
        assert_false(seen[index]);
        seen[index] = true;
        failed += done.status != WEFT_OK;
    }
    host_silence(host, 0);
    return failed;
}

static uint64_t close_after_ns;
static int cancelled;

/* The initiator closes: nothing of its memory is touched, or read, after that; the memory may be freed. */
static void initiator_closes(weft_sim *sim)
{
    fixture f;
    wfi_fabric_op ops[OPS], receives[OPS];
    uint8_t inbox[OPS], canary[SIZE];
    setup(&f, sim, WFI_REMOTE_READ | WFI_REMOTE_WRITE);
    memset(f.local, 7, SIZE);
    begin_traffic(&f, ops, receives, inbox, close_after_ns);
    f.a.ops->lane_close(f.lane_a);
    memset(f.local, 0xee, SIZE);
    memset(canary, 0xee, SIZE);
    cancelled += collect(&f.a, ops, OPS);
    assert_int_equal(host_event(&f.b, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    collect(&f.b, receives, OPS);
    weft_sim_sleep(sim, SECOND_NS);
    assert_memory_equal(f.local, canary, SIZE);
    assert_null(memchr(f.memory, 0xee, SIZE));    /* what left before carries the bytes of then */
    f.lane_a = host_connect(&f.a, &f.b, "again"); /* lanes are expendable */
    f.b.ops->reject(f.b.fabric, host_event(&f.b, WFI_EVENT_REQUEST).request);
    teardown(&f);
}

/* The target closes: nothing of its memory is touched after that. */
static void target_closes(weft_sim *sim)
{
    fixture f;
    wfi_fabric_op ops[OPS], receives[OPS];
    uint8_t inbox[OPS], canary[SIZE * 2];
    setup(&f, sim, WFI_REMOTE_READ | WFI_REMOTE_WRITE);
    memset(f.local, 7, SIZE);
    begin_traffic(&f, ops, receives, inbox, close_after_ns);
    f.b.ops->lane_close(f.lane_b);
    memset(f.memory, 0xee, SIZE * 2);
    memset(inbox, 0xee, OPS);
    memset(canary, 0xee, SIZE * 2);
    collect(&f.b, receives, OPS);
    assert_int_equal(host_event(&f.a, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    cancelled += collect(&f.a, ops, OPS);
    weft_sim_sleep(sim, SECOND_NS);
    assert_memory_equal(f.memory, canary, SIZE * 2);
    assert_memory_equal(inbox, canary, OPS);
    assert_null(memchr(f.local, 0xee, SIZE)); /* nor is anything read */
    f.lane_b = NULL;
    f.lane_b = host_connect(&f.b, &f.a, "again");
    f.a.ops->reject(f.a.fabric, host_event(&f.a, WFI_EVENT_REQUEST).request);
    teardown(&f);
}

static void close_at_all_times(void (*body)(weft_sim *sim))
{
    cancelled = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        close_after_ns = seed * 1700; /* from before anything left to when nearly all is done */
        host_world(&(weft_sim_options){.seed = seed}, body);
    }
    assert_in_range(cancelled, OPS, 23 * OPS);
}

static void test_initiator_closes(void **state)
{
    close_at_all_times(initiator_closes);
}

static void test_target_closes(void **state)
{
    close_at_all_times(target_closes);
}

UNIT_MAIN(test_reads, test_writes, test_bad_accesses_break, test_many_regions, test_bandwidth,
          test_no_order_between_writes, test_initiator_closes, test_target_closes)
