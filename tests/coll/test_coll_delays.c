/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_delays.c - groups that are opened while a member dies or is stopped: who is named, how soon, and that the
 * others keep the time that they have. In the simulation.
 */
#include "coll/coll.h"
#include "make.h"

#include <string.h>

enum { SIZE = 4, SEEDS = 5 };

static world *the;

static weft_group *meet(weft_agent *agent)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    return group;
}

static void play_all(void (*play)(weft_agent *agent, void *arg))
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        world w = {.fabric = WORLD_SIM, .size = SIZE, .seed = seed, .program = play, .close_may_fail = true};
        the = &w;
        world_run(&w);
    }
}

/* ---- A member dies ----------------------------------------------------------------------------------------------- */

static uint64_t killed_ns;

static void kill_last(weft_sim *sim, int rank, void *arg)
{
    (void)rank, (void)arg;
    weft_sim_sleep(sim, 50000000);
    killed_ns = weft_sim_now(sim);
    weft_sim_kill(sim, SIZE - 1);
}

/* All that wait hear of it at once, not after the wait for an answer, and open the group without it. */
static void open_with_the_dying(weft_agent *agent, void *arg)
{
    (void)arg;
    int me = weft_agent_rank(agent);
    weft_group *group = NULL, *all = meet(agent);
    if (me == SIZE - 1) {
        weft_sim_sleep(the->sim, 60000000000);
        return;
    }
    if (me == 0)
        MUST_OK(weft_sim_spawn(the->sim, 0, kill_last, NULL));
    MUST_BE(weft_group_open(agent, "g", NULL, 0, 30000, &group, NULL), WEFT_ERR_PEER_DEAD);
    MUST(weft_sim_now(the->sim) < killed_ns + 500000000);
    MUST_OK(weft_group_open(agent, "g", (int[]){0, 1, 2}, 3, 700, &group, NULL));
    weft_group_close(group);
    weft_sim_sleep(the->sim, 3000000000);
    weft_group_close(all);
}

static void a_death_is_told_at_once(void **state)
{
    play_all(open_with_the_dying);
}

/* ---- A member is stopped ----------------------------------------------------------------------------------------- */

static void open_with_the_stopped(weft_agent *agent, void *arg)
{
    (void)arg;
    int me = weft_agent_rank(agent);
    weft_group *group = NULL, *all = meet(agent);
    weft_error *error = NULL;
    if (me == 0) {
        weft_sim_sleep(the->sim, 20000000); /* the others have called */
        weft_sim_pause(the->sim, SIZE - 1);
    }
    MUST_BE(weft_group_open(agent, "g", NULL, 0, 500, &group, &error), WEFT_ERR_TIMEOUT);
    if (me != SIZE - 1)
        MUST(strstr(weft_error_message(error), "missing is rank 3"));
    weft_error_unref(error);
    if (me == 0)
        weft_sim_resume(the->sim, SIZE - 1);
    weft_sim_sleep(the->sim, 2000000000);
    weft_group_close(all);
}

static void who_is_stopped_is_named(void **state)
{
    play_all(open_with_the_stopped);
}

/* ---- One dies, another is stopped for less than the limit ----------------------------------------------------- */

static weft_sim *sim;

static void resume_last(weft_sim *of, int rank, void *arg)
{
    (void)rank, (void)arg;
    weft_sim_sleep(of, 1500000000);
    weft_sim_resume(of, SIZE - 1);
}

static void live(weft_sim *of, int me, void *arg)
{
    (void)of, (void)arg;
    weft_agent *agent = NULL;
    weft_group *group = NULL;
    const weft_agent_options options = {.has_rank = true,
                                        .rank = me,
                                        .world_size = SIZE,
                                        .elastic = true,
                                        .master_addr = "127.0.0.1",
                                        .sim = sim,
                                        .threads = 2,
                                        .no_binding = true,
                                        .death_timeout_ms = 10000};
    MUST_OK(weft_agent_open(&options, &agent, NULL));
    while (weft_agent_workers(agent, NULL, 0) < SIZE)
        weft_sim_sleep(sim, 1000000);
    weft_sim_sleep(sim, 100000000);
    if (me == 2) {
        weft_sim_sleep(sim, 60000000000);
        return;
    }
    if (me == 0) {
        weft_sim_sleep(sim, 50000000); /* 1 and 3 have called */
        weft_sim_pause(sim, SIZE - 1);
        MUST_OK(weft_sim_spawn(sim, 77, resume_last, NULL));
        weft_sim_kill(sim, 2);
        while (weft_agent_alive(agent, 2))
            weft_sim_sleep(sim, 1000);
    }
    MUST_OK(weft_group_open(agent, "g", NULL, 0, 30000, &group, NULL));
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, 20000));
}

static void a_death_takes_no_time_from_the_others(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        sim = sim_open(&(weft_sim_options){.seed = seed});
        for (int i = 0; i < SIZE; i++)
            MUST_OK(weft_sim_spawn(sim, i, live, NULL));
        MUST_OK(weft_sim_run(sim, 600 * 1000));
        weft_sim_close(sim);
    }
}

UNIT_MAIN(a_death_is_told_at_once, who_is_stopped_is_named, a_death_takes_no_time_from_the_others)
