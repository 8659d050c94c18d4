/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_opening.c - members that open a group late, never, with other ranks, or die meanwhile: either all have
 * it or nobody, everyone hears in time who is missing, and the next attempt succeeds.
 */
#include "coll/coll.h"
#include "rpc/stage.h"
#include "prng.h"
#include "tensors.h"

#include <sched.h>

enum { SIZE = 3 };

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
}

static weft_group *make(weft_agent *agent, const char *name)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &group, NULL));
    return group;
}

/* It is not opened, for that reason. */
static void must_fail(weft_agent *agent, const char *name, const int *ranks, size_t count, int64_t timeout_ms,
                      weft_status wanted, const char *words)
{
    weft_group *none = NULL;
    weft_error *error = NULL;
    MUST_BE(weft_group_open(agent, name, ranks, count, timeout_ms, &none, &error), wanted);
    if (none || !strstr(weft_error_message(error), words)) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", weft_error_message(error), words);
        abort();
    }
    weft_error_unref(error);
}

/* ---- Not by all -------------------------------------------------------------------------------------------------- */

/* It fails on member 2, for a reason of its own. The others hear that it is missing. The next attempt succeeds. */
static void fails_on_one(weft_agent *agent, void *arg)
{
    static const int wrong[] = {0, 1, 77};
    weft_group *meet = make(agent, "meet"), *none = NULL;
    if (weft_agent_rank(agent) == 2)
        MUST_BE(weft_group_open(agent, "all", wrong, 3, 0, &none, NULL), WEFT_ERR_NOT_FOUND);
    else
        must_fail(agent, "all", NULL, 0, 200, WEFT_ERR_TIMEOUT, "missing is rank 2");
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    for (int i = 0; i < 4; i++) {
        weft_group *all = make(agent, "all");
        MUST_OK(weft_group_barrier(all, 20000));
        weft_group_close(all);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
}

WORLD_TEST(fails_on_one, 10, 1, .size = SIZE, .adjust = adjust)

typedef struct scene {
    world w;
    int victim;
    bool pause;
    int opened[2], met[2]; /* in this round, and in the one before */
    bool over;             /* no more links are cut */
    int rounds;
    uint64_t both; /* rounds in which some had a group, and others had not */
} scene;

/* The limits of the members pass while the group is made. If it fails on one, no operation of it succeeds. */
static void fails_on_some(weft_agent *agent, void *arg)
{
    enum { ROUNDS = 60, MEMBERS = 4 };
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *meet = make(agent, "meet");
    uint64_t state = s->w.seed * 100 + (uint64_t)me;
    for (int round = 0; round < ROUNDS; round++) {
        weft_group *all = NULL;
        int now = round % 2;
        uint64_t began = weft_sim_now(s->w.sim);
        weft_sim_sleep(s->w.sim, prng_below(&state, 2000000));
        weft_status status = weft_group_open(agent, "all", NULL, 0, 1 + (int64_t)prng_below(&state, 2), &all, NULL);
        MUST(!status || status == WEFT_ERR_TIMEOUT);
        s->opened[now] += !status;
        if (!status)
            status = weft_group_barrier(all, 5000);
        s->met[now] += !status;
        MUST(weft_sim_now(s->w.sim) - began < 1100000000);
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_group_close(all);
        MUST(s->met[now] == (s->opened[now] == MEMBERS ? MEMBERS : 0));
        s->both += s->opened[now] > 0 && s->opened[now] < MEMBERS;
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        s->opened[now] = s->met[now] = 0;
    }
    weft_group *all = make(agent, "all");
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
    weft_group_close(all);
    weft_group_close(meet);
}

static void test_fails_on_some(void **state)
{
    uint64_t both = 0;
    for (uint64_t seed = 1; seed <= world_seeds(30); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM, .size = 4, .seed = seed, .program = fails_on_some, .adjust = adjust}};
        s.w.arg = &s;
        world_run(&s.w);
        both += s.both;
    }
    printf("in %llu rounds some had a group that others could not open\n", (unsigned long long)both / 4);
}

