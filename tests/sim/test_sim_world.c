/* SPDX-License-Identifier: Apache-2.0 */
/* test_sim_world.c - the loop: time, ends, deadlocks, limits, equal seeds, a thousand workers. */
#include "sim_host.h"
#include "sim/fiber.h"
#include "lanes.h"
#include "said.h"
#include "make.h"

#include <stdlib.h>
#include <weft/agent.h>

static void sleeper(weft_sim *sim, int rank, void *arg)
{
    uint64_t *woke_at = arg;
    weft_sim_sleep(sim, (uint64_t)rank * SECOND_NS);
    *woke_at = weft_sim_now(sim);
}

static void test_time_is_virtual(void **state)
{
    uint64_t woke_at[3] = {1, 1, 1};
    weft_sim *sim = sim_open(NULL);
    assert_int_equal(weft_sim_now(sim), 0);
    for (int i = 2; i >= 0; i--)
        assert_int_equal(weft_sim_spawn(sim, i, sleeper, &woke_at[i]), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, WEFT_FOREVER), WEFT_OK);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(woke_at[i], i * SECOND_NS);
    assert_int_equal(weft_sim_now(sim), 2 * SECOND_NS);
    weft_sim_sleep(sim, SECOND_NS); /* on no fiber: nothing */
    assert_int_equal(weft_sim_now(sim), 2 * SECOND_NS);
    weft_sim_close(sim);
}

static void test_an_empty_world(void **state)
{
    weft_sim *sim = sim_open(&(weft_sim_options){.latency_min_ns = 50, .latency_max_ns = 10});
    assert_int_equal(weft_sim_run(sim, 0), WEFT_OK);
    assert_int_equal(weft_sim_spawn(sim, -1, sleeper, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_sim_spawn(sim, 0, NULL, NULL), WEFT_ERR_INVALID);
    weft_sim_close(sim);
    weft_sim_close(NULL);
}

static void runs_inside(weft_sim *sim, int rank, void *arg)
{
    *(weft_status *)arg = weft_sim_run(sim, 0);
}

static void test_no_loop_in_a_program(void **state)
{
    weft_status status = WEFT_OK;
    weft_sim *sim = sim_open(NULL);
    assert_int_equal(weft_sim_spawn(sim, 0, runs_inside, &status), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 0), WEFT_OK);
    assert_int_equal(status, WEFT_ERR_STATE);
    weft_sim_close(sim);
}

static void parks(weft_sim *sim, int rank, void *arg)
{
    wfi_parker parker;
    wfi_parker_init(&parker);
    *(wfi_parker **)arg = &parker;
    assert_true(wfi_park(&parker, WFI_NEVER));
}

static void test_deadlock_is_found(void **state)
{
    wfi_parker *parker = NULL;
    weft_sim *sim = sim_open(NULL);
    assert_int_equal(weft_sim_spawn(sim, 0, parks, &parker), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, WEFT_FOREVER), WEFT_ERR_DEADLOCK);
    wfi_unpark(parker); /* a world in a deadlock can be helped from outside */
    assert_int_equal(weft_sim_run(sim, WEFT_FOREVER), WEFT_OK);
    weft_sim_close(sim);
}

static void heart(void *arg)
{
    for (weft_sim *sim = arg;;)
        weft_sim_sleep(sim, SECOND_NS / 10);
}

/* Background fibers keep no world alive, and with them a hang is found by the limit. */
static void test_background_fibers(void **state)
{
    wfi_parker *parker = NULL;
    uint64_t woke_at;
    weft_sim *sim = sim_open(NULL);
    assert_int_equal(wfi_fiber_spawn(wfi_sim_fibers(sim), 0, heart, sim), WEFT_OK);
    assert_int_equal(weft_sim_spawn(sim, 1, sleeper, &woke_at), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, WEFT_FOREVER), WEFT_OK);
    assert_int_equal(weft_sim_now(sim), SECOND_NS);
    assert_int_equal(weft_sim_spawn(sim, 0, parks, &parker), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 60 * 1000), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_sim_now(sim), 60 * SECOND_NS);
    weft_sim_kill(sim, 0);
    assert_int_equal(weft_sim_run(sim, WEFT_FOREVER), WEFT_OK);
    weft_sim_close(sim);
}

/* ---- Many workers ---------------------------------------------------------------------------------------------- */

typedef struct ring {
    int size, rounds, done;
    sim_host *hosts;
    uint64_t sums[1000];
} ring;

typedef struct seat {
    sim_host *host;
    wfi_lane *next, *previous; /* lanes: to the next worker, from the one before */
    int up;
} seat;

static void take_seat(seat *s)
{
    while (s->up < 2) {
        wfi_event event;
        if (s->host->ops->poll_events(s->host->fabric, &event, 1) == 0) {
            weft_sim_sleep(s->host->sim, 1000);
            continue;
        }
        if (event.kind == WFI_EVENT_REQUEST)
            assert_int_equal(lanes_accept(s->host->fabric, event.request, NULL, 0, s, &s->previous), WEFT_OK);
        s->up += event.kind == WFI_EVENT_CONNECTED;
    }
}

