/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_footprint.c - what an agent costs that does nothing, alone and with sixteen peers over tcp, each a
 * process of its own: memory, processor time, wake-ups; and that what was used is given back.
 */
#include "children.h"
#include "net/net_bulk.h"
#include "net/net_measure.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PEERS 16
#define MESSAGES 20 /* more than receives are posted */
#define PULLED ((size_t)1 << 20)
#define IDLE_NS UINT64_C(2000000000)

/* Taken once, by the group's setup; the tests look at it. */
static struct {
    size_t libraries_kb, agent_kb, first_kb, idle_kb, active_kb, closed_kb; /* the last three: per further peer */
    uint64_t alone_cpu_ns, idle_cpu_ns, idle_sleeps;
    size_t fds_before, fds_connected, fds_closed, fds_after, threads_before, threads_after;
    bool reopened;
} seen;

/* ---- The peers ------------------------------------------------------------------------------------------------- */

/* What a peer lets the hub pull; in memory that all processes share. */
typedef struct offer {
    wfi_exposure exposure;
    atomic_bool made;
} offer;
static offer *offers;

/* Gives back what came. */
static void echo(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    if (host->rank)
        assert_int_equal(host_send(host, wfi_peer_rank(from), 0, size - 8, true), WEFT_OK);
}

/* Ends by itself when the hub has gone. */
static void be_peer(net_world *world, int rank)
{
    static const size_t size = PULLED;
    static bulk mine;
    net_host *host = &world->hosts[rank];
    host_open(host);
    bulk_create(&mine, host, 0, &size, 1);
    bulk_fill(&mine, 3);
    bulk_expose(&mine, WFI_REMOTE_READ);
    offers[rank].exposure = mine.exposures[0];
    atomic_store(&offers[rank].made, true);
    while (!atomic_load(&host->gone) && !atomic_load(&host->self_gone))
        usleep(20000);
    _exit(0);
}

/* ---- The hub --------------------------------------------------------------------------------------------------- */

static void measure_libraries(void)
{
    wfi_fabric_options options = {.towards = "127.0.0.1"};
    wfi_fabric *fabric;
    size_t before = measure_private_dirty_kb();
    assert_int_equal(wfi_fabric_tcp.open(&options, &fabric, NULL), WEFT_OK);
    wfi_fabric_tcp.close(fabric);
    seen.libraries_kb = measure_private_dirty_kb() - before;
}

static uint64_t sleeps_of_net(void)
{
    return measure_sleeps("weft-poll") + measure_sleeps("weft-cm");
}

/* And how often net's threads lay down meanwhile. */
static uint64_t cpu_while_idle(uint64_t *sleeps)
{
    struct timespec pause = {.tv_sec = IDLE_NS / 1000000000};
    usleep(300000); /* what was begun ends */
    uint64_t before = measure_cpu_ns(), slept = sleeps_of_net();
    nanosleep(&pause, NULL);
    *sleeps = sleeps_of_net() - slept;
    return measure_cpu_ns() - before;
}

static void measure_alone(void)
{
    net_world world = {0};
    size_t before = measure_private_dirty_kb();
    world_init(&world, "tcp", 1, NULL);
    world.store_fd = listen_anywhere(&world.port);
    host_open(&world.hosts[0]);
    size_t after = measure_private_dirty_kb();
    seen.agent_kb = after > before ? after - before : 0;
    seen.alone_cpu_ns = cpu_while_idle(&seen.idle_sleeps);
    host_close(&world.hosts[0]);
}

static void pull_from(int rank, bulk *target)
{
    bulk remote = {.count = 1};
    for (int tries = 0; !atomic_load(&offers[rank].made) && tries < 1000; tries++)
        usleep(10000);
    remote.exposures[0] = offers[rank].exposure;
    target->peer = rank;
    assert_int_equal(bulk_begin(target, &remote, WFI_PULL), WEFT_OK);
    assert_int_equal(bulk_await(target), WEFT_OK);
}

static size_t per_peer(size_t base_kb)
{
    size_t now = measure_private_dirty_kb();
    return now > base_kb ? (now - base_kb) / (PEERS - 1) : 0;
}

static bool bulk_lanes_are_down(net_host *host)
{
    bool down = true;
    for (int rank = 1; rank <= PEERS; rank++)
        down = down && !inside_has_conn(host->net, rank, WFI_BULK);
    return down;
}

/* The peers still expose; the hub, who uses nothing, closes. */
static void wait_for_idle_close(net_host *host)
{
    for (int tries = 0; !bulk_lanes_are_down(host) && tries < 200; tries++)
        usleep(100000);
    assert_true(bulk_lanes_are_down(host));
}

/* One by one: each message takes a frame there, and its echo one here. */
static void exchange(net_host *host, int from, int to)
{
    static int all;
    for (int i = 1; i <= MESSAGES; i++) {
        for (int rank = from; rank <= to; rank++)
            assert_int_equal(host_send_free(host, rank, (uint64_t)i, WFI_MESSAGE_MAX - 8), WEFT_OK);
        all += to - from + 1;
        host_until(host, &host->done_ok, all);
    }
    host_until(host, &host->arrived, all);
}

