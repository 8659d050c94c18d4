/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_transfers.c - large payloads on the simulation: pulled, pushed, interrupted, withdrawn. */
#include "net/net_bulk.h"

#define MIB ((size_t)1 << 20)

static void move(uint64_t seed, const size_t *sizes, size_t count, wfi_transfer_kind kind,
                 void (*director)(weft_sim *sim, int rank, void *world))
{
    bulk_stage s = {.kind = kind, .sizes = sizes, .count = count};
    net_world world = {.user = &s};
    world_sim(&world, seed, 2, bulk_stage_body, director);
}

static void reset_often(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    while (!atomic_load(&((bulk_stage *)world->user)->exposed))
        weft_sim_sleep(sim, 10000);
    for (int i = 0; i < 8; i++) {
        weft_sim_sleep(sim, 200000 + wfi_sim_random(sim) % 600000);
        weft_sim_reset_link(sim, 0, 1);
    }
}

static const size_t mixed[] = {0, 1, 5, 4096, 0, MIB, MIB + 1, 3 * MIB - 7, 12, 0};
#define MIXED (sizeof(mixed) / sizeof(mixed[0]))

static void segments_of_all_sizes_are_pulled(void **state)
{
    move(1, mixed, MIXED, WFI_PULL, NULL);
}

static void segments_of_all_sizes_are_pushed(void **state)
{
    move(2, mixed, MIXED, WFI_PUSH, NULL);
}

static void nothing_is_moved_at_once(void **state)
{
    static const size_t none[] = {0, 0};
    move(3, none, 2, WFI_PULL, NULL);
    move(3, none, 0, WFI_PUSH, NULL);
}

static void a_hundred_megabytes_are_pulled(void **state)
{
    static const size_t large[] = {100 * 1000 * 1000};
    move(4, large, 1, WFI_PULL, NULL);
}

static void transfers_survive_lost_lanes(void **state)
{
    static const size_t sizes[] = {9 * MIB, 100, 5 * MIB + 3};
    for (uint64_t seed = 1; seed <= 10; seed++)
        move(seed, sizes, 3, seed % 2 ? WFI_PULL : WFI_PUSH, reset_often);
}

#define BREAKS 16

/* Of those between hosts 0 and 1, moved by `rank`. */
static bool has_chunks_under_way(net_world *world, int rank)
{
    wfi_net *net = world->hosts[rank].net;
    return net && inside_moving(net, 1 - rank) > 0;
}

/* Again and again, as soon as something is under way: nothing gets through in between. */
static void reset_before_progress(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    for (int breaks = 0; breaks < BREAKS;) {
        weft_sim_sleep(sim, 20000);
        if (!has_chunks_under_way(world, 1))
            continue;
        assert_int_equal(atomic_load(&((bulk_stage *)world->user)->moved), 0);
        weft_sim_reset_link(sim, 0, 1);
        breaks++;
    }
}

/* Breaks are no refusals, however many there are in a row: the memory is on offer all the time. */
static void a_link_that_breaks_again_and_again_ends_no_transfer(void **state)
{
    static const size_t sizes[] = {2 * MIB, 3 * MIB};
    for (uint64_t seed = 1; seed <= 4; seed++)
        move(seed, sizes, 2, seed % 2 ? WFI_PULL : WFI_PUSH, reset_before_progress);
}

/* ---- Withdrawing ----------------------------------------------------------------------------------------------- */

#define CANARY 0xA5

typedef struct canary_stage {
    bulk source[2], target[2];
    atomic_int exposed, withdrawn, over;
} canary_stage;

static const size_t both_sizes[] = {24 * MIB};

static void expose_and_withdraw(net_host *host, canary_stage *s)
{
    for (int i = 0; i < 2; i++) {
        bulk_create(&s->source[i], host, 1, both_sizes, 1);
        bulk_expose(&s->source[i], WFI_REMOTE_WRITE);
    }
    atomic_store(&s->exposed, 1);
    host_pause(host, 900000);
    bulk_withdraw(&s->source[0], false);
    memset(wfi_storage_data(s->source[0].storages[0]), CANARY, both_sizes[0]);
    atomic_store(&s->withdrawn, 1);
    host_until(host, &s->over, 1);
    const uint8_t *bytes = wfi_storage_data(s->source[0].storages[0]);
    for (size_t at = 0; at < both_sizes[0]; at++)
        assert_int_equal(bytes[at], CANARY);
    assert_true(bulk_is(&s->source[1], 4));
    bulk_withdraw(&s->source[1], true);
}

