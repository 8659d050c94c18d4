/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_rref_joiner.c - references of workers who have just joined an elastic job, among those who are not told
 * of it yet: the newcomer has a value made, and its owner hears of the reference before it knows whose it is; or the
 * newcomer is the owner, and who gets the reference has never heard of it, or knows only who had that rank before.
 * On the simulation.
 */
#include "rpc/must.h"
#include "make.h"
#include "unit.h"

#include <weft/weft.h>

enum { STORE, OWNER, READER, JOINER, SEATS };
#define MS 1000000u
#define DEATH_MS 1000
#define VALUE 77

typedef struct stage {
    bool dies; /* the joiner, before the owner has heard of it */
    int opened, read_ended;
    bool made, read_began, over;
    weft_status read;
    weft_agent *agents[SEATS];
    bool may_leave, left; /* who had the joiner's rank before */
} stage;

static stage *now_playing;

static void await(weft_sim *sim, const bool *flag)
{
    while (!*flag)
        weft_sim_sleep(sim, MS);
}

static weft_status run_make(weft_call *call, void *user)
{
    now_playing->made = true;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(VALUE)));
    return WEFT_OK;
}

static weft_status run_read(weft_call *call, void *user)
{
    stage *s = now_playing;
    weft_values *got;
    int64_t value = 0;
    s->read_began = true;
    MUST(weft_rref_confirmed(weft_call_rref(call, 0)));
    s->read = weft_rref_to_here(weft_call_rref(call, 0), 10000, &got, NULL);
    s->read_ended++;
    if (s->read)
        return s->read;
    MUST_OK(weft_values_get_i64(got, 0, &value));
    weft_values_unref(got);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(value)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "make", .gives = {WEFT_TYPE_I64}, .run = run_make},
    {.name = "read", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = run_read},
};

static weft_agent *open_agent(weft_sim *sim, int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_status status = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                               .function_count = 2,
                                                               .has_rank = true,
                                                               .rank = rank,
                                                               .world_size = SEATS,
                                                               .elastic = true,
                                                               .fabric = "sim",
                                                               .sim = sim,
                                                               .threads = 2,
                                                               .death_timeout_ms = DEATH_MS},
                                         &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    now_playing->opened++;
    now_playing->agents[rank] = agent;
    return agent;
}

static void be_there(weft_sim *sim, int rank, void *arg)
{
    const stage *s = arg;
    weft_agent *agent = open_agent(sim, rank);
    await(sim, &s->over);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
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
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

/* Keeps the news from the owner, which itself stays alive for the store. */
static void direct(weft_sim *sim, int rank, void *arg)
{
    stage *s = arg;
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
    weft_sim *sim = sim_open(&(weft_sim_options){.seed = seed});
    assert_non_null(sim);
    now_playing = &s;
    for (int rank = STORE; rank < JOINER; rank++)
        MUST_OK(weft_sim_spawn(sim, rank, be_there, &s));
    MUST_OK(weft_sim_spawn(sim, SEATS, direct, &s));
    MUST_OK(weft_sim_run(sim, 60 * 1000));
    assert_true(s.made != dies);
    weft_sim_close(sim);
}

static void test_waits_for_the_creator(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        play(seed, false);
}

static void test_creator_dies_unknown(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        play(seed, true);
}

/* ---- The newcomer is the owner ----------------------------------------------------------------------------------- */

/* Who had the rank before, as the reader knows it when it hears of the newcomer's value. */
typedef enum former { NOBODY, GONE, THERE } former;

static void be_former(weft_sim *sim, int rank, void *arg)
{
    stage *s = arg;
    weft_agent *agent = open_agent(sim, rank);
    await(sim, &s->may_leave);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    s->left = true;
}

/* At the worker who knows of the newcomer: has a value made there, and passes it on. */
static weft_future *pass_on(weft_agent *agent)
{
    weft_rref *made;
    weft_future *read;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(JOINER), "make", WEFT_NO_VALUES, NULL, &made));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(READER), "read", WEFT_VALUES(weft_of_rref(made)), NULL, &read));
    weft_rref_unref(made);
    return read;
}

static void let_former_go(weft_sim *sim, stage *s, int watcher)
{
    s->may_leave = true;
    await(sim, &s->left);
    while (weft_agent_alive(s->agents[watcher], JOINER))
        weft_sim_sleep(sim, MS);
}

/* Keeps the news from the reader. */
static void direct_owner(weft_sim *sim, int rank, void *arg)
{
    former who = *(const former *)arg;
    stage *s = now_playing;
    int64_t value = 0;
    while (s->opened < (who ? SEATS : JOINER))
        weft_sim_sleep(sim, MS);
    uint32_t before = weft_agent_worker(s->agents[OWNER], JOINER).incarnation;
    if (who == GONE)
        let_former_go(sim, s, READER);
    weft_sim_cut(sim, STORE, READER);
    if (who == THERE)
        let_former_go(sim, s, OWNER);
    MUST_OK(weft_sim_spawn(sim, JOINER, be_there, s));
    while (weft_agent_worker(s->agents[OWNER], JOINER).incarnation == before)
        weft_sim_sleep(sim, MS);
    weft_future *read = pass_on(s->agents[OWNER]);
    weft_sim_sleep(sim, 100 * MS);
    MUST(s->made && !s->read_began && !weft_future_done(read));
    MUST(weft_agent_worker(s->agents[READER], JOINER).incarnation == before);
    weft_sim_heal(sim, STORE, READER);
    MUST_OK(weft_future_wait(read, 10000));
    MUST_OK(weft_values_get_i64(weft_future_values(read), 0, &value));
    MUST(value == VALUE);
    weft_future_unref(read);
    s->over = true;
}

static void test_waits_for_the_owner(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        for (former who = NOBODY; who <= THERE; who++) {
            stage s = {0};
            weft_sim *sim = sim_open(&(weft_sim_options){.seed = seed});
            assert_non_null(sim);
            now_playing = &s;
            for (int rank = STORE; rank < JOINER; rank++)
                MUST_OK(weft_sim_spawn(sim, rank, be_there, &s));
            if (who)
                MUST_OK(weft_sim_spawn(sim, JOINER, be_former, &s));
            MUST_OK(weft_sim_spawn(sim, SEATS, direct_owner, &who));
            MUST_OK(weft_sim_run(sim, 60 * 1000));
            weft_sim_close(sim);
        }
}

UNIT_MAIN(test_waits_for_the_creator, test_creator_dies_unknown, test_waits_for_the_owner)
