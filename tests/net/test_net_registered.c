/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_registered.c - nets on a fabric like verbs: registrations are cached, and every range that an operation
 * names needs one. The simulation refuses what is not registered.
 */
#include "net/net_bulk.h"

#include "mem/storage.h"

#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#define MANY 300

static void body_exchange(net_host *host)
{
    int other = 1 - host->rank;
    for (int i = 0; i < MANY; i++) {
        size_t size = (size_t)(i * 37) % (i % 10 ? 200 : WFI_MESSAGE_MAX - 8);
        assert_int_equal(host_send_free(host, other, (uint64_t)i, size), WEFT_OK);
        if (i % 7 == 0)
            host_pause(host, 20000);
    }
    host_until(host, &host->done_ok, MANY);
    host_until(host, &host->arrived, MANY);
    host_meet(host, &host->world->finished);
}

NET_TEST(messages_arrive_from_registered_buffers, body_exchange, 2, 1, false, .on_message = host_check_order,
         .like_verbs = true)

/* ---- Transfers ------------------------------------------------------------------------------------------------- */

static const size_t mixed[] = {0, 1, 5, 4096, 0, MIB, MIB + 1, 3 * MIB - 7, 12, 0};
#define MIXED (sizeof(mixed) / sizeof(mixed[0]))

static void reset_often(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    while (!atomic_load(&((bulk_stage *)world->user)->exposed))
        weft_sim_sleep(sim, 10000);
    for (int i = 0; i < 5; i++) {
        weft_sim_sleep(sim, 100000 + wfi_sim_random(sim) % 300000);
        weft_sim_reset_link(sim, 0, 1);
    }
}

static void segments_are_moved_through_cached_registrations(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        bulk_stage s = {.kind = seed % 2 ? WFI_PULL : WFI_PUSH, .sizes = mixed, .count = MIXED};
        net_world world = {.user = &s, .like_verbs = true};
        world_sim(&world, seed, 2, bulk_stage_body, seed > 2 ? reset_often : NULL);
    }
}

/* ---- What a key stands for ------------------------------------------------------------------------------------- */

