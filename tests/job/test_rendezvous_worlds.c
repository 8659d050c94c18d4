/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_worlds.c - links in the simulation under cuts, pauses, deaths, joins and leaves, by many seeds:
 * whoever was cut off for less than the bound lives and has missed nothing, whoever was declared dead is told, and
 * all who live at the end believe in the same members. And 2,000 workers at once.
 */
#include "make.h"
#include "unit.h"

#include "job/link/rendezvous.h"
#include "prng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define BOUND_MS 2000
#define SEATS 6
#define SECRET "what the workers of this world know"

struct life;

typedef struct world {
    weft_sim *sim;
    uint64_t random;
    bool secret;
    bool over; /* everybody compares, then closes */
    uint32_t truth[SEATS];
    int deaths, evictions, comparisons;
    struct life *lives[SEATS];
} world;

typedef struct life { /* of one incarnation */
    world *of;
    int rank;
    bool severed; /* for longer than the bound: it must not believe in itself at the end */
    int evicted, store_lost;
    uint32_t believes[SEATS];
    wfi_rendezvous *link;
} life;

static uint64_t pick(world *w, uint64_t below)
{
    return prng_below(&w->random, below);
}

static void on_joined(void *arg, const wfi_member *member)
{
    life *me = arg;
    assert_int_equal(me->believes[member->rank], 0); /* its former one was reported gone */
    me->believes[member->rank] = member->incarnation;
}

static void gone(life *me, int rank, uint32_t incarnation)
{
    assert_int_equal(me->believes[rank], incarnation); /* once, and of whom it knew */
    me->believes[rank] = 0;
}

static void on_died(void *arg, int rank, uint32_t incarnation, const char *why)
{
    life *me = arg;
    gone(me, rank, incarnation);
    if (me->rank == 0)
        me->of->deaths++;
}

static void on_left(void *arg, int rank, uint32_t incarnation)
{
    gone(arg, rank, incarnation);
}

static void on_evicted(void *arg, const char *why)
{
    life *me = arg;
    me->evicted++;
    me->of->evictions++;
}

static void on_store_lost(void *arg, const char *why)
{
    life *me = arg;
    me->store_lost++;
}

static void on_nothing(void *arg, uint64_t wave) {}

static void on_end(void *arg) {}

static void open_link(life *me)
{
    char name[32];
    weft_error *error = NULL;
    snprintf(name, sizeof(name), "worker%d", me->rank);
    wfi_rendezvous_events events = {.joined = on_joined,
                                    .died = on_died,
                                    .left = on_left,
                                    .evicted = on_evicted,
                                    .store_lost = on_store_lost,
                                    .probe = on_nothing,
                                    .terminated = on_end,
                                    .arg = me};
    wfi_rendezvous_options options = {.rank = me->rank,
                                      .world_size = SEATS,
                                      .elastic = true,
                                      .secret = me->of->secret ? (const uint8_t *)SECRET : NULL,
                                      .secret_size = me->of->secret ? strlen(SECRET) : 0,
                                      .name = name,
                                      .store_fd = -1,
                                      .sim = me->of->sim,
                                      .join_timeout_ms = 60000,
                                      .death_timeout_ms = BOUND_MS,
                                      .events = &events};
    weft_status status = wfi_rendezvous_open(&options, &me->link, &error);
    if (status)
        print_message("rank %d: %s\n", me->rank, weft_error_message(error));
    weft_error_unref(error);
    assert_int_equal(status, WEFT_OK);
    const wfi_member *members = wfi_rendezvous_members(me->link);
    for (int rank = 0; rank < SEATS; rank++)
        me->believes[rank] = members[rank].incarnation;
    me->of->truth[me->rank] = members[me->rank].incarnation;
}

/* It needs everybody it knows, all the time, so that all of them beat. */
static void need_all(life *me)
{
    for (int rank = 0; rank < SEATS; rank++)
        if (me->believes[rank])
            wfi_rendezvous_interest(me->link, rank, me->believes[rank], true);
}

/* At the end: all who live know all who live. */
static void compare(life *me)
{
    if (me->evicted || me->store_lost)
        return;
    me->of->comparisons++;
    for (int rank = 0; rank < SEATS; rank++)
        assert_int_equal(me->believes[rank], me->of->truth[rank]);
}

static void live(weft_sim *sim, int rank, void *arg)
{
    world *w = arg;
    life *me = calloc(1, sizeof(*me));
    assert_non_null(me);
    *me = (life){.of = w, .rank = rank};
    w->lives[rank] = me;
    open_link(me);
    while (!w->over && !me->evicted && !me->store_lost) {
        need_all(me);
        weft_sim_sleep(sim, 50 * MS);
    }
    if (me->evicted || me->store_lost) {
        w->truth[rank] = 0;
    } else {
        compare(me);
        weft_sim_sleep(sim, (rank == 0 ? 4000 : 1000) * MS); /* nobody's leaving disturbs the comparison */
    }
    wfi_rendezvous *link = me->link;
    me->link = NULL;
    w->lives[rank] = NULL;
    wfi_rendezvous_close(link);
    free(me);
}