static void measure_hub(net_host *host)
{
    static const size_t size = PULLED;
    bulk target;
    bulk_create(&target, host, 1, &size, 1);
    bulk_fill(&target, 0);
    size_t alone_kb = measure_private_dirty_kb();
    /* libfabric's pools come with the first peer, and serve many more: they are the agent's, not a peer's. */
    exchange(host, 1, 1);
    pull_from(1, &target);
    size_t base_kb = measure_private_dirty_kb();
    seen.first_kb = base_kb > alone_kb ? base_kb - alone_kb : 0;
    exchange(host, 2, PEERS);
    seen.idle_cpu_ns = cpu_while_idle(&seen.idle_sleeps);
    seen.idle_kb = per_peer(base_kb);
    seen.fds_connected = measure_descriptors();
    for (int rank = 2; rank <= PEERS; rank++)
        pull_from(rank, &target);
    seen.active_kb = per_peer(base_kb);
    wait_for_idle_close(host);
    /* Of what was freed malloc keeps 128 KiB at the end of its heap, however many peers there were: of so few that
     * is 8 each. */
    (void)malloc_trim(0);
    seen.closed_kb = per_peer(base_kb);
    seen.fds_closed = measure_descriptors();
    pull_from(1, &target);
    seen.reopened = bulk_is(&target, 3);
    bulk_destroy(&target);
}

static void run_hub(void)
{
    child children[PEERS + 1];
    net_world world = {.death_timeout_ms = 20000, .on_message = echo};
    world_init(&world, "tcp", PEERS + 1, NULL);
    world.store_fd = listen_anywhere(&world.port);
    for (int rank = 1; rank <= PEERS; rank++) {
        children[rank] = child_fork("peer");
        if (!children[rank].pid) {
            close(world.store_fd);
            be_peer(&world, rank);
        }
    }
    host_open(&world.hosts[0]);
    measure_hub(&world.hosts[0]);
    for (int rank = 1; rank <= PEERS; rank++)
        child_signal(&children[rank], SIGKILL);
    host_close(&world.hosts[0]);
    for (int rank = 1; rank <= PEERS; rank++)
        (void)child_end(&children[rank]);
}

static void open_and_close(int times)
{
    for (int i = 0; i < times; i++) {
        net_world world = {0};
        world_init(&world, "tcp", 1, NULL);
        world.store_fd = listen_anywhere(&world.port);
        host_open(&world.hosts[0]);
        host_close(&world.hosts[0]);
    }
}

static int measure_all(void **state)
{
    offers = mmap(NULL, (PEERS + 1) * sizeof(*offers), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (offers == MAP_FAILED)
        return -1;
    measure_libraries();
    measure_alone();
    run_hub();
    open_and_close(2);
    seen.fds_before = measure_descriptors();
    seen.threads_before = measure_threads();
    open_and_close(200);
    seen.fds_after = measure_descriptors();
    seen.threads_after = measure_threads();
    print_message("an idle agent %zu KiB (and libfabric once %zu KiB), its first peer %zu KiB; per further peer: idle "
                  "%zu KiB, active %zu KiB, "
                  "bulk lane closed again %zu KiB\n",
                  seen.agent_kb, seen.libraries_kb, seen.first_kb, seen.idle_kb, seen.active_kb, seen.closed_kb);
    print_message("idle: %.2f %% of a core alone, %.2f %% with %d peers; net's threads slept %llu times in 2 s\n",
                  (double)seen.alone_cpu_ns * 100 / (double)IDLE_NS, (double)seen.idle_cpu_ns * 100 / (double)IDLE_NS,
                  PEERS, (unsigned long long)seen.idle_sleeps);
    return 0;
}

/* ---- The facts ------------------------------------------------------------------------------------------------- */

static void only_if_not_instrumented(void)
{
    if (MEASURE_INSTRUMENTED)
        skip();
}

static void an_idle_agent_is_small(void **state)
{
    only_if_not_instrumented();
    assert_true(seen.agent_kb + seen.first_kb <= 10000);
}

static void an_idle_peer_is_small(void **state)
{
    only_if_not_instrumented();
    assert_true(seen.idle_kb <= 64);
    assert_true(seen.closed_kb <= 64);
}

static void an_active_peer_is_small(void **state)
{
    only_if_not_instrumented();
    assert_true(seen.active_kb <= 256);
}

/* Heartbeats are all that moves. Other programs on the machine make the little that there is dearer. */
static void an_idle_agent_takes_no_time(void **state)
{
    only_if_not_instrumented();
    assert_true(seen.alone_cpu_ns <= IDLE_NS / 50);
    assert_true(seen.idle_cpu_ns <= IDLE_NS / 50);
}

static void nothing_wakes_nets_threads(void **state)
{
    assert_true(seen.idle_sleeps <= 6);
}

static void idle_bulk_lanes_close_and_open_again(void **state)
{
    assert_true(seen.fds_closed <= seen.fds_connected);
    assert_true(seen.reopened);
}

static void agents_leave_nothing_behind(void **state)
{
    assert_int_equal(seen.fds_after, seen.fds_before);
    assert_int_equal(seen.threads_after, seen.threads_before);
}

UNIT_MAIN_WITH(measure_all, NULL, an_idle_agent_is_small, an_idle_peer_is_small, an_active_peer_is_small,
               an_idle_agent_takes_no_time, nothing_wakes_nets_threads, idle_bulk_lanes_close_and_open_again,
               agents_leave_nothing_behind)