static void killer(weft_sim *sim, int rank, void *arg)
{
    scene *s = arg;
    weft_sim_sleep(sim, s->w.seed * 7919 % 40 * 10000000); /* within the first attempts */
    if (s->pause)
        weft_sim_pause(sim, s->victim);
    else
        weft_sim_kill(sim, s->victim);
    weft_sim_sleep(sim, UINT64_C(60000000000));
    if (s->pause)
        weft_sim_resume(sim, s->victim);
}

/* One dies, or is stopped, while members open groups, also the one that gathers them: nobody waits for longer than its
 * limit and the second for the answer, and those who live meet. */
static void open_with_death(weft_agent *agent, void *arg)
{
    scene *s = arg;
    static const int trio[] = {3, 1, 2};
    int me = weft_agent_rank(agent), living[SIZE], count = 0;
    if (!me) {
        MUST_OK(weft_sim_spawn(s->w.sim, 0, killer, s));
        return;
    }
    weft_status status = WEFT_OK;
    while (status != WEFT_ERR_PEER_DEAD && status != WEFT_ERR_STORE_LOST && status != WEFT_ERR_EVICTED) {
        weft_group *group;
        weft_error *error = NULL;
        uint64_t began = weft_sim_now(s->w.sim);
        status = weft_group_open(agent, "all", trio, 3, 50, &group, &error);
        if (me != s->victim)
            MUST(weft_sim_now(s->w.sim) - began < 1100000000);
        if (status == WEFT_ERR_PEER_DEAD)
            MUST(weft_error_worker(error) == s->victim);
        weft_error_unref(error);
        if (status)
            continue;
        status = weft_group_barrier(group, 50);
        weft_group_close(group);
        weft_sim_sleep(s->w.sim, me * 3000000);
    }
    if (me == s->victim)
        return;
    for (int i = 0; i < 3; i++)
        if (trio[i] != s->victim)
            living[count++] = trio[i];
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", living, (size_t)count, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_group_close(group);
}

static void test_open_with_death(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(60); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = 4,
                         .seed = seed,
                         .program = open_with_death,
                         .adjust = adjust,
                         .close_may_fail = true},
                   .victim = (int)(1 + seed % 3),
                   .pause = seed / 3 % 2};
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* Cuts one link after another, and heals it. */
static void cutter(weft_sim *sim, int rank, void *arg)
{
    scene *s = arg;
    uint64_t state = s->w.seed;
    for (int i = 0; i < 60; i++) {
        int a = (int)prng_below(&state, 4), b = (a + 1 + (int)prng_below(&state, 3)) % 4;
        weft_sim_sleep(sim, prng_below(&state, 10000000));
        weft_sim_cut(sim, a, b);
        weft_sim_sleep(sim, prng_below(&state, 300000000));
        weft_sim_heal(sim, a, b);
    }
    s->over = true;
}

/* Links are cut for a while at every moment of the opening: that delays it, and nothing fails. */
static void open_through_cuts(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    static const int mixed[] = {2, 0, 3, 1};
    uint64_t state = s->w.seed * 100 + (uint64_t)me;
    if (me == 0)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, cutter, s));
    weft_group *meet = make(agent, "meet");
    for (bool goes_on = true; goes_on; s->rounds += me == 0) {
        weft_group *group;
        weft_tensor *x = tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT64, me + (me == 0 && s->over ? 100 : 0));
        weft_sim_sleep(s->w.sim, prng_below(&state, 20000000));
        MUST_OK(weft_group_open(agent, "all", mixed, 4, WEFT_FOREVER, &group, NULL));
        MUST_OK(weft_group_allreduce(group, x, WEFT_OP_SUM, WEFT_FOREVER));
        double sum = weft_tensor_get_f64(x, 0);
        MUST(sum == 6 || sum == 106);
        goes_on = sum == 6;
        weft_tensor_unref(x);
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_group_close(group);
    }
    weft_group_close(meet);
}

