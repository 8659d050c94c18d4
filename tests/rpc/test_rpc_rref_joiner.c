/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_rref_joiner.c - a worker joins an elastic job, has a value made by an owner who is not told of its joining yet, and
 * passes the reference to a third: the owner hears of the reference before it knows whose it is. On the simulation.
 */
#include "rpc/must.h"

#include <weft/weft.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { STORE, OWNER, READER, JOINER, SEATS };
#define MS 1000000u
#define DEATH_MS 1000
#define VALUE 77

typedef struct stage {
    bool dies; /* the joiner, before the owner has heard of it */
    int opened, read_ended;
    bool made, read_began, over;
    weft_status read;
} stage;

static stage *now_playing;

static void await(weft_sim *sim, const bool *flag)
{
    while (!*flag)
        weft_sim_sleep(sim, MS);
}

static weft_status run_make(weft_call *call, void *user)
{
    (void)user;
    now_playing->made = true;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(VALUE)));
    return WEFT_OK;
}

static weft_status run_read(weft_call *call, void *user)
{
    stage *s = now_playing;
    weft_values *got;
    int64_t value = 0;
    (void)user;
    s->read_began = true;
    MUST(weft_rref_confirmed(weft_call_rref(call, 0)));
    s->read = weft_rref_to_here(weft_call_rref(call, 0), 10000, &got);
    s->read_ended++;
    if (s->read)
        return s->read;
    MUST_OK(weft_values_get_i64(got, 0, &value));
    weft_values_unref(got);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(value)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "make", .gives = {WEFT_I64}, .run = run_make},
    {.name = "read", .takes = {WEFT_RREF}, .gives = {WEFT_I64}, .run = run_read},
};

static weft_agent *open_agent(weft_sim *sim, int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_status st = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                           .function_count = 2,
                                                           .has_rank = true,
                                                           .rank = rank,
                                                           .world_size = SEATS,
                                                           .elastic = true,
                                                           .fabric = "sim",
                                                           .sim = sim,
                                                           .workers = 2,
                                                           .death_timeout_ms = DEATH_MS,
                                                           .error = &error},
                                     &agent);
    weft_error_print(error, stderr);
    MUST_OK(st);
    now_playing->opened++;
    return agent;
}

static void be_there(weft_sim *sim, int rank, void *arg)
{
    const stage *s = arg;
    weft_agent *agent = open_agent(sim, rank);
    await(sim, &s->over);
    MUST_OK(weft_agent_close(agent));
}

static void join_late(weft_sim *sim, int rank, void *arg)
{
    stage *s = arg;
    weft_rref *made;
    weft_future *read;
    weft_agent *agent = open_agent(sim, rank);
    int64_t value = 0;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(OWNER), "make", WEFT_NO_VALUES, NULL, &made));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(READER), "read", WEFT_VALUES(weft_of_rref(made)), NULL, &read));
    weft_rref_unref(made);
    MUST_OK(weft_future_wait(read, WEFT_FOREVER));
    MUST_OK(weft_values_get_i64(weft_future_values(read), 0, &value));
    MUST(value == VALUE);
    weft_future_unref(read);
    s->over = true;
    MUST_OK(weft_agent_close(agent));
}

/* Keeps the news from the owner, which itself stays alive for the store. */
static void direct(weft_sim *sim, int rank, void *arg)
{
    stage *s = arg;
    (void)rank;
    while (s->opened < JOINER)
        weft_sim_sleep(sim, MS);
    weft_sim_cut(sim, STORE, OWNER);
    MUST_OK(weft_sim_spawn(sim, JOINER, join_late, s));
    weft_sim_sleep(sim, 100 * MS);
    MUST(s->opened == SEATS && !s->made && !s->read_ended);
    if (s->dies)
        weft_sim_kill(sim, JOINER);
    weft_sim_sleep(sim, 100 * MS);
    weft_sim_heal(sim, STORE, OWNER);
    weft_sim_sleep(sim, 2 * DEATH_MS * (uint64_t)MS);
    if (!s->dies)
        return;
    MUST(!s->made && s->read_began && s->read_ended == 1 && s->read == WEFT_ERR_PEER_DEAD);
    s->over = true;
}

static void play(uint64_t seed, bool dies)
{
    stage s = {.dies = dies};
    weft_sim *sim = weft_sim_create(&(weft_sim_options){.seed = seed});
    assert_non_null(sim);
    now_playing = &s;
    for (int rank = STORE; rank < JOINER; rank++)
        MUST_OK(weft_sim_spawn(sim, rank, be_there, &s));
    MUST_OK(weft_sim_spawn(sim, SEATS, direct, &s));
    MUST_OK(weft_sim_run(sim, 60 * 1000));
    assert_true(s.made != dies);
    weft_sim_destroy(sim);
}

static void test_waits_for_the_creator(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++)
        play(seed, false);
}

static void test_creator_dies_unknown(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++)
        play(seed, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waits_for_the_creator),
                                       cmocka_unit_test(test_creator_dies_unknown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
