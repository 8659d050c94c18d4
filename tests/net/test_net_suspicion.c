/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_suspicion.c - whom a worker suspects, and whom it does not: one that no connection can be made to, though
 * the store had no reason to watch it; and nobody for the time in which the worker itself stood still. And one that
 * was cut off, and is back.
 *
 * Rank 0 has the store. The director stops others.
 */
#include "net/net_bulk.h"

enum { STORE, WORKER, PEER, SIZE };

#define BOUND_NS UINT64_C(1000000000)
#define STOPPED 0 /* of net_world.turns: the director has stopped somebody */

static void play(void (*body)(net_host *host), void (*director)(weft_sim *sim, int rank, void *arg))
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        net_world world = {.on_message = host_check_order, .death_timeout_ms = BOUND_NS / 1000000};
        world_sim(&world, seed, SIZE, body, director);
    }
}

static void until(weft_sim *sim, atomic_int *count, int wanted)
{
    while (atomic_load(count) < wanted)
        weft_sim_sleep(sim, 1000000);
}

/* ---- A peer that stands still --------------------------------------------------------------------------------- */

static void stop_peer(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    until(sim, &world->ready, SIZE);
    weft_sim_pause(sim, PEER);
    atomic_store(&world->turns[STOPPED], 1);
    until(sim, &world->finished, 2);
    weft_sim_kill(sim, PEER);
}

/* A message alone depends on nobody's life as far as the store knows: it looks because the worker asks it to. */
static void send_to_one_who_stands_still(net_host *host)
{
    if (host->rank == PEER)
        host_until(host, &host->world->finished, SIZE); /* never: it is killed */
    host_until(host, &host->world->turns[STOPPED], 1);
    if (host->rank == WORKER)
        assert_int_equal(host_send_free(host, PEER, 0, 50), WEFT_OK);
    host_until(host, &host->gone, 1);
    assert_int_equal(host->why, WEFT_ERR_PEER_DEAD);
    assert_int_equal(host->done_failed, host->rank == WORKER);
    atomic_fetch_add(&host->world->finished, 1);
    host_until(host, &host->world->finished, 2); /* or the other would hear of this one's leave before it has looked */
}

static void one_that_cannot_be_connected_to_is_suspected(void **state)
{
    play(send_to_one_who_stands_still, stop_peer);
}

/* ---- The worker itself ---------------------------------------------------------------------------------------- */

static void stop_worker(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    until(sim, &world->hosts[PEER].arrived, 1); /* and its acknowledgement is not there yet */
    weft_sim_pause(sim, WORKER);
    weft_sim_sleep(sim, 8 * BOUND_NS);
    weft_sim_resume(sim, WORKER);
    atomic_store(&world->turns[STOPPED], 1);
}

/* It waits for an answer, and for longer than it would for a peer that is silent it hears nothing: because it does
 * not listen. */
static void wait_and_stand_still(net_host *host)
{
    if (host->rank == WORKER) {
        wfi_net_lock(host->net);
        wfi_peer_depend(host_peer(host, PEER), 1, 0);
        wfi_net_unlock(host->net);
        assert_int_equal(host_send_free(host, PEER, 0, 50), WEFT_OK);
        host_until(host, &host->world->turns[STOPPED], 1);
        host_pause(host, 2 * BOUND_NS);
        assert_int_equal(host->done_ok, 1);
        assert_int_equal(host->unreachable + host->gone + host->self_gone, 0);
        wfi_net_lock(host->net);
        wfi_peer_depend(host_peer(host, PEER), -1, 0);
        wfi_net_unlock(host->net);
        assert_int_equal(inside_stats(host->net).connections_lost, 0);
    }
    host_until(host, &host->world->turns[STOPPED], 1);
    host_meet(host, &host->world->finished);
}

static void one_that_stood_still_accuses_nobody(void **state)
{
    play(wait_and_stand_still, stop_worker);
}

/* ---- A link that heals ---------------------------------------------------------------------------------------- */

#define CUT 1 /* of net_world.turns, as STOPPED is */
#define HEALED 2

static void cut_and_heal(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    until(sim, &world->turns[CUT], 1);
    weft_sim_cut(sim, WORKER, PEER);
    until(sim, &world->hosts[WORKER].unreachable, 1);
    weft_sim_heal(sim, WORKER, PEER);
    atomic_store(&world->turns[HEALED], 1);
}

static const size_t large = (size_t)64 << 20;
static bulk source, target;

static void show(net_host *host)
{
    bulk_create(&source, host, WORKER, &large, 1);
    bulk_expose(&source, WFI_REMOTE_READ);
    atomic_store(&host->world->turns[STOPPED], 1);
    host_until(host, &host->arrived, 2);
    bulk_withdraw(&source, true);
    bulk_destroy(&source);
}

static void pull_until_cut_off(net_host *host)
{
    bulk_create(&target, host, PEER, &large, 1);
    host_until(host, &host->world->turns[STOPPED], 1);
    assert_int_equal(bulk_begin(&target, &source, WFI_PULL), WEFT_OK);
    host_pause(host, 1000000);
    atomic_store(&host->world->turns[CUT], 1);
    host_until(host, &host->world->turns[HEALED], 1);
    assert_int_equal(bulk_await(&target), WEFT_ERR_UNREACHABLE);
    bulk_destroy(&target);
}

/* A transfer fails with the link. Once that is healed the peer counts again: what is sent to it is waited for. */
static void pull_over_a_cut(net_host *host)
{
    if (host->rank == PEER)
        show(host);
    if (host->rank == WORKER) {
        pull_until_cut_off(host);
        assert_int_equal(host_send_free(host, PEER, 0, 50), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        wfi_net_lock(host->net);
        assert_false(wfi_peer_is_unreachable(host_peer(host, PEER)));
        assert_true(wfi_net_is_flushed(host->net));
        assert_int_equal(host_send(host, PEER, 1, 50, false), WEFT_OK);
        assert_false(wfi_net_is_flushed(host->net));
        wfi_net_unlock(host->net);
        host_until(host, &host->done_ok, 2);
    }
    host_meet(host, &host->world->finished);
}

static void one_that_was_cut_off_counts_again(void **state)
{
    play(pull_over_a_cut, cut_and_heal);
}

UNIT_MAIN(one_that_cannot_be_connected_to_is_suspected, one_that_stood_still_accuses_nobody,
          one_that_was_cut_off_counts_again)
