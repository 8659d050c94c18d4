/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_making.c - groups that some members make late, less often than others, or never: members come together
 * again, whoever is late hears why, and nothing is held for a group that is over.
 */
#include "coll/coll.h"
#include "rpc/stage.h"
#include "prng.h"

#include <sched.h>

enum { SIZE = 3, PART = 250, PART_BYTES = 1000 };

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
}

static void small_budget(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
    options->memory_budget_bytes = 32 << 10;
}

static weft_group *make(weft_agent *agent, const char *name)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, name, NULL, 0, &group, NULL));
    return group;
}

static void must_say(const weft_group *group, const char *words)
{
    const char *message = weft_error_message(weft_group_error(group));
    if (!strstr(message, words)) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", message, words);
        abort();
    }
}

/* Makes the group, passes a barrier, destroys it. */
static weft_status meet_once(weft_agent *agent, const char *name, int64_t timeout_ms)
{
    weft_group *group = make(agent, name);
    weft_status status = weft_group_barrier(group, timeout_ms);
    weft_group_close(group);
    return status;
}

/* ---- Made less often than by others ------------------------------------------------------------------------------ */

/* Tries until it succeeds on all members, which stay in step: each time with a longer limit, as the machine may be
 * busy. */
static int attempts(weft_agent *agent, weft_group *meet, const char *name)
{
    int count = 0;
    bool failed = true;
    for (int64_t limit_ms = 300; failed; limit_ms *= 2) {
        MUST(++count <= 10);
        weft_tensor *flag =
            weft_tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_INT32, meet_once(agent, name, limit_ms) != WEFT_OK);
        MUST_OK(weft_group_allreduce(meet, flag, WEFT_OP_MAX, WEFT_FOREVER));
        failed = weft_tensor_get_i64(flag, 0);
        weft_tensor_unref(flag);
    }
    return count;
}

/* Member 2 fails to make the group the first time. */
static void behind(weft_agent *agent, void *arg)
{
    static const int wrong[] = {0, 1, 77};
    weft_group *meet = make(agent, "meet"), *none = NULL;
    if (weft_agent_rank(agent) == 2)
        MUST_BE(weft_group_open(agent, "all", wrong, 3, &none, NULL), WEFT_ERR_NOT_FOUND);
    else
        MUST_BE(meet_once(agent, "all", 100), WEFT_ERR_TIMEOUT);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    int count = attempts(agent, meet, "all"); /* the first one tells member 2 that the others are ahead */
    MUST(((world *)arg)->sim ? count == 2 : count >= 2);
    for (int i = 0; i < 3; i++)
        MUST_OK(meet_once(agent, "all", 20000));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
}

WORLD_TEST(behind, 10, 1, .size = SIZE, .adjust = adjust)

/* Some members make the group several times, and do not always call an operation: then no message is sent about that
 * group. */
static void behind_far(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_group *meet = make(agent, "meet");
    uint64_t state = w->seed * 100 + (uint64_t)weft_agent_rank(agent);
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < prng_below(&state, 4); i++) {
            weft_group *all = make(agent, "all");
            if (state >> 32 & 1)
                (void)!weft_group_barrier(all, 50); /* by chance it succeeds */
            weft_group_close(all);
        }
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        int count = attempts(agent, meet, "all");
        MUST(!w->sim || count <= 2);
        for (int i = 0; i < 3; i++)
            MUST_OK(meet_once(agent, "all", 20000));
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    }
    weft_group_close(meet);
}

WORLD_TEST(behind_far, 20, 2, .size = 4, .adjust = adjust)

typedef struct scene {
    world w;
    int victim;
    bool pause;
} scene;

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

/* One dies, or is stopped, while members find out which group they make: nobody waits forever, and those who live
 * meet. */
static void behind_with_death(weft_agent *agent, void *arg)
{
    scene *s = arg;
    static const int wrong[] = {0, 1, 77};
    int me = weft_agent_rank(agent), living[SIZE], count = 0;
    weft_group *none = NULL;
    if (me == (s->victim ? 0 : 1))
        MUST_OK(weft_sim_spawn(s->w.sim, me, killer, s));
    if (me == 2)
        MUST_BE(weft_group_open(agent, "all", wrong, 3, &none, NULL), WEFT_ERR_NOT_FOUND);
    weft_status status = WEFT_OK;
    while (status != WEFT_ERR_PEER_DEAD && status != WEFT_ERR_STORE_LOST && status != WEFT_ERR_EVICTED) {
        weft_group *group;
        uint64_t began = weft_sim_now(s->w.sim);
        status = weft_group_open(agent, "all", NULL, 0, &group, NULL);
        if (me != s->victim)
            MUST(weft_sim_now(s->w.sim) - began < 1500000000);
        if (status)
            continue;
        status = weft_group_barrier(group, 50);
        weft_group_close(group);
        weft_sim_sleep(s->w.sim, 50000000);
    }
    if (me == s->victim || !s->victim)
        return;
    for (int i = 0; i < SIZE; i++)
        if (i != s->victim)
            living[count++] = i;
    for (status = WEFT_ERR_TIMEOUT; status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_CANCELLED;) {
        weft_group *group;
        MUST_OK(weft_group_open(agent, "all", living, (size_t)count, &group, NULL));
        status = weft_group_barrier(group, 1000);
        weft_group_close(group);
    }
    MUST_OK(status);
}