static void test_open_through_cuts(void **state)
{
    int rounds = 0;
    for (uint64_t seed = 1; seed <= world_seeds(20); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM, .size = 4, .seed = seed, .program = open_through_cuts, .adjust = adjust}};
        s.w.arg = &s;
        world_run(&s.w);
        rounds += s.rounds;
    }
    printf("%d groups of four were opened while links were cut\n", rounds);
}

/* Ranks 1 and 2 wait for rank 0, which has a group of that name with others. */
static void other_ranks(weft_agent *agent, void *arg)
{
    static const int pair[] = {0, 1}, wide[] = {0, 1, 2};
    int me = weft_agent_rank(agent);
    weft_group *meet = make(agent, "meet"), *two = NULL;
    if (me < 2)
        MUST_OK(weft_group_open(agent, "g", pair, 2, 0, &two, NULL));
    else
        must_fail(agent, "g", wide, 3, 200, WEFT_ERR_INVALID, "rank 0 gave other members for that name");
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(two);
    MUST_OK(weft_group_open(agent, "g", wide, 3, 0, &two, NULL));
    MUST_OK(weft_group_barrier(two, WEFT_FOREVER));
    weft_group_close(two);
    weft_group_close(meet);
}

WORLD_TEST(other_ranks, 5, 1, .size = SIZE, .adjust = adjust)

typedef struct second {
    scene *s;
    weft_agent *agent;
    int done;
} second;

static void open_again(weft_sim *sim, int rank, void *arg)
{
    second *o = arg;
    (void)rank;
    weft_sim_sleep(sim, 20000000);
    must_fail(o->agent, "all", NULL, 0, 0, WEFT_ERR_EXISTS, "name is \"all\"");
    o->done = 1;
}

/* By two threads of one worker: one of them opens it. */
static void twice_at_once(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    second o = {s, agent, me == 2};
    if (me == 2)
        weft_sim_sleep(s->w.sim, 50000000);
    else
        MUST_OK(weft_sim_spawn(s->w.sim, me, open_again, &o));
    weft_group *all = make(agent, "all");
    while (!o.done)
        weft_sim_sleep(s->w.sim, 1000000);
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
    weft_group_close(all);
}

static void test_twice_at_once(void **state)
{
    scene s = {.w = {.fabric = WORLD_SIM, .size = SIZE, .seed = 1, .program = twice_at_once, .adjust = adjust}};
    s.w.arg = &s;
    world_run(&s.w);
}

/* If the handler runs on a thread that can wait (weft/future.h), the others do not call, and the time passes. */
static weft_status run_open(weft_call *call, void *user)
{
    weft_future *never = weft_future_create(weft_call_agent(call));
    MUST(never);
    if (weft_future_wait(never, 1) == WEFT_ERR_DEADLOCK)
        must_fail(weft_call_agent(call), "all", NULL, 0, 0, WEFT_ERR_DEADLOCK, "nothing was started");
    else
        must_fail(weft_call_agent(call), "all", NULL, 0, 1, WEFT_ERR_TIMEOUT, "missing is");
    weft_future_unref(never);
    return WEFT_OK;
}

static const weft_function functions[] = {{.name = "open", .flags = WEFT_FUNCTION_INLINE, .run = run_open}};

static void from_inline(weft_agent *agent, void *arg)
{
    weft_group *meet = make(agent, "meet");
    if (weft_agent_rank(agent) == 0)
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "open", WEFT_NO_VALUES, NULL, NULL));
    else /* a thread that waits hands such handlers to the executor */
        world_sleep_ms(arg, 500);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
}

WORLD_TEST(from_inline, 1, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .adjust = adjust)

/* ---- Held for one who is slow ------------------------------------------------------------------------------------ */

/* The parts of an allgather go round a ring in long messages. One member does not call it for a while. Its neighbour
 * passes on the parts of all members; the slow one holds at most four long messages of them. */
