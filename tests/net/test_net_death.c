/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_death.c - workers over tcp, each a process of its own, that are stopped or killed while nobody has anything
 * outstanding with them; and one that is merely slow.
 */
#include "children.h"
#include "net/net_host.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BOUND_MS 1000
#define SLACK_MS 600 /* for a machine that others use too */

/* What a worker saw; in memory that all processes share. */
typedef struct witness {
    atomic_int opened, gone, self_gone;
    _Atomic(weft_status) why;
    _Atomic(uint64_t) when_ms;
} witness;
static witness *witnesses;

static uint64_t now_ms(void)
{
    return wfi_now(&wfi_clock_real) / 1000000;
}

static void interest_in(net_host *host, int rank)
{
    wfi_net_lock(host->net);
    wfi_peer_interest(host_peer(host, rank), 1);
    wfi_net_unlock(host->net);
}

static void be_worker(net_world *world, int rank)
{
    net_host *host = &world->hosts[rank];
    witness *seen = &witnesses[rank];
    host_open(host);
    if (rank)
        interest_in(host, 0);
    atomic_store(&seen->opened, 1);
    while (!atomic_load(&host->self_gone)) {
        atomic_store(&seen->gone, atomic_load(&host->gone));
        usleep(2000);
    }
    atomic_store(&seen->why, atomic_load(&host->why));
    atomic_store(&seen->when_ms, now_ms());
    atomic_store(&seen->self_gone, 1);
    host_close(host);
    _exit(0);
}

static child fork_worker(net_world *world, int rank)
{
    child worker = child_fork(rank ? "worker" : "store");
    if (worker.pid)
        return worker;
    if (rank)
        close(world->store_fd);
    be_worker(world, rank);
    return worker;
}

static bool comes(atomic_int *what, int64_t within_ms)
{
    uint64_t until = now_ms() + (uint64_t)within_ms;
    while (!atomic_load(what) && now_ms() < until)
        usleep(1000);
    return atomic_load(what);
}

static int begin(void **state)
{
    witnesses = mmap(NULL, 8 * sizeof(*witnesses), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return witnesses == MAP_FAILED ? -1 : 0;
}

static int end(void **state)
{
    return munmap(witnesses, 8 * sizeof(*witnesses));
}

/* ---- Stopped --------------------------------------------------------------------------------------------------- */

static void a_stopped_worker_is_noticed_and_told(void **state)
{
    net_world world = {.death_timeout_ms = BOUND_MS};
    net_host *host = &world.hosts[0];
    world_init(&world, "tcp", 2, NULL);
    world.store_fd = listen_anywhere(&world.port);
    child other = fork_worker(&world, 1);
    host_open(host);
    interest_in(host, 1); /* with nothing outstanding to it: on one who is interested in nobody no heartbeat is spent */
    assert_true(comes(&witnesses[1].opened, 10000));
    usleep(100000);
    child_signal(&other, SIGSTOP);
    assert_true(comes(&host->gone, BOUND_MS + SLACK_MS));
    assert_int_equal(host->why, WEFT_ERR_PEER_DEAD);
    child_signal(&other, SIGCONT);
    assert_true(comes(&witnesses[1].self_gone, BOUND_MS + SLACK_MS));
    assert_int_equal(witnesses[1].why, WEFT_ERR_EVICTED);
    child_must_end_well(&other, 1);
    host_close(host);
}

static void a_short_stop_goes_unnoticed(void **state)
{
    net_world world = {.death_timeout_ms = 4 * BOUND_MS};
    net_host *host = &world.hosts[0];
    world_init(&world, "tcp", 2, NULL);
    world.store_fd = listen_anywhere(&world.port);
    child other = fork_worker(&world, 1);
    host_open(host);
    assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
    host_until(host, &host->done_ok, 1);
    child_signal(&other, SIGSTOP);
    assert_int_equal(host_send_free(host, 1, 1, 8), WEFT_OK);
    usleep(BOUND_MS * 1000);
    child_signal(&other, SIGCONT);
    host_until(host, &host->done_ok, 2);
    assert_int_equal(host->gone, 0);
    child_kill(&other);
    host_close(host);
}

/* ---- The store ------------------------------------------------------------------------------------------------- */

static void without_rank_0_everybody_is_told(void **state)
{
    enum { WORKERS = 4 };
    net_world world = {.death_timeout_ms = BOUND_MS};
    child children[WORKERS];
    world_init(&world, "tcp", WORKERS, NULL);
    world.store_fd = listen_anywhere(&world.port);
    for (int rank = 0; rank < WORKERS; rank++)
        children[rank] = fork_worker(&world, rank);
    close(world.store_fd);
    for (int rank = 0; rank < WORKERS; rank++)
        assert_true(comes(&witnesses[rank].opened, 10000));
    uint64_t killed_ms = now_ms();
    child_signal(&children[0], SIGKILL);
    for (int rank = 1; rank < WORKERS; rank++) {
        assert_true(comes(&witnesses[rank].self_gone, BOUND_MS + SLACK_MS));
        assert_int_equal(witnesses[rank].why, WEFT_ERR_STORE_LOST);
        assert_true(witnesses[rank].when_ms - killed_ms <= BOUND_MS);
    }
    child_kill(&children[0]);
    child_must_end_well(children + 1, WORKERS - 1);
}

static void a_stopped_store_is_a_lost_one(void **state)
{
    net_world world = {.death_timeout_ms = BOUND_MS};
    world_init(&world, "tcp", 2, NULL);
    world.store_fd = listen_anywhere(&world.port);
    child store = fork_worker(&world, 0), other = fork_worker(&world, 1);
    close(world.store_fd);
    assert_true(comes(&witnesses[0].opened, 10000) && comes(&witnesses[1].opened, 10000));
    child_signal(&store, SIGSTOP);
    assert_true(comes(&witnesses[1].self_gone, 3 * BOUND_MS + SLACK_MS)); /* it might go on before that */
    assert_int_equal(witnesses[1].why, WEFT_ERR_STORE_LOST);
    child_kill(&store);
    child_must_end_well(&other, 1);
}

/* ---- Slow ------------------------------------------------------------------------------------------------------ */

#define SLOW_NS UINT64_C(3500000000)

/* Rank 1's net does nothing for longer than two attempts to connect take: rank 0 suspects it, the store knows
 * better. */
static void body_slow(net_host *host)
{
    if (host->rank == 1) {
        struct timespec slow = {.tv_sec = SLOW_NS / 1000000000, .tv_nsec = SLOW_NS % 1000000000};
        wfi_net_lock(host->net);
        nanosleep(&slow, NULL);
        wfi_net_unlock(host->net);
        host_until(host, &host->arrived, 1);
    } else {
        host_pause(host, 50000000);
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        assert_int_equal(host->gone, 0);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_slow_worker_is_not_declared_dead, body_slow, 2, 0, true, .death_timeout_ms = BOUND_MS,
         .on_message = host_check_order)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_stopped_worker_is_noticed_and_told, begin, end),
        cmocka_unit_test_setup_teardown(a_short_stop_goes_unnoticed, begin, end),
        cmocka_unit_test_setup_teardown(without_rank_0_everybody_is_told, begin, end),
        cmocka_unit_test_setup_teardown(a_stopped_store_is_a_lost_one, begin, end),
        cmocka_unit_test(a_slow_worker_is_not_declared_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