static void test_behind_with_death(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(30); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = SIZE,
                         .seed = seed,
                         .program = behind_with_death,
                         .adjust = adjust,
                         .close_may_fail = true},
                   .victim = (int)(seed % SIZE),
                   .pause = seed % SIZE && seed % 2};
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* ---- Never made -------------------------------------------------------------------------------------------------- */

/* Nothing is held but words for the next barrier: less than one part of an operation. */
static void let_go(world *w, weft_agent *agent)
{
    for (int i = 0; i < 20000 && world_stats(agent).bytes_held >= PART_BYTES; i++)
        world_sleep_ms(w, 1);
    MUST(world_stats(agent).bytes_held < PART_BYTES);
}

/* Members 0 and 1 begin an operation in groups that member 2 never makes. Member 2 holds nothing of a group that is
 * over, even if the others have not destroyed it yet. If it makes the group later it hears why that is over. */
static void never_made(weft_agent *agent, void *arg)
{
    enum { GROUPS = 300, LAST = GROUPS - 1 };
    int me = weft_agent_rank(agent);
    weft_group *meet = make(agent, "meet");
    char name[16];
    for (int i = 0; me < 2 && i < GROUPS; i++) {
        weft_tensor *x = weft_tensor_zeros(WEFT_SHAPE(SIZE * PART), WEFT_DTYPE_FLOAT32), *y = weft_tensor_clone(x);
        weft_future *future = NULL;
        snprintf(name, sizeof(name), "g%d", i);
        if (i == LAST)
            MUST_OK(
                weft_group_barrier(meet, WEFT_FOREVER)); /* both are as far: the last one is the last that is over */
        weft_group *group = make(agent, name);
        weft_status status = weft_group_all_to_all_async(group, x, y, WEFT_FOREVER, &future);
        if (me == 0 && i % 2)
            weft_group_abort(group, NULL);
        else if (me == 0 && !status)
            MUST_OK(weft_future_cancel(future));
        if (!status)
            MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
        weft_future_unref(future);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
        if (i == LAST)
            MUST_OK(weft_group_barrier(meet, WEFT_FOREVER)); /* member 2 looks before the last one is destroyed */
        weft_group_close(group);
    }
    if (me == 2) {
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        let_go(arg, agent);
        weft_group *late = make(agent, "g299");
        MUST_BE(weft_group_barrier(late, WEFT_FOREVER), WEFT_ERR_CANCELLED);
        must_say(late, "it was over before rank 2 made it: rank ");
        weft_group_close(late);
        late = make(agent, "g0"); /* nothing is known of it any more: the others say that they have closed it */
        MUST_BE(weft_group_barrier(late, WEFT_FOREVER), WEFT_ERR_CANCELLED);
        weft_group_close(late);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
}

WORLD_TEST(never_made, 4, 1, .size = SIZE, .adjust = small_budget)

/* Member 1 dies in such groups, which member 0 does not destroy. */
static void never_made_with_death(weft_agent *agent, void *arg)
{
    enum { GROUPS = 6 };
    world *w = arg;
    int me = weft_agent_rank(agent);
    weft_group *groups[GROUPS], *meet = make(agent, "meet");
    weft_tensor *x = weft_tensor_zeros(WEFT_SHAPE(SIZE * PART), WEFT_DTYPE_FLOAT32), *y[GROUPS] = {NULL};
    for (int i = 0; me != 2 && i < GROUPS; i++) {
        char name[16];
        weft_future *future = NULL;
        snprintf(name, sizeof(name), "g%d", i);
        groups[i] = make(agent, name);
        y[i] = weft_tensor_clone(x);
        MUST_OK(weft_group_all_to_all_async(groups[i], x, y[i], WEFT_FOREVER, &future));
        weft_future_unref(future);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me == 2)
        MUST(world_stats(agent).bytes_held > 0);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me == 1) { /* when its last words have arrived */
        weft_sim_sleep(w->sim, 10000000);
        weft_sim_kill(w->sim, 1);
    }
    MUST_BE(weft_group_barrier(meet, WEFT_FOREVER), WEFT_ERR_PEER_DEAD);
    int living[] = {0, 2};
    weft_group *both;
    MUST_OK(weft_group_open(agent, "both", living, 2, &both, NULL));
    if (me == 2)
        let_go(w, agent);
    MUST_OK(weft_group_barrier(both, WEFT_FOREVER));
    for (int i = 0; me == 0 && i < GROUPS; i++) {
        weft_group_close(groups[i]);
        weft_tensor_unref(y[i]);
    }
    weft_group_close(both);
    weft_group_close(meet);
    weft_tensor_unref(x);
}