/* Every worker sends a running sum around the ring. */
static void ring_worker(weft_sim *sim, int rank, void *arg)
{
    ring *r = arg;
    seat s = {.host = &r->hosts[rank]};
    s.next = host_connect(s.host, &r->hosts[(rank + 1) % r->size], "");
    take_seat(&s);
    uint64_t out = (uint64_t)rank, in;
    for (int round = 0; round < r->rounds; round++) {
        wfi_fabric_op send, receive;
        assert_int_equal(s.host->ops->post_recv(s.previous, &receive, &(wfi_receive_buffer){&in, sizeof(in), NULL}, 1),
                         WEFT_OK);
        assert_int_equal(s.host->ops->send(s.next, &send, &(wfi_iov){&out, sizeof(out), NULL}, 1), WEFT_OK);
        for (int i = 0; i < 2; i++)
            assert_int_equal(host_completion(s.host).status, WEFT_OK);
        out = in * 3 + (uint64_t)rank;
    }
    r->sums[rank] = out;
    r->done++;
    while (r->done < r->size)
        weft_sim_sleep(sim, 10000);
    s.host->ops->lane_close(s.next);
    s.host->ops->lane_close(s.previous);
    host_close(s.host);
}

static uint64_t run_ring(ring *r, uint64_t seed, int size, int rounds)
{
    *r = (ring){.size = size, .rounds = rounds, .hosts = calloc((size_t)size, sizeof(sim_host))};
    weft_sim *sim = sim_open(&(weft_sim_options){.seed = seed, .stack_bytes = 64 * 1024});
    for (int i = 0; i < size; i++)
        host_open(&r->hosts[i], sim, i);
    for (int i = 0; i < size; i++)
        assert_int_equal(weft_sim_spawn(sim, i, ring_worker, r), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 60 * 1000), WEFT_OK);
    uint64_t hash = weft_sim_trace_hash(sim);
    weft_sim_close(sim);
    free(r->hosts);
    return hash;
}

static void test_seeds_replay(void **state)
{
    static ring one, two;
    uint64_t hashes[20];
    for (uint64_t seed = 0; seed < 20; seed++) {
        hashes[seed] = run_ring(&one, seed, 7, 12);
        void *shift = malloc(1000 * (seed + 1)); /* addresses differ, the trace does not */
        assert_int_equal(run_ring(&two, seed, 7, 12), hashes[seed]);
        free(shift);
        assert_memory_equal(one.sums, two.sums, sizeof(one.sums));
        for (uint64_t other = 0; other < seed; other++)
            assert_true(hashes[other] != hashes[seed]);
    }
}

static void test_a_thousand_workers(void **state)
{
    static ring r;
    run_ring(&r, 1, 1000, 10);
    assert_int_equal(r.done, 1000);
}

static void test_random_is_xoshiro(void **state)
{
    weft_sim *sim = sim_open(NULL);
    /* Seed 0: splitmix64 gives e220a8397b1dcdaf 6e789e6aa1b965f4 06c45d188009454f f88bb8a8724c81ec; the first output of
     * xoshiro256** from there is rotl(s[1] * 5, 7) * 9. */
    uint64_t x = 0x6e789e6aa1b965f4u * 5;
    assert_true(wfi_sim_random(sim) == (x << 7 | x >> 57) * 9);
    weft_sim_close(sim);
}

static void run_inside(weft_sim *sim, int rank, void *arg)
{
    REFUSES(weft_sim_run(sim, 10), WEFT_ERR_STATE, "weft_sim_run: a program of a simulation called it");
    REFUSES((weft_sim_close(sim), 0), 0, "weft_sim_close: a program of this world calls it");
    weft_sim *other = sim_open(NULL);
    weft_sim_sleep(other, 5); /* nobody moves its time */
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options elsewhere = {.sim = other, .has_rank = true, .world_size = 1, .master_port = 1};
    assert_int_equal(weft_agent_open(&elsewhere, &agent, &error), WEFT_ERR_STATE);
    assert_non_null(strstr(weft_error_message(error), "only a program of this simulated world"));
    weft_error_unref(error);
    weft_sim_close(other);
}

static void test_wrong_arguments(void **state)
{
    weft_sim *sim = sim_open(NULL);
    REFUSES(weft_sim_spawn(NULL, 0, run_inside, NULL), WEFT_ERR_INVALID, "weft_sim_spawn: the simulation is NULL");
    REFUSES(weft_sim_spawn(sim, 0, NULL, NULL), WEFT_ERR_INVALID, "weft_sim_spawn: run is NULL");
    REFUSES(weft_sim_spawn(sim, -1, run_inside, NULL), WEFT_ERR_INVALID, "weft_sim_spawn: rank is -1");
    REFUSES(weft_sim_run(NULL, 1), WEFT_ERR_INVALID, "weft_sim_run: the simulation is NULL");
    REFUSES(weft_sim_run(sim, -5), WEFT_ERR_INVALID, "weft_sim_run: limit_ms is -5");
    assert_int_equal(weft_sim_spawn(sim, 0, run_inside, NULL), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 100), WEFT_OK);
    weft_sim_close(sim);
}

UNIT_MAIN(test_time_is_virtual, test_an_empty_world, test_no_loop_in_a_program, test_deadlock_is_found,
          test_background_fibers, test_seeds_replay, test_a_thousand_workers, test_random_is_xoshiro,
          test_wrong_arguments)