static void slow_in_a_ring(weft_agent *agent, void *arg)
{
    enum { SLOW = 3, ELEMENTS = 32 << 10, HELD_MOST = 4 * (32 << 10) + 4096 };
    size_t size = (size_t)weft_agent_world_size(agent), me = (size_t)weft_agent_rank(agent);
    weft_tensor *x = tensor_full(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32, (double)me);
    weft_tensor *y = tensor_zeros(WEFT_SHAPE((int64_t)size * ELEMENTS), WEFT_DTYPE_FLOAT32);
    for (int round = 0; round < 2; round++) { /* in the first one members learn that they may send long messages */
        weft_group *all = make(agent, round ? "second" : "first");
        MUST_OK(weft_group_set_algorithms(all, "allgather * * ring"));
        if (round && me == SLOW) {
            world_sleep_ms(arg, 300);
            MUST(world_stats(agent).bytes_held < HELD_MOST);
        }
        MUST_OK(weft_group_allgather(all, x, y, WEFT_FOREVER));
        for (size_t i = 0; i < size; i++)
            MUST(weft_tensor_get_f64(y, (int64_t)i * ELEMENTS) == (double)i);
        MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
        weft_group_close(all);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

WORLD_TEST(slow_in_a_ring, 3, 1, .size = 8)

/* ---- News that come late ----------------------------------------------------------------------------------------- */

/* Actor 1 makes a group with rank 2 before that has joined: it waits for the news. Rank 3 never joins. */
static void waits_for_news(stage *s, int actor)
{
    const int pair[] = {1, 2}, nobody[] = {actor, 3};
    weft_group *group = NULL;
    if (actor == 2) {
        stage_await_flag(s, 0, 1);
        stage_sleep_ms(s, 20);
    }
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 1)
        atomic_store(&s->flags[0], 1);
    if (actor) {
        MUST_OK(weft_group_open(agent, "pair", pair, 2, 0, &group, NULL));
        MUST_OK(weft_group_barrier(group, 20000));
        weft_group_close(group);
        MUST_BE(weft_group_open(agent, "nobody", nobody, 2, 200, &group, NULL), WEFT_ERR_NOT_FOUND);
        atomic_fetch_add(&s->flags[1], 1);
    } else {
        stage_await_flag(s, 1, 2);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(waits_for_news, 3, 20, 2)

/* ---- Ranks that were taken again --------------------------------------------------------------------------------- */

static const int trio[] = {0, 1, 2};

/* For less than the latency of a message. */
static void wait_a_little(const stage *s)
{
    if (s->sim)
        weft_sim_sleep(s->sim, 1000);
    else
        sched_yield();
}

/* Actor 2 joins, then leaves or dies. Actors 0 and 1 get their agents when both know that. */
static weft_agent *see_rank_2_go(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    stage_await_workers(s, agent, 3);
    atomic_fetch_add(&s->flags[5], 1);
    if (actor == 2) {
        stage_await_flag(s, 5, 3);
        if (s->sim && weft_sim_now(s->sim) / 7 % 2)
            weft_sim_kill(s->sim, 2);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return NULL;
    }
    while (weft_agent_alive(agent, 2))
        stage_sleep_ms(s, 1);
    atomic_fetch_add(&s->flags[6], 1);
    stage_await_flag(s, 6, 2);
    return agent;
}

/* Actor 3 takes rank 2 again, and rank 0 tells rank 1 that by a flag. The store's news reach rank 1 later: by chance,
 * or because the network is cut for a while. */
static void waits_for_taken(stage *s, int actor)
{
    weft_agent *agent = NULL;
    weft_group *group = NULL;
    if (actor == 3) {
        stage_await_flag(s, 2, 1);
        agent = stage_open(s, actor, 2, NULL);
    } else {
        agent = see_rank_2_go(s, actor);
    }
    if (actor == 2)
        return;
    if (actor == 0) {
        bool is_cut = s->sim && weft_sim_now(s->sim) % 2;
        if (is_cut)
            weft_sim_cut(s->sim, 0, 1);
        atomic_store(&s->flags[2], 1);
        while (!weft_agent_alive(agent, 2))
            wait_a_little(s);
        atomic_store(&s->flags[3], is_cut ? 2 : 1);
        if (is_cut) {
            stage_sleep_ms(s, 1 + (int)(weft_sim_now(s->sim) % 40));
            weft_sim_heal(s->sim, 0, 1);
        }
    } else if (actor == 1) {
        while (!atomic_load(&s->flags[3]))
            wait_a_little(s);
        MUST(atomic_load(&s->flags[3]) == 1 || !weft_agent_alive(agent, 2));
    }
    MUST_OK(weft_group_open(agent, "trio", trio, 3, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, 20000));
    atomic_fetch_add(&s->flags[4], 1);
    stage_await_flag(s, 4, 3); /* a member that leaves at once may take its part in the barrier with it */
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(waits_for_taken, 4, 40, 3)

/* Actors join at any time, and some leave or die. Those who live open groups of all that rank 0 knows, again and again:
 * at last all that have stayed are in one. */
static void all_who_live(stage *s, int actor)
{
    enum { ACTORS = 4, STAYING = 2 };
    stage_sleep_ms(s, actor * 7);
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    bool goes_on = true;
    for (int i = 0; goes_on; i++) {
        weft_group *group = NULL;
        stage_sleep_ms(s, 1);
        weft_tensor *x =
            tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_INT32, actor == 0 && atomic_load(&s->flags[1]) == ACTORS - STAYING);
        weft_status status = weft_group_open(agent, "living", NULL, 0, 20 + 3 * actor, &group, NULL);
        MUST(!status || status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_PEER_LEFT);
        if (actor >= STAYING && i == 5) { /* with its group open, or on the way */
            atomic_fetch_add(&s->flags[1], 1);
            if (s->sim && actor == 3)
                weft_sim_kill(s->sim, 3);
            weft_group_close(group);
            weft_tensor_unref(x);
            MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
            return;
        }
        if (!status)
            status = weft_group_allreduce(group, x, WEFT_OP_MAX, 1000);
        goes_on = status || weft_group_size(group) != STAYING || !weft_tensor_get_i64(x, 0);
        weft_tensor_unref(x);
        weft_group_close(group);
    }
    atomic_fetch_add(&s->flags[0], 1);
    stage_await_flag(s, 0, STAYING);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(all_who_live, 4, 30, 2)

typedef struct maker {
    stage *s;
    weft_agent *agent;
    const char *name;
} maker;

static void make_with_dead(const maker *m)
{
    weft_group *group = NULL;
    uint64_t began = m->s->sim ? weft_sim_now(m->s->sim) : 0;
    weft_status status = weft_group_open(m->agent, m->name, trio, 3, WEFT_FOREVER, &group, NULL);
    MUST(status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD);
    MUST(!m->s->sim || weft_sim_now(m->s->sim) - began < 200000);
    atomic_fetch_add(&m->s->flags[0], 1);
}

static void make_beside(weft_sim *sim, int rank, void *arg)
{
    (void)rank;
    weft_sim_sleep(sim, weft_sim_now(sim) % 30000); /* also while the sync of another one is under way */
    make_with_dead(arg);
}

/* Nobody takes rank 2 again: that is found out at once, by several threads at the same time. */
static void waits_for_no_dead(stage *s, int actor)
{
    weft_agent *agent = see_rank_2_go(s, actor);
    if (!agent)
        return;
    maker makers[] = {{s, agent, "a"}, {s, agent, "b"}, {s, agent, "c"}, {s, agent, "d"}};
    MUST_OK(weft_agent_set_call_timeout(agent, WEFT_FOREVER));
    for (int i = 1; s->sim && i < 4; i++)
        MUST_OK(weft_sim_spawn(s->sim, actor, make_beside, &makers[i]));
    make_with_dead(&makers[0]);
    stage_await_flag(s, 0, s->sim ? 8 : 2);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(waits_for_no_dead, 3, 20, 2)

typedef struct closer {
    stage *s;
    weft_agent *agent;
} closer;

static void close_while_waiting(weft_sim *sim, int rank, void *arg)
{
    (void)sim, (void)rank;
    closer *c = arg;
    stage_sleep_ms(c->s, 50);
    atomic_store(&c->s->flags[1], 1);
    MUST_OK(weft_agent_close(c->agent, WEFT_FOREVER));
    atomic_store(&c->s->flags[2], 1);
}

/* The agent closes, or rank 0 dies, while a thread waits for news: the opening of the group ends. */
static void waits_in_vain(stage *s, int actor)
{
    static const int nobody[] = {1, 3};
    weft_group *group = NULL;
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    if (actor == 0)
        atomic_store(&s->flags[3], 1 + (int)(weft_sim_now(s->sim) % 2)); /* it differs from seed to seed */
    while (!atomic_load(&s->flags[3]))
        stage_sleep_ms(s, 1);
    bool closes = atomic_load(&s->flags[3]) == 2;
    if (actor == 0) {
        stage_await_flag(s, 0, 1);
        stage_sleep_ms(s, 100);
        if (!closes)
            weft_sim_kill(s->sim, 0);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    closer c = {s, agent};
    atomic_store(&s->flags[0], 1);
    if (closes)
        MUST_OK(weft_sim_spawn(s->sim, 1, close_while_waiting, &c));
    weft_status status = weft_group_open(agent, "nobody", nobody, 2, 0, &group, NULL);
    MUST(status == WEFT_ERR_CLOSED || status == WEFT_ERR_STORE_LOST);
    if (closes)
        stage_await_flag(s, 2, 1);
    else
        (void)!weft_agent_close(agent, WEFT_FOREVER);
}

STAGE_TEST(waits_in_vain, 2, 20, 0)

static void stop_while_waiting(weft_sim *sim, int rank, void *arg)
{
    (void)sim, (void)rank;
    closer *c = arg;
    stage_sleep_ms(c->s, 50);
    weft_agent_stop(c->agent);
    atomic_store(&c->s->flags[2], 1);
}

/* The agent of a member stops while it waits for the others: they hear it, and open another group without it. */
static void stops_while_opening(stage *s, int actor)
{
    static const int without[] = {2, 0};
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    weft_group *group = NULL;
    stage_await_workers(s, agent, 3);
    closer c = {s, agent};
    if (actor == 1) {
        MUST_OK(weft_sim_spawn(s->sim, 1, stop_while_waiting, &c));
        must_fail(agent, "trio", trio, 3, WEFT_FOREVER, WEFT_ERR_CLOSED, "trio");
        stage_await_flag(s, 2, 1);
        return;
    }
    if (actor == 2)
        must_fail(agent, "trio", trio, 3, WEFT_FOREVER, WEFT_ERR_PEER_LEFT, "rank 1 has left the job");
    while (weft_agent_alive(agent, 1))
        stage_sleep_ms(s, 1);
    MUST_OK(weft_group_open(agent, "trio", without, 2, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(stops_while_opening, 3, 20, 0)

/* What happens to rank 0, which has the store, while rank 1 waits for its answer. */
enum { PAUSED = 1, PAUSED_AND_KILLED, CUT_AND_KILLED, PAUSED_AND_CLOSED };

static void disturb(weft_sim *sim, int rank, void *arg)
{
    (void)rank;
    stage *s = arg;
    int how = atomic_load(&s->flags[3]);
    if (how == CUT_AND_KILLED)
        weft_sim_cut(sim, 0, 1);
    else
        weft_sim_pause(sim, 0);
    atomic_store(&s->flags[4], 1);
    stage_sleep_ms(s, 100);
    if (how == PAUSED_AND_KILLED || how == CUT_AND_KILLED)
        weft_sim_kill(sim, 0);
    stage_sleep_ms(s, 900);
    if (how == PAUSED || how == PAUSED_AND_CLOSED)
        weft_sim_resume(sim, 0);
}

/* The store does not answer: the opening of the group ends at its limit, or when the store is lost or the agent
 * closes. */
static void waits_for_lost_store(stage *s, int actor)
{
    weft_group *group = NULL;
    weft_agent *agent = see_rank_2_go(s, actor);
    if (actor == 1) {
        int how = PAUSED + (int)(weft_sim_now(s->sim) % 4);
        closer c = {s, agent};
        atomic_store(&s->flags[3], how);
        MUST_OK(weft_sim_spawn(s->sim, 1, disturb, s));
        stage_await_flag(s, 4, 1);
        MUST_OK(weft_agent_set_call_timeout(agent, how == PAUSED ? 300 : WEFT_FOREVER));
        if (how == PAUSED_AND_CLOSED)
            MUST_OK(weft_sim_spawn(s->sim, 1, close_while_waiting, &c));
        uint64_t began = weft_sim_now(s->sim);
        weft_status status = weft_group_open(agent, "trio", trio, 3, 0, &group, NULL);
        uint64_t took_ms = (weft_sim_now(s->sim) - began) / 1000000;
        if (how == PAUSED) {
            MUST(status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD);
            MUST(took_ms >= 299 && took_ms < 310);
        } else if (how == PAUSED_AND_CLOSED) {
            MUST_BE(status, WEFT_ERR_CLOSED);
            MUST(took_ms < 200);
            stage_await_flag(s, 2, 1);
            return;
        } else {
            MUST_BE(status, WEFT_ERR_STORE_LOST);
            MUST(took_ms < 20000);
        }
        (void)!weft_agent_close(agent, WEFT_FOREVER);
    } else if (agent) {
        (void)!weft_agent_close(agent, WEFT_FOREVER);
    }
}

STAGE_TEST(waits_for_lost_store, 3, 40, 0)

/* ---- Shrinking ------------------------------------------------------------------------------------------------ */

static void await_gone(stage *s, weft_agent *agent, int rank)
{
    while (weft_agent_alive(agent, rank))
        stage_sleep_ms(s, 1);
}

/*
 * Rank 3 does not come to an operation, and leaves. Ranks 0 and 1 shrink; rank 2 calls only when their time is over:
 * that is a limit that has passed, and the next calls meet.
 */
static void shrinks_late(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    weft_group *group, *less = NULL;
    stage_await_workers(s, agent, 4);
    MUST_OK(weft_group_open(agent, "g", (int[]){0, 1, 2, 3}, 4, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, 20000));
    if (actor == 3) {
        stage_await_flag(s, 0, 3);
        weft_group_close(group);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    MUST_BE(weft_group_barrier(group, 200), WEFT_ERR_TIMEOUT);
    atomic_fetch_add(&s->flags[0], 1);
    await_gone(s, agent, 3);
    atomic_fetch_add(&s->flags[1], 1);
    stage_await_flag(s, 1, 3);
    weft_error *error = NULL;
    if (actor < 2) {
        MUST_BE(weft_group_shrink(group, 3000, &less, &error), WEFT_ERR_TIMEOUT); /* both call it within that time */
        MUST(strstr(weft_error_message(error), "missing is rank 2"));
        weft_error_unref(error);
        atomic_fetch_add(&s->flags[2], 1);
    }
    stage_await_flag(s, 2, 2);
    weft_status status = WEFT_ERR_TIMEOUT;
    while (status == WEFT_ERR_TIMEOUT)
        status = weft_group_shrink(group, 5000, &less, NULL);
    MUST_OK(status);
    MUST(weft_group_size(less) == 3);
    MUST_OK(weft_group_barrier(less, 20000));
    weft_group_close(less);
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(shrinks_late, 4, 5, 2)

UNIT_MAIN(test_shrinks_late, test_fails_on_one, test_fails_on_some, test_open_with_death, test_open_through_cuts,
          test_other_ranks, test_twice_at_once, test_from_inline, test_slow_in_a_ring, test_all_who_live,
          test_waits_for_news, test_waits_in_vain, test_stops_while_opening, test_waits_for_taken,
          test_waits_for_no_dead, test_waits_for_lost_store)