WORLD_TEST(never_made_with_death, 10, 0, .size = SIZE, .adjust = small_budget)

/* ---- Held for one who is slow ------------------------------------------------------------------------------------ */

/* The parts of an allgather go round a ring in long messages. One member does not call it for a while. Its neighbour
 * passes on the parts of all members; the slow one holds at most four long messages of them. */
static void slow_in_a_ring(weft_agent *agent, void *arg)
{
    enum { SLOW = 3, ELEMENTS = 32 << 10, HELD_MOST = 4 * (32 << 10) + 4096 };
    size_t size = (size_t)weft_agent_world_size(agent), me = (size_t)weft_agent_rank(agent);
    weft_tensor *x = weft_tensor_full(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32, (double)me);
    weft_tensor *y = weft_tensor_zeros(WEFT_SHAPE((int64_t)size * ELEMENTS), WEFT_DTYPE_FLOAT32);
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
        MUST_OK(weft_group_open(agent, "pair", pair, 2, &group, NULL));
        MUST_OK(weft_group_barrier(group, 20000));
        weft_group_close(group);
        MUST_OK(weft_agent_set_call_timeout(agent, 200));
        MUST_BE(weft_group_open(agent, "nobody", nobody, 2, &group, NULL), WEFT_ERR_NOT_FOUND);
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
    MUST_OK(weft_group_open(agent, "trio", trio, 3, &group, NULL));
    MUST_OK(weft_group_barrier(group, 20000));
    atomic_fetch_add(&s->flags[4], 1);
    stage_await_flag(s, 4, 3); /* a member that leaves at once may take its part in the barrier with it */
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

STAGE_TEST(waits_for_taken, 4, 40, 3)

typedef struct maker {
    stage *s;
    weft_agent *agent;
    const char *name;
} maker;

static void make_with_dead(const maker *m)
{
    weft_group *group = NULL;
    uint64_t began = m->s->sim ? weft_sim_now(m->s->sim) : 0;
    MUST_OK(weft_group_open(m->agent, m->name, trio, 3, &group, NULL));
    weft_status status = weft_group_barrier(group, WEFT_FOREVER);
    MUST(status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD);
    MUST(!m->s->sim || weft_sim_now(m->s->sim) - began < 200000);
    weft_group_close(group);
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

/* The agent closes, or rank 0 dies, while a thread waits for news: the making of the group ends. */
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
    weft_status status = weft_group_open(agent, "nobody", nobody, 2, &group, NULL);
    MUST(status == WEFT_ERR_CLOSED || status == WEFT_ERR_STORE_LOST);
    if (closes)
        stage_await_flag(s, 2, 1);
    else
        (void)!weft_agent_close(agent, WEFT_FOREVER);
}

STAGE_TEST(waits_in_vain, 2, 20, 0)

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

/* The store does not answer: the making of the group ends at its limit, or when the store is lost or the agent
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
        weft_status status = weft_group_open(agent, "trio", trio, 3, &group, NULL);
        uint64_t took_ms = (weft_sim_now(s->sim) - began) / 1000000;
        if (how == PAUSED) {
            MUST_OK(status);
            MUST(took_ms >= 299 && took_ms < 310);
            status = weft_group_barrier(group, WEFT_FOREVER);
            MUST(status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD);
            weft_group_close(group);
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

/* ---- Shrinking ------------------------------------------------------------------------------------------------------- */

static void await_gone(stage *s, weft_agent *agent, int rank)
{
    while (weft_agent_alive(agent, rank))
        stage_sleep_ms(s, 1);
}

/*
 * Rank 3 does not come to an operation, and leaves. Ranks 0 and 1 shrink; rank 2 calls only when their time is over: it has a group of
 * that name, whose time is over too, with other members. That is no contradiction: a limit that has passed, and the next calls meet.
 */
static void shrinks_late(stage *s, int actor)
{
    weft_agent *agent = stage_open(s, actor, actor, NULL);
    weft_group *group, *less = NULL;
    stage_await_workers(s, agent, 4);
    MUST_OK(weft_group_open(agent, "g", (int[]){0, 1, 2, 3}, 4, &group, NULL));
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
        MUST(strstr(weft_error_message(error), "rank 2 (has not called weft_group_shrink"));
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

UNIT_MAIN(test_shrinks_late, test_behind, test_behind_far, test_behind_with_death, test_never_made,
          test_never_made_with_death, test_slow_in_a_ring, test_waits_for_news, test_waits_in_vain,
          test_waits_for_taken, test_waits_for_no_dead, test_waits_for_lost_store)