static void body_keys(net_host *host)
{
    static const size_t one[] = {MIB};
    if (host->rank == 0) {
        bulk mine;
        bulk_create(&mine, host, 1, one, 1);
        bulk_expose(&mine, WFI_REMOTE_READ);
        uint64_t key = mine.exposures[0].remote.key;
        bulk_withdraw(&mine, true);
        bulk_expose(&mine, WFI_REMOTE_READ);
        assert_true(mine.exposures[0].remote.key == key); /* registered once */
        wfi_exposure inner;
        wfi_net_lock(host->net);
        assert_int_equal(wfi_peer_expose(host_peer(host, 1), mine.storages[0],
                                         (char *)wfi_storage_data(mine.storages[0]) + 100, 50, WFI_REMOTE_READ, &inner),
                         WEFT_OK);
        assert_true(inner.remote.key == key && inner.remote.address == mine.exposures[0].remote.address + 100);
        wfi_peer_withdraw(host_peer(host, 1), &inner, 1, true);
        wfi_net_unlock(host->net);
        bulk_withdraw(&mine, true);
        bulk_destroy(&mine);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_storage_is_registered_once, body_keys, 2, 1, false, .like_verbs = true)

/* ---- Memory that may only be read -------------------------------------------------------------------------------- */

#define READ_ONLY ((size_t)3 << 20)

static struct read_only {
    bulk source, target;
    atomic_int exposed, moved;
    void *bytes; /* rank 0's; a write there is fatal */
    const wfi_fabric_ops *real;
    wfi_fabric_ops ops;
} read_only;

/* As verbs: memory can only be registered for what its mapping allows. */
static weft_status region_open_so(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    if (memory->data == read_only.bytes && access & (WFI_REMOTE_WRITE | WFI_LOCAL_WRITE))
        return WEFT_ERR_FABRIC;
    return read_only.real->region_open(fabric, memory, access, out);
}

static void be_strict(net_host *host)
{
    wfi_net_lock(host->net);
    read_only.real = inside_fabric_ops(host->net, NULL);
    read_only.ops = *read_only.real;
    read_only.ops.region_open = region_open_so;
    (void)inside_fabric_ops(host->net, &read_only.ops);
    wfi_net_unlock(host->net);
}

static void fill_and_protect(bulk *all, net_host *host)
{
    *all = (bulk){.host = host, .peer = 1, .count = 1, .sizes = {READ_ONLY}};
    read_only.bytes = mmap(NULL, READ_ONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(read_only.bytes, MAP_FAILED);
    assert_int_equal(wfi_storage_wrap(WFI_MEMORY_HOST, 0, read_only.bytes, READ_ONLY, NULL, NULL, &all->storages[0]),
                     WEFT_OK);
    bulk_fill(all, 9);
    assert_int_equal(mprotect(read_only.bytes, READ_ONLY, PROT_READ), 0);
}

/* It is pulled, and its key does not let anybody write there. */
static void body_read_only(net_host *host)
{
    static const size_t one[] = {READ_ONLY};
    bulk *mine = host->rank ? &read_only.target : &read_only.source;
    if (host->rank == 0 && host->world->sim)
        be_strict(host);
    if (host->rank == 0) {
        fill_and_protect(mine, host);
        bulk_expose(mine, WFI_REMOTE_READ);
    } else {
        bulk_create(mine, host, 0, one, 1);
    }
    host_meet(host, &read_only.exposed);
    if (host->rank == 1) {
        assert_int_equal(bulk_begin(mine, &read_only.source, WFI_PULL), WEFT_OK);
        assert_int_equal(bulk_await(mine), WEFT_OK);
        assert_true(bulk_is(mine, 9));
        assert_int_equal(bulk_begin(mine, &read_only.source, WFI_PUSH), WEFT_OK);
        assert_int_equal(bulk_await(mine), WEFT_ERR_PROTOCOL);
    }
    host_meet(host, &read_only.moved);
    if (host->rank == 0)
        bulk_withdraw(mine, true);
    host_meet(host, &host->world->finished);
    bulk_destroy(mine);
    if (host->rank == 0)
        munmap(read_only.bytes, READ_ONLY);
}

static void memory_that_may_only_be_read_is_pulled(void **state)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        net_world world = {.fabric = seed % 2 ? "sim-verbs" : NULL};
        read_only = (struct read_only){.bytes = NULL};
        world_sim(&world, seed, 2, body_read_only, NULL);
    }
    net_world world = {0};
    read_only = (struct read_only){.bytes = NULL};
    world_tcp(&world, 2, body_read_only);
}

/* ---- Withdrawing ----------------------------------------------------------------------------------------------- */

#define CANARY 0xA5

typedef struct canary_stage {
    bulk source, target;
    atomic_int exposed, withdrawn, over;
} canary_stage;

static const size_t large[] = {24 * MIB};

/* The key lives on with the storage, so only the closed lane keeps the writer out. */
static void body_canary(net_host *host)
{
    canary_stage *s = host->world->user;
    bulk *mine = host->rank ? &s->target : &s->source;
    bulk_create(mine, host, 1 - host->rank, large, 1);
    if (host->rank == 0) {
        bulk_expose(mine, WFI_REMOTE_WRITE);
        atomic_store(&s->exposed, 1);
        host_pause(host, 900000);
        bulk_withdraw(mine, false);
        memset(wfi_storage_data(mine->storages[0]), CANARY, large[0]);
        const uint8_t *bytes = wfi_storage_data(mine->storages[0]);
        for (size_t at = 0; at < large[0]; at++)
            assert_int_equal(bytes[at], CANARY);
        atomic_store(&s->withdrawn, 1);
        host_until(host, &s->over, 1);
    } else {
        host_until(host, &s->exposed, 1);
        bulk_fill(mine, 3);
        assert_int_equal(bulk_begin(mine, &s->source, WFI_PUSH), WEFT_OK);
        host_until(host, &s->withdrawn, 1);
        wfi_net_lock(host->net);
        wfi_transfer_cancel(&mine->transfer);
        wfi_net_unlock(host->net);
        (void)bulk_await(mine);
        atomic_store(&s->over, 1);
    }
    host_meet(host, &host->world->finished);
    bulk_destroy(mine);
}

static void a_withdrawal_is_immediate(void **state)
{
    canary_stage s = {0};
    net_world world = {.user = &s, .like_verbs = true};
    world_sim(&world, 1, 2, body_canary, NULL);
}

