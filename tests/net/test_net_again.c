/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_again.c - workers that die or leave while others speak to them, and come again as a new incarnation: what
 * was meant for one life never reaches another, in either direction, and between those who stay nothing is lost.
 */
#include "net/net_host.h"

#define SEAT 2  /* that changes hands */
#define TALK 30 /* messages to and from each life that lasts */
#define LIVES 3 /* of the seat, the first included */
#define SEEDS 60

typedef struct story {
    uint64_t kill_ns[LIVES], birth_ns[LIVES];
    atomic_int born; /* lives that were begun */
    bool any;        /* whichever seat is free */
} story;

/* Lives of the seat after the first, as a neighbour counts: by who joined since all were here. */
static int lives_since(net_host *host)
{
    return atomic_load(&host->joined) - (int)(intptr_t)host->user;
}

static bool is_last(net_host *host)
{
    return lives_since(host) == LIVES - 1;
}

/* In an elastic job those who came first hear of the others one by one. */
static void know_all(net_host *host)
{
    for (int rank = 0; rank <= SEAT; rank++)
        while (rank != host->rank && !host_member(host, rank).incarnation)
            host_pause(host, 100000);
    wfi_net_lock(host->net);
    host->user = (void *)(intptr_t)atomic_load(&host->joined);
    wfi_net_unlock(host->net);
    host_meet(host, &host->world->turns[2]);
}

static void check(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    assert_ptr_equal(from, wfi_net_peer(host->net, wfi_peer_rank(from))); /* nobody who is gone is heard */
    assert_int_equal(wfi_peer_status(from), WEFT_OK);
    host_check_order(host, from, type, bytes, size);
}

/* One message more to the seat, numbered from 0 for each of its lives. */
static void call_seat(net_host *host, uint64_t *next, int *life)
{
    wfi_net_lock(host->net);
    int joined = lives_since(host);
    if (*life != joined)
        *next = 0;
    *life = joined;
    weft_status status = is_last(host) && *next == TALK ? WEFT_ERR_AGAIN : host_send(host, SEAT, *next, 200, false);
    *next += status == WEFT_OK;
    wfi_net_unlock(host->net);
}

static bool keeps_something(net_host *host)
{
    wfi_net_lock(host->net);
    bool keeps = wfi_peer_kept_bytes(wfi_net_peer(host->net, SEAT)) > 0;
    wfi_net_unlock(host->net);
    return keeps;
}

static void stay(net_host *host)
{
    uint64_t next = 0, others = 0;
    int life = 0, lives = LIVES - 1;
    know_all(host);
    while (life < LIVES - 1 || next < TALK || atomic_load(&host->gone) < lives) {
        call_seat(host, &next, &life);
        assert_int_equal(host_send_free(host, 1 - host->rank, others++, 100), WEFT_OK);
        host_pause(host, 200000);
    }
    host_meet(host, &host->world->turns[0]);
    assert_int_equal(host->next[SEAT], TALK);
    while (atomic_load(&host->done_ok) + atomic_load(&host->done_failed) < 1 || keeps_something(host))
        host_pause(host, 1000000);
    assert_int_equal(host->gone, lives);
    host_meet(host, &host->world->turns[1]);
}

/* Says its numbers to both; all but the last life are then gone in the middle of something. */
static void sit(net_host *host, int life)
{
    for (uint64_t i = 0; i < TALK; i++) {
        for (int to = 0; to < SEAT; to++) {
            weft_status status = host_send_free(host, to, i, 300);
            assert_int_equal(status, WEFT_OK);
        }
        host_pause(host, 50000);
    }
    if (life < LIVES - 1)
        return;
    host_until(host, &host->arrived, SEAT * TALK);
    host_until(host, &host->done_ok, SEAT * TALK);
    host_meet(host, &host->world->turns[0]);
    host_meet(host, &host->world->turns[1]);
}

/* ---- Simulated: killed ----------------------------------------------------------------------------------------- */

static void live_again(weft_sim *sim, int rank, void *arg)
{
    net_host *host = arg;
    story *told = host->world->user;
    int life = (int)(host - host->world->hosts) - SEAT;
    host_open(host);
    atomic_fetch_add(&told->born, 1);
    sit(host, life);
    if (life < LIVES - 1)
        host_pause(host, UINT64_C(60000000000));
    host_close(host);
}

static void body_sim(net_host *host)
{
    if (host->rank < SEAT) {
        stay(host);
    } else {
        atomic_fetch_add(&host->world->turns[2], 1);
        sit(host, 0);
        host_pause(host, UINT64_C(60000000000)); /* for the kill */
    }
}

static void direct(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    story *told = world->user;
    while (atomic_load(&world->turns[2]) < 3)
        weft_sim_sleep(sim, 100000);
    for (int life = 1; life < LIVES; life++) {
        weft_sim_sleep(sim, told->kill_ns[life]);
        weft_sim_kill(sim, SEAT);
        weft_sim_sleep(sim, told->birth_ns[life]);
        net_host *host = &world->hosts[SEAT + life];
        host->world = world;
        host->rank = SEAT;
        int born = atomic_load(&told->born);
        assert_int_equal(weft_sim_spawn(sim, SEAT, live_again, host), WEFT_OK);
        while (atomic_load(&told->born) == born)
            weft_sim_sleep(sim, 100000);
    }
}

static void the_killed_come_again(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        story told = {.any = false};
        for (int life = 1; life < LIVES; life++) {
            told.kill_ns[life] = (seed * 77777777 + (uint64_t)life * 1234567) % 5000000;
            told.birth_ns[life] = (seed * 33333333 + (uint64_t)life * 7654321) % 3000000;
        }
        net_world world = {.on_message = check, .user = &told, .death_timeout_ms = 2000};
        world_sim(&world, seed, 3, body_sim, direct);
    }
}

/* ---- Over tcp: they leave, in an elastic job ------------------------------------------------------------------- */

static void body_tcp(net_host *host)
{
    story *told = host->world->user;
    if (host->rank < SEAT) {
        stay(host);
        return;
    }
    know_all(host);
    for (int life = 0; life < LIVES; life++) {
        if (life) {
            host_close(host);
            atomic_store(&host->arrived, 0);
            atomic_store(&host->done_ok, 0);
            memset(host->next, 0, sizeof(host->next));
            host->any = told->any;
            host_open(host);
            assert_int_equal(wfi_net_rank(host->net), SEAT);
        }
        sit(host, life);
    }
}

static void those_who_left_come_again(void **state)
{
    for (int any = 0; any < 2; any++) {
        story told = {.any = any};
        net_world world = {.on_message = check, .user = &told, .elastic = true};
        world_tcp(&world, 3, body_tcp);
    }
}

UNIT_MAIN(the_killed_come_again, those_who_left_come_again)