static void body_canary(net_host *host)
{
    canary_stage *s = host->world->user;
    bulk *mine = host->rank ? s->target : s->source;
    if (host->rank == 0) {
        expose_and_withdraw(host, s);
    } else {
        host_until(host, &s->exposed, 1);
        for (int i = 0; i < 2; i++) {
            bulk_create(&mine[i], host, 0, both_sizes, 1);
            bulk_fill(&mine[i], 3 + (unsigned)i);
            assert_int_equal(bulk_begin(&mine[i], &s->source[i], WFI_PUSH), WEFT_OK);
        }
        assert_int_equal(bulk_await(&mine[0]), WEFT_ERR_PROTOCOL);
        while (!has_chunks_under_way(host->world, 1)) /* on the next bulk lane: the last one was closed on purpose */
            host_pause(host, 20000);
        weft_sim_reset_link(host->world->sim, 0, 1);
        assert_int_equal(bulk_await(&mine[1]), WEFT_OK);
        assert_int_equal(inside_stats(host->net).connections_lost, 2); /* both; closing on purpose lost none */
        atomic_store(&s->over, 1);
    }
    host_meet(host, &host->world->finished);
    bulk_destroy(&mine[0]);
    bulk_destroy(&mine[1]);
}

/* One key is withdrawn under two writers: not a byte comes after, the culprit fails, the innocent one goes on, also
 * where the lane that follows breaks; that one counts as lost. */
static void withdrawn_memory_stays_untouched(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        canary_stage s = {0};
        net_world world = {.user = &s};
        world_sim(&world, seed, 2, body_canary, NULL);
    }
}

/* ---- Cancelling ------------------------------------------------------------------------------------------------ */

static void body_cancel(net_host *host)
{
    static const size_t sizes[] = {20 * MIB};
    bulk_stage *s = host->world->user;
    if (host->rank == 0) {
        bulk_create(&s->source, host, 1, sizes, 1);
        bulk_expose(&s->source, WFI_REMOTE_READ);
        atomic_store(&s->exposed, 1);
        host_until(host, &s->moved, 1);
        bulk_withdraw(&s->source, true);
        bulk_destroy(&s->source);
    } else {
        bulk_create(&s->target, host, 0, sizes, 1);
        host_until(host, &s->exposed, 1);
        assert_int_equal(bulk_begin(&s->target, &s->source, WFI_PULL), WEFT_OK);
        host_pause(host, 500000);
        wfi_net_lock(host->net);
        wfi_transfer_cancel(&s->target.transfer);
        wfi_net_unlock(host->net);
        assert_int_equal(atomic_load(&s->target.done), 1);
        assert_int_equal(s->target.status, WEFT_ERR_CANCELLED);
        bulk_destroy(&s->target);
        atomic_store(&s->moved, 1);
    }
    host_meet(host, &host->world->finished);
}

static void a_cancelled_transfer_ends_at_once(void **state)
{
    bulk_stage s = {0};
    net_world world = {.user = &s};
    world_sim(&world, 1, 2, body_cancel, NULL);
}

/* ---- A death --------------------------------------------------------------------------------------------------- */

static void body_other_dies(net_host *host)
{
    bulk_stage *s = host->world->user;
    bool pull = s->kind == WFI_PULL;
    if (host->rank == 1) {
        bulk_create(&s->source, host, 0, s->sizes, s->count);
        bulk_expose(&s->source, pull ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
        atomic_store(&s->exposed, 1);
        host_pause(host, UINT64_C(10000000000)); /* is killed meanwhile */
        return;
    }
    bulk_create(&s->target, host, 1, s->sizes, s->count);
    host_until(host, &s->exposed, 1);
    assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
    while (!has_chunks_under_way(host->world, 0))
        host_pause(host, 20000);
    weft_sim_kill(host->world->sim, 1);
    host_until(host, &host->gone, 1);
    assert_int_equal(atomic_load(&s->target.done), 1); /* before anybody was told */
    assert_int_equal(s->target.status, WEFT_ERR_PEER_DEAD);
    assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_ERR_PEER_DEAD);
    bulk_destroy(&s->target);
    atomic_fetch_add(&host->world->finished, 1);
    host_meet(host, &host->world->finished);
}

static void a_death_ends_transfers(void **state)
{
    static const size_t sizes[] = {50 * MIB, 7};
    static bulk_stage stages[4]; /* what the dead had stays allocated */
    for (int i = 0; i < 4; i++) {
        stages[i] = (bulk_stage){.kind = i % 2 ? WFI_PULL : WFI_PUSH, .sizes = sizes, .count = 2};
        net_world world = {.user = &stages[i]};
        world_sim(&world, (uint64_t)i + 1, 2, body_other_dies, NULL);
    }
}