/* ---- A transfer that begins when its memory was withdrawn ------------------------------------------------------ */

typedef struct late_stage {
    bulk source, target;
    wfi_transfer_kind kind;
    bool has_lane; /* a bulk connection was up when the memory was withdrawn */
    atomic_int exposed, moved, withdrawn, over;
} late_stage;

static const size_t small[] = {100000};

/* The key lives on, and the bulk connection that the withdrawal closed, if there was one, opens again. */
static void body_late(net_host *host)
{
    late_stage *s = host->world->user;
    bool exposes = host->rank == 0, pull = s->kind == WFI_PULL;
    bulk *mine = exposes ? &s->source : &s->target;
    bulk_create(mine, host, 1 - host->rank, small, 1);
    bulk_fill(mine, 1);
    if (exposes) {
        bulk_expose(mine, pull ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
        atomic_store(&s->exposed, 1);
        host_until(host, &s->moved, 1);
        bulk_withdraw(mine, false);
        bulk_fill(mine, 2);
        atomic_store(&s->withdrawn, 1);
        host_until(host, &s->over, 1);
        assert_true(bulk_is(mine, 2));
    } else {
        host_until(host, &s->exposed, 1);
        if (s->has_lane) {
            assert_int_equal(bulk_begin(mine, &s->source, s->kind), WEFT_OK);
            assert_int_equal(bulk_await(mine), WEFT_OK);
        }
        atomic_store(&s->moved, 1);
        host_until(host, &s->withdrawn, 1);
        bulk_fill(mine, 3);
        mine->status = WEFT_OK;
        assert_int_equal(bulk_begin(mine, &s->source, s->kind), WEFT_OK);
        assert_int_equal(bulk_await(mine), WEFT_ERR_PROTOCOL);
        assert_true(bulk_is(mine, 3));
        atomic_store(&s->over, 1);
    }
    host_meet(host, &host->world->finished);
    bulk_destroy(mine);
}

static void withdrawn_memory_stays_closed(void **state)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        late_stage s = {.kind = seed % 2 ? WFI_PULL : WFI_PUSH, .has_lane = seed / 2 % 2};
        net_world world = {.user = &s, .like_verbs = true};
        world_sim(&world, seed, 2, body_late, seed / 4 % 2 ? world_trouble : NULL);
    }
}

/* One answer settles a connection: transfers of memory that the peer names later begin at once. */
static void body_settled(net_host *host)
{
    late_stage *s = host->world->user;
    bulk *mine = host->rank ? &s->target : &s->source;
    bulk_create(mine, host, 1 - host->rank, small, 1);
    bulk_fill(mine, host->rank ? 0 : 3);
    if (host->rank == 0) {
        bulk_expose(mine, WFI_REMOTE_READ);
        atomic_store(&s->exposed, 1);
        host_until(host, &s->over, 1);
        bulk_withdraw(mine, true);
    } else {
        host_until(host, &s->exposed, 1);
        for (int i = 0; i < 5; i++) {
            wfi_net_lock(host->net);
            wfi_peer *peer = host_peer(host, 0);
            uint32_t told = wfi_peer_bulk_generation(peer);
            wfi_net_unlock(host->net);
            assert_true((told != 0) == (i > 0));
            assert_int_equal(bulk_begin_told(mine, &s->source, WFI_PULL, told), WEFT_OK);
            assert_int_equal(bulk_await(mine), WEFT_OK);
            assert_int_equal(wfi_peer_bulk(peer)->questions, 1);
        }
        assert_true(bulk_is(mine, 3));
        atomic_store(&s->over, 1);
    }
    host_meet(host, &host->world->finished);
    bulk_destroy(mine);
}

static void a_settled_connection_is_not_asked_again(void **state)
{
    late_stage s = {0};
    net_world world = {.user = &s, .like_verbs = true};
    world_sim(&world, 1, 2, body_settled, NULL);
}

UNIT_MAIN(memory_that_may_only_be_read_is_pulled, messages_arrive_from_registered_buffers,
          segments_are_moved_through_cached_registrations, a_storage_is_registered_once, a_withdrawal_is_immediate,
          withdrawn_memory_stays_closed, a_settled_connection_is_not_asked_again)