/* One mischief after the other, to one rank at a time, never to rank 0. Returns how many deaths it must have caused. */
static int do_harm(world *w)
{
    weft_sim *sim = w->sim;
    int rank = 1 + (int)pick(w, SEATS - 1);
    bool is_long = pick(w, 3) == 0, pauses = pick(w, 2) == 0;
    uint64_t ms = is_long ? BOUND_MS + 700 + pick(w, 1500) : pick(w, BOUND_MS - 450);
    if (!w->lives[rank] || !w->lives[rank]->link || w->lives[rank]->evicted)
        return 0;
    if (pauses)
        weft_sim_pause(sim, rank);
    else
        weft_sim_cut(sim, 0, rank);
    weft_sim_sleep(sim, ms * MS);
    if (pauses)
        weft_sim_resume(sim, rank);
    else
        weft_sim_heal(sim, 0, rank);
    weft_sim_sleep(sim, 1500 * MS); /* until it knows, and has left */
    return is_long;
}

static void refill(world *w)
{
    for (int rank = 1; rank < SEATS; rank++)
        if (!w->lives[rank])
            assert_int_equal(weft_sim_spawn(w->sim, rank, live, w), WEFT_OK);
}

static void director(weft_sim *sim, int rank, void *arg)
{
    world *w = arg;
    int expected = 0;
    weft_sim_sleep(sim, 1000 * MS);
    for (int i = 0; i < 8; i++) {
        expected += do_harm(w);
        if (pick(w, 2))
            refill(w);
        weft_sim_sleep(sim, 300 * MS);
    }
    weft_sim_sleep(sim, 3000 * MS);
    assert_int_equal(w->deaths, expected);
    assert_int_equal(w->evictions, expected);
    w->over = true;
}

static int play(uint64_t seed, bool secret)
{
    world w = {.random = seed * 2654435761u + 1, .secret = secret};
    w.sim = sim_open(&(weft_sim_options){.seed = seed});
    assert_non_null(w.sim);
    for (int rank = SEATS - 1; rank >= 0; rank--)
        assert_int_equal(weft_sim_spawn(w.sim, rank, live, &w), WEFT_OK);
    assert_int_equal(weft_sim_spawn(w.sim, 100, director, &w), WEFT_OK);
    assert_int_equal(weft_sim_run(w.sim, 600000), WEFT_OK);
    assert_true(w.comparisons > 0);
    weft_sim_close(w.sim);
    return w.evictions;
}

static void whatever_happens_all_agree_and_nobody_is_wronged(void **state)
{
    int evictions = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        evictions += play(seed, seed % 2);
    }
    print_message("%d evictions\n", evictions);
    assert_true(evictions > 50);
}

/* ---- Many ------------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MANY 300
#else
#define MANY 2000
#endif

typedef struct crowd {
    weft_sim *sim;
    int joined;
    wfi_rendezvous *links[MANY];
} crowd;

/* Rank 0 ends it for all once everybody is there: it is joining that is tried here. */
static void be_one_of_many(weft_sim *sim, int rank, void *arg)
{
    static life nobody;
    crowd *all = arg;
    char name[32];
    snprintf(name, sizeof(name), "worker%d", rank);
    wfi_rendezvous_events events = {.died = on_died,
                                    .left = on_left,
                                    .evicted = on_evicted,
                                    .store_lost = on_store_lost,
                                    .probe = on_nothing,
                                    .terminated = on_end,
                                    .arg = &nobody};
    wfi_rendezvous_options options = {.rank = rank,
                                      .world_size = MANY,
                                      .secret = (const uint8_t *)SECRET,
                                      .secret_size = strlen(SECRET),
                                      .name = name,
                                      .store_fd = -1,
                                      .sim = sim,
                                      .join_timeout_ms = 60000,
                                      .death_timeout_ms = BOUND_MS,
                                      .events = &events};
    assert_int_equal(wfi_rendezvous_open(&options, &all->links[rank], NULL), WEFT_OK);
    assert_int_equal(wfi_rendezvous_members(all->links[rank])[MANY - 1].rank, MANY - 1);
    wfi_rendezvous_drop_members(all->links[rank]);
    if (++all->joined < MANY)
        return;
    for (int other = MANY - 1; other >= 0; other--)
        if (other != rank)
            weft_sim_kill(sim, other);
    weft_sim_kill(sim, rank);
}

static void two_thousand_workers_join(void **state)
{
    crowd *all = calloc(1, sizeof(*all));
    assert_non_null(all);
    all->sim = sim_open(&(weft_sim_options){.seed = 5});
    for (int rank = 0; rank < MANY; rank++)
        assert_int_equal(weft_sim_spawn(all->sim, rank, be_one_of_many, all), WEFT_OK);
    assert_int_equal(weft_sim_run(all->sim, 60000), WEFT_OK);
    assert_int_equal(all->joined, MANY);
    print_message("%d workers joined within %.1f ms of the world's time\n", MANY,
                  (double)weft_sim_now(all->sim) / (double)MS);
    for (int rank = 0; rank < MANY; rank++)
        wfi_rendezvous_close(all->links[rank]);
    weft_sim_close(all->sim);
    free(all);
}

UNIT_MAIN(whatever_happens_all_agree_and_nobody_is_wronged, two_thousand_workers_join)