/* ---- Beside messages ------------------------------------------------------------------------------------------ */

/* Pulls, and returns the most that was under way at once after the first `skip` looks. */
static size_t most_under_way(net_host *host, int skip)
{
    bulk_stage *s = host->world->user;
    size_t most = 0;
    assert_int_equal(bulk_begin(&s->target, &s->source, WFI_PULL), WEFT_OK);
    for (int looks = 0; !atomic_load(&s->target.done); looks++) {
        size_t now = inside_moving(host->net, 0);
        if (looks >= skip)
            most = now > most ? now : most;
        host_pause(host, 20000);
    }
    assert_int_equal(s->target.status, WEFT_OK);
    return most;
}

static void body_beside_messages(net_host *host)
{
    static const size_t sizes[] = {40 * MIB};
    bulk_stage *s = host->world->user;
    if (host->rank == 0) {
        bulk_create(&s->source, host, 1, sizes, 1);
        bulk_expose(&s->source, WFI_REMOTE_READ);
        atomic_store(&s->exposed, 1);
        host_until(host, &s->moved, 1);
        for (uint64_t sent = 0; atomic_load(&s->moved) == 1; host_pause(host, 50000))
            assert_int_equal(host_send_free(host, 1, sent++, 8), WEFT_OK);
        bulk_withdraw(&s->source, true);
        bulk_destroy(&s->source);
    } else {
        bulk_create(&s->target, host, 0, sizes, 1);
        host_until(host, &s->exposed, 1);
        assert_true(most_under_way(host, 0) >= 4 * MIB);
        atomic_store(&s->moved, 1);
        host_until(host, &host->arrived, 3);
        /* a message waits behind no more than this, once the window that was wide has passed */
        assert_in_range(most_under_way(host, 30), 1, MIB);
        atomic_store(&s->moved, 2);
        bulk_destroy(&s->target);
    }
    host_meet(host, &host->world->finished);
}

static void messages_beside_a_transfer_wait_for_little(void **state)
{
    bulk_stage s = {0};
    net_world world = {.user = &s, .on_message = host_check_order};
    world_sim(&world, 1, 2, body_beside_messages, NULL);
}

/* ---- A fabric that cannot write -------------------------------------------------------------------------------- */

static const size_t unwritten[] = {100, 3 << 20};

static void body_reads_only(net_host *host)
{
    bulk_stage *s = host->world->user;
    bulk *mine = host->rank ? &s->target : &s->source;
    bulk_create(mine, host, 1 - host->rank, unwritten, 2);
    wfi_net_lock(host->net);
    assert_false(wfi_peer_can_push(host_peer(host, 1 - host->rank)));
    wfi_net_unlock(host->net);
    bulk_fill(mine, 1 + (unsigned)host->rank);
    bulk_expose(mine, host->rank ? WFI_REMOTE_WRITE : WFI_REMOTE_READ);
    host_meet(host, &s->exposed);
    if (host->rank == 0) { /* writing fails, and ends nothing else */
        assert_int_equal(bulk_begin(mine, &s->target, WFI_PUSH), WEFT_OK);
        assert_int_equal(bulk_await(mine), WEFT_ERR_UNSUPPORTED);
    } else {
        assert_int_equal(bulk_begin(mine, &s->source, WFI_PULL), WEFT_OK);
        assert_int_equal(bulk_await(mine), WEFT_OK);
        assert_true(bulk_is(mine, 1));
    }
    host_meet(host, &s->moved);
    bulk_withdraw(mine, true);
    host_meet(host, &host->world->finished);
    bulk_destroy(mine);
}

static void a_push_where_nothing_can_be_written_fails(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        bulk_stage s = {.kind = WFI_PULL};
        net_world world = {.user = &s, .fabric = "sim-reads"};
        world_sim(&world, seed, 2, body_reads_only, NULL);
    }
}

UNIT_MAIN(messages_beside_a_transfer_wait_for_little, a_push_where_nothing_can_be_written_fails,
          segments_of_all_sizes_are_pulled, segments_of_all_sizes_are_pushed, nothing_is_moved_at_once,
          a_hundred_megabytes_are_pulled, transfers_survive_lost_lanes,
          a_link_that_breaks_again_and_again_ends_no_transfer, withdrawn_memory_stays_untouched,
          a_cancelled_transfer_ends_at_once, a_death_ends_transfers)
