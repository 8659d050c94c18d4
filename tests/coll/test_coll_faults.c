/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_faults.c - members that die, stop, are missing or do not agree, at every step of operations: all others
 * hear of it, with the right name and in bounded time; what succeeded is right; and those who live go on in a group
 * of theirs.
 *
 * test_coll_faults [--seeds N] [--first S] [--fabrics]: as many runs of the random program; the default is for
 * tools/check. --fabrics: only the program with several fabrics.
 */
#include "coll/coll.h"
#include "rpc/spoiler.h"
#include "sim/sim.h"
#include "prng.h"
#include "tensors.h"

enum { SIZE = 5, OPERATIONS = 12, BOUND_S = 20 };

typedef struct scene {
    world w;
    uint64_t seed;
    int victim;
    bool pause;                  /* it is stopped, and goes on when it has been declared dead */
    uint64_t delay_ns, death_ns; /* after the first member began; when it was */
    int64_t most;                /* elements of a tensor */
    int over, before;            /* members that are through; with their program before the death */
    int unopened;                /* members whose weft_group_open failed */
    int evicted;                 /* the victim, put out of the job */
    bool has_fabrics;            /* several, and `fabrics` does harm to them */
    bool early;                  /* it dies while the group is opened, or shortly after */
    bool has_levels;             /* several members on a host, and several hosts: most operations are in their memory */
    spoiler fabrics;
} scene;

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
}

static void adjust_fabrics(weft_agent_options *options, void *arg)
{
    scene *s = arg;
    adjust(options, arg);
    if (s->has_fabrics)
        spoiler_choose(&s->fabrics, options);
}

static weft_tensor *filled(int64_t count, double value)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT64, value);
    MUST(x);
    return x;
}

static void check_all(const weft_tensor *x, double value)
{
    const double *data = weft_tensor_data(x);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        MUST(data[i] == value);
}

/* The i-th operation of a program; its result is looked at if it succeeded. */
static weft_status operate(weft_group *group, uint64_t seed, int i, int64_t most)
{
    uint64_t chance = prng_mix(seed * 1000 + (uint64_t)i);
    size_t size = weft_group_size(group), me = (size_t)weft_group_index(group), root = chance / 8 % size;
    int64_t count = (int64_t)(chance / 64 % (uint64_t)most);
    weft_tensor *x = filled(count, (double)me + 1), *y = NULL;
    double sum = (double)(size * (size + 1) / 2);
    weft_status status;
    switch (chance % 8) {
    case 0:
        status = weft_group_barrier(group, WEFT_FOREVER);
        break;
    case 4:
        y = me == root ? filled(count * (int64_t)size, -1) : NULL;
        status = weft_group_gather(group, x, y, root, WEFT_FOREVER);
        for (size_t k = 0; !status && y && k < size && count; k++)
            MUST(((double *)weft_tensor_data(y))[(int64_t)k * count] == (double)k + 1);
        break;
    case 5:
        y = me == root ? filled(count * (int64_t)size, (double)me + 1) : NULL;
        status = weft_group_scatter(group, y, x, root, WEFT_FOREVER);
        if (!status)
            check_all(x, (double)root + 1);
        break;
    case 1:
        status = weft_group_broadcast(group, x, root, WEFT_FOREVER);
        if (!status)
            check_all(x, (double)root + 1);
        break;
    case 2:
        status = weft_group_reduce(group, x, WEFT_OP_SUM, root, WEFT_FOREVER);
        if (!status)
            check_all(x, me == root ? sum : (double)me + 1);
        break;
    case 3:
        y = filled(count * (int64_t)size, -1);
        status = weft_group_allgather(group, x, y, WEFT_FOREVER);
        for (size_t k = 0; !status && k < size && count; k++)
            MUST(((double *)weft_tensor_data(y))[(int64_t)k * count] == (double)k + 1);
        break;
    default:
        status = weft_group_allreduce(group, x, WEFT_OP_SUM, WEFT_FOREVER);
        if (!status)
            check_all(x, sum);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    return status;
}

/* Without the victim, and without its name in anything. Those who could not open the group have none to shrink. */
static void go_on(scene *s, weft_agent *agent, weft_group *group)
{
    weft_group *left;
    int ranks[SIZE], count = 0;
    for (int i = 0; i < SIZE; i++)
        if (i != s->victim)
            ranks[count++] = i;
    if (s->early)
        MUST_OK(weft_group_open(agent, "left", ranks, (size_t)count, WEFT_FOREVER, &left, NULL));
    else
        MUST_OK(weft_group_shrink(group, WEFT_FOREVER, &left, NULL));
    MUST(weft_group_size(left) == SIZE - 1);
    for (int i = 0; i < 3; i++)
        MUST_OK(operate(left, s->seed + 77, i, s->most));
    weft_group_close(left);
}

static void killer(weft_sim *sim, int rank, void *arg)
{
    scene *s = arg;
    weft_sim_sleep(sim, s->delay_ns);
    s->death_ns = weft_sim_now(sim);
    if (s->pause)
        weft_sim_pause(sim, s->victim);
    else
        weft_sim_kill(sim, s->victim);
}

static void with_death(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *group = NULL;
    weft_error *error = NULL;
    if (me == 0 && s->early)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, killer, s));
    weft_status status = weft_group_open(agent, "all", NULL, 0, WEFT_FOREVER, &group, &error);
    MUST(status == WEFT_OK || me == s->victim ||
         (s->early && status == WEFT_ERR_PEER_DEAD && weft_error_worker(error) == s->victim));
    s->unopened += status == WEFT_ERR_PEER_DEAD;
    weft_error_unref(error);
    if (me == 0 && !s->early)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, killer, s));
    for (int i = 0; !status && i < OPERATIONS; i++)
        status = operate(group, s->seed, i, s->most);
    s->before += me == 0 && !status;
    if (me == s->victim) { /* it lives yet, or was stopped and is out of the job */
        weft_sim_sleep(s->w.sim, BOUND_S * UINT64_C(1000000000));
        const weft_error *why = weft_group_error(group);
        bool evicted = why && weft_error_code(why) == WEFT_ERR_EVICTED;
        if (evicted && weft_error_worker(why) != me)
            fprintf(stderr, "\"%s\"\n", weft_error_message(why));
        MUST(!evicted || weft_error_worker(why) == me); /* nobody else is to blame */
        s->evicted += evicted;
        weft_group_close(group);
        return;
    }
    while (!status) /* all may have succeeded before the death: a later one does not */
        status = weft_group_barrier(group, WEFT_FOREVER);
    MUST_BE(status, WEFT_ERR_PEER_DEAD);
    MUST(!group || weft_error_worker(weft_group_error(group)) == s->victim);
    MUST(weft_sim_now(s->w.sim) < s->death_ns + BOUND_S * UINT64_C(1000000000));
    go_on(s, agent, group);
    weft_group_close(group);
    if (++s->over == SIZE - 1 && s->pause)
        weft_sim_resume(s->w.sim, s->victim);
}

static uint64_t seeds = 150, first_seed = 1;

static void play_deaths(bool has_fabrics, bool has_levels)
{
    int before = 0, evicted = 0, unopened = 0, partly = 0;
    for (uint64_t seed = first_seed; seed < first_seed + world_seeds(seeds); seed++) {
        uint64_t chance = prng_mix(seed);
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = SIZE,
                         .seed = seed,
                         .program = with_death,
                         .adjust = adjust_fabrics,
                         .ranks_per_host = has_levels ? 2 + (int)(chance / 2048 % 3) : 1,
                         .close_may_fail = true},
                   .seed = seed,
                   .victim = 1 + (int)(chance % (SIZE - 1)),
                   .pause = chance / 16 % 4 == 0,
                   .delay_ns = chance / 64 % (chance / 1024 % 2 ? 250000 : 2000000),
                   .most = chance / 1024 % 2 ? 50 : 40000,
                   .has_fabrics = has_fabrics,
                   .early = chance / 4096 % 2,
                   .has_levels = has_levels};
        s.w.arg = &s;
        spoiler_init(&s.fabrics, seed, SIZE);
        world_run(&s.w);
        before += s.before;
        evicted += s.evicted;
        unopened += s.unopened > 0;
        partly += s.unopened > 0 && s.unopened < SIZE - 1;
    }
    printf("%llu runs; in %d all operations were over before the death; in %d some could not open the group, in %d "
           "of these others could\n",
           (unsigned long long)world_seeds(seeds), before, unopened, partly);
    assert_true(seeds < 50 || evicted > 0);
    assert_true(seeds < 50 || 2 * before <= (int)world_seeds(seeds)); /* most meet it */
}

static void test_deaths(void **state)
{
    play_deaths(false, false);
}

static void test_deaths_and_fabrics(void **state)
{
    play_deaths(true, false);
}

/* Leaders and others die, before, while and after the members of a host get memory. */
static void test_deaths_and_hosts(void **state)
{
    play_deaths(false, true);
}

/* ---- A link that stays cut --------------------------------------------------------------------------------------- */

/* The link between members 1 and 2 is cut for good; both reach the store. All members hear which of the two cannot
 * reach which, and no member is told that it cannot reach itself. */
static void with_cut(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    if (me == 1)
        weft_sim_cut(s->w.sim, 1, 2);
    weft_status status = WEFT_OK;
    while (!status)
        status = weft_group_barrier(group, WEFT_FOREVER);
    MUST_BE(status, WEFT_ERR_UNREACHABLE);
    const weft_error *why = weft_group_error(group);
    const char *text = weft_error_message(why);
    if (!strstr(text, "rank 1 cannot reach rank 2") && !strstr(text, "rank 2 cannot reach rank 1")) {
        fprintf(stderr, "rank %d: \"%s\"\n", me, text);
        abort();
    }
    MUST(weft_error_worker(why) == 1 || weft_error_worker(why) == 2);
    MUST(weft_error_worker(why) != me);
    if (++s->over == SIZE)
        weft_sim_heal(s->w.sim, 1, 2);
    weft_group_close(group);
}

static void test_cut_link(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(10); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM, .size = SIZE, .seed = seed, .program = with_cut, .adjust = adjust},
                   .seed = seed};
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* Members 1 and 2 can open no further lane to each other when a payload needs one; the one for messages stays. All
 * members hear the reason that the fabric has. */
static void without_bulk(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *group;
    weft_tensor *small = filled(1, me), *large = filled(20000, me);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    if (me == 1)
        MUST_OK(weft_group_send(group, small, 2, WEFT_FOREVER));
    else if (me == 2)
        MUST_OK(weft_group_recv(group, small, 1, WEFT_FOREVER));
    if (me == 2) {
        wfi_sim_wall(s->w.sim, 1, 2, true);
        wfi_sim_wall(s->w.sim, 2, 1, true);
    }
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_status status = me == 1   ? weft_group_send(group, large, 2, WEFT_FOREVER)
                         : me == 2 ? weft_group_recv(group, large, 1, WEFT_FOREVER)
                                   : weft_group_barrier(group, WEFT_FOREVER);
    MUST_BE(status, WEFT_ERR_UNREACHABLE);
    const char *text = weft_error_message(weft_group_error(group));
    if (!strstr(text, "no bulk lane to worker 1 at sim:1, from either side: the connection was not answered")) {
        fprintf(stderr, "rank %d: \"%s\"\n", me, text);
        abort();
    }
    weft_group_close(group);
    weft_tensor_unref(small);
    weft_tensor_unref(large);
}

static void test_no_bulk(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(10); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM, .size = SIZE, .seed = seed, .program = without_bulk, .adjust = adjust},
                   .seed = seed};
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* ---- What has arrived before a member left ----------------------------------------------------------------------- */

enum { SENDS = 3, FLOATS = 400 };

typedef struct leaving {
    world w;
    int sender;
    bool dies;
    atomic_int given, through; /* the third member has given its part; the receiver has taken all */
} leaving;

static bool is_gone(weft_status status)
{
    return status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_STORE_LOST;
}

static const weft_function echo[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo}};

/* Messages to one worker arrive in order. So what this member gave has arrived there when a later call is answered. */
static void let_it_arrive(weft_agent *agent, size_t receiver)
{
    weft_tensor *x = filled(1, 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank((int)receiver), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, NULL));
    weft_tensor_unref(x);
}

static void give_and_leave(leaving *l, weft_agent *agent, weft_group *group, size_t receiver)
{
    weft_tensor *x = filled(FLOATS, 0);
    for (int i = 0; i < SENDS; i++) {
        weft_tensor_fill(x, i + 1);
        MUST_OK(weft_group_send(group, x, receiver, WEFT_FOREVER));
    }
    MUST_OK(weft_group_broadcast(group, x, (size_t)l->sender, WEFT_FOREVER));
    weft_tensor_fill(x, 10);
    MUST_OK(weft_group_reduce(group, x, WEFT_OP_SUM, receiver, WEFT_FOREVER));
    weft_tensor_unref(x);
    let_it_arrive(agent, receiver);
    while (!atomic_load(&l->given))
        world_sleep_ms(&l->w, 1);
    if (l->dies) {
        weft_sim_kill(l->w.sim, l->sender);
    }
}

/* It calls all operations when the sender is gone. */
static void take_late(weft_group *group, size_t sender)
{
    weft_tensor *x = filled(FLOATS, 0), *more = filled(FLOATS + 1, 0);
    MUST(is_gone(weft_group_barrier(group, WEFT_FOREVER)));            /* it needs others, and so takes no part */
    MUST(is_gone(weft_group_recv(group, more, sender, WEFT_FOREVER))); /* it does not fit what was sent */
    for (int i = 0; i < SENDS; i++) {
        MUST_OK(weft_group_recv(group, x, sender, WEFT_FOREVER));
        check_all(x, i + 1);
    }
    MUST(is_gone(weft_group_recv(group, x, sender, WEFT_FOREVER))); /* there is no more */
    weft_tensor_fill(x, 0);
    MUST_OK(weft_group_broadcast(group, x, sender, WEFT_FOREVER));
    check_all(x, SENDS);
    weft_tensor_fill(x, 1);
    MUST_OK(weft_group_reduce(group, x, WEFT_OP_SUM, (size_t)weft_group_index(group), WEFT_FOREVER));
    check_all(x, 1 + 10 + 10);
    MUST(is_gone(weft_group_broadcast(group, x, sender, WEFT_FOREVER)));
    MUST(is_gone(weft_error_code(weft_group_error(group))));
    weft_tensor_unref(x);
    weft_tensor_unref(more);
}

/* A sender gives what completes at once, and leaves, or dies. The receiver comes later. The third member gives its
 * part, too. */
static void left_behind(weft_agent *agent, void *arg)
{
    leaving *l = arg;
    int me = weft_agent_rank(agent);
    size_t receiver = 2, sender = (size_t)l->sender;
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    if ((size_t)me == sender) {
        give_and_leave(l, agent, group, receiver);
    } else if ((size_t)me == receiver) {
        while (!weft_group_error(group))
            world_sleep_ms(&l->w, 1);
        take_late(group, sender);
        atomic_store(&l->through, 1);
    } else {
        weft_tensor *x = filled(FLOATS, 0);
        MUST_OK(weft_group_broadcast(group, x, sender, WEFT_FOREVER));
        weft_tensor_fill(x, 10);
        MUST_OK(weft_group_reduce(group, x, WEFT_OP_SUM, receiver, WEFT_FOREVER));
        weft_tensor_unref(x);
        let_it_arrive(agent, receiver);
        atomic_store(&l->given, 1);
        while (!atomic_load(&l->through))
            world_sleep_ms(&l->w, 1);
    }
    weft_group_close(group);
}

static void test_left_behind(void **state)
{
    for (int tcp = 0; tcp < 2; tcp++)
        for (uint64_t seed = 1; seed <= (tcp ? 2 : world_seeds(30)); seed++) {
            leaving l = {.w = {.fabric = tcp ? WORLD_TCP : WORLD_SIM,
                               .size = 3,
                               .seed = seed,
                               .program = left_behind,
                               .adjust = adjust,
                               WORLD_FUNCTIONS(echo),
                               .stop = true,
                               .close_may_fail = true},
                         .sender = (int)(seed % 2), /* rank 0 has the store */
                         .dies = !tcp && seed / 2 % 2};
            l.w.arg = &l;
            world_run(&l.w);
        }
}

/* ---- Members that are asked how far they are --------------------------------------------------------------------- */

static void pauser(weft_sim *sim, int rank, void *arg)
{
    scene *s = arg;
    weft_sim_sleep(sim, s->delay_ns);
    weft_sim_pause(sim, s->victim);
    weft_sim_sleep(sim, UINT64_C(1000000000));
    weft_sim_resume(sim, s->victim);
}

/* A member that is slow for half a minute, and one that is stopped for a while, are asked again and again. None of
 * that ends the group; then one dies while the root waits for it. */
static void with_looks(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *group;
    weft_tensor *x = filled(1000, me + 1), *all = filled(1000 * (int64_t)SIZE, 0);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    if (me == 0)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, pauser, s));
    for (int i = 0; i < 4; i++) {
        if (me == 3)
            weft_sim_sleep(s->w.sim, UINT64_C(31000000000));
        MUST_OK(weft_group_reduce(group, x, WEFT_OP_SUM, 4, WEFT_FOREVER));
        MUST_OK(weft_group_gather(group, x, all, 1, WEFT_FOREVER));
        weft_tensor_fill(x, me + 1);
    }
    for (size_t i = 0; me == 1 && i < SIZE; i++)
        MUST(((double *)weft_tensor_data(all))[i * 1000] == (double)(i < 4 ? i + 1 : SIZE * (SIZE + 1) / 2));
    if (me == 3)
        weft_sim_kill(s->w.sim, 3);
    weft_status status = WEFT_OK;
    while (!status)
        status = me == 4 ? weft_group_reduce(group, x, WEFT_OP_SUM, 4, WEFT_FOREVER)
                         : weft_group_barrier(group, WEFT_FOREVER);
    MUST(status == WEFT_ERR_PEER_DEAD ||
         status == WEFT_ERR_STATE); /* member 4 called another operation: both are true */
    weft_tensor_unref(x);
    weft_tensor_unref(all);
    weft_group_close(group);
}

static void test_looks(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(10); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM, .size = SIZE, .seed = seed, .program = with_looks, .adjust = adjust},
                   .seed = seed,
                   .victim = 1 + (int)(seed % 2),
                   .delay_ns = prng_mix(seed) % UINT64_C(20000000000)};
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* Rank 0, which has the store, dies while two roots wait for each other. */
static void with_roots(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *group;
    weft_tensor *x = filled(10, 1);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    if (me == 0) {
        weft_sim_sleep(s->w.sim, s->delay_ns);
        weft_sim_kill(s->w.sim, 0);
    }
    weft_status status = weft_group_reduce(group, x, WEFT_OP_SUM, me == 1, WEFT_FOREVER);
    if (!status) /* a leaf has given its part */
        status = weft_group_reduce(group, x, WEFT_OP_SUM, (size_t)me, WEFT_FOREVER);
    MUST(status == WEFT_ERR_STATE || status == WEFT_ERR_STORE_LOST || status == WEFT_ERR_PEER_DEAD);
    weft_tensor_unref(x);
    weft_group_close(group);
}

static void test_roots_without_rank_0(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(20); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = 3,
                         .seed = seed,
                         .program = with_roots,
                         .adjust = adjust,
                         .close_may_fail = true},
                   .seed = seed,
                   .delay_ns = prng_mix(seed) % UINT64_C(1500000000)};
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* ---- Missing, mistaken, cancelled -------------------------------------------------------------------------------- */

static void must_say(const weft_group *group, const char *text)
{
    const char *message = weft_error_message(weft_group_error(group));
    if (!strstr(message, text)) {
        fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", message, text);
        abort();
    }
}

static weft_group *make(weft_agent *agent, const char *name)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &group, NULL));
    return group;
}

static world *stage;
static atomic_bool has_cancelled; /* rank 0, in one_cancels */

/* A ring: each waits for its neighbour, and only one does not come. */
static void one_is_missing(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = filled(1000, 1);
    MUST_OK(weft_group_set_algorithms(all, "allreduce * * ring"));
    MUST_OK(weft_group_barrier(meet, 20000)); /* the two that come are not late */
    if (me != 2) {
        MUST_BE(weft_group_allreduce(all, x, WEFT_OP_SUM, 1000), WEFT_ERR_TIMEOUT);
        must_say(all, "missing is rank 2 (has not called it)");
        MUST(weft_error_worker(weft_group_error(all)) == 2);
    }
    MUST_OK(weft_group_barrier(meet, 20000));
    MUST_BE(weft_group_allreduce(all, x, WEFT_OP_SUM, 20000), WEFT_ERR_TIMEOUT); /* and there is none any more */
    weft_group *again;
    MUST_OK(weft_group_shrink(all, 20000, &again, NULL)); /* all live */
    MUST(weft_group_size(again) == weft_group_size(all));
    MUST_OK(weft_group_allreduce(again, x, WEFT_OP_SUM, 20000));
    weft_group_close(again);
    weft_group_close(all);
    MUST_OK(weft_group_barrier(meet, 20000));
    weft_group_close(meet);
    weft_tensor_unref(x);
}

/* Other counts, dtypes, reductions, roots, operations. */
static void members_disagree(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_tensor *x = filled(me == 1 ? 7 : 8, 1), *f = tensor_full(WEFT_SHAPE(8), WEFT_DTYPE_FLOAT32, 1),
                *y = filled(8, 1);
    weft_group *meet = make(agent, "meet");
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof(name), "odd-%d", i);
        weft_group *odd = make(agent, name);
        bool is_odd = me == 1;
        weft_status status = i == 0   ? weft_group_allreduce(odd, x, WEFT_OP_SUM, 20000)
                             : i == 1 ? weft_group_allreduce(odd, is_odd ? f : y, WEFT_OP_SUM, 20000)
                             : i == 2 ? weft_group_allreduce(odd, y, is_odd ? WEFT_OP_MAX : WEFT_OP_SUM, 20000)
                             : i == 3 ? weft_group_broadcast(odd, y, is_odd, 20000)
                             : is_odd ? weft_group_barrier(odd, 20000)
                                      : weft_group_allreduce(odd, y, WEFT_OP_SUM, 20000);
        if (!status && i == 3) /* two roots: a member of the tree may be done before they meet */
            status = weft_group_barrier(odd, 20000);
        MUST_BE(status, WEFT_ERR_STATE);
        must_say(odd, i == 0 ? "7 float64" : i == 1 ? "float32" : i == 2 ? "maximum" : i == 3 ? "root" : "barrier");
        MUST_OK(weft_group_barrier(meet, 20000));
        weft_group_close(odd);
    }
    weft_group_close(meet);
    weft_tensor_unref(x);
    weft_tensor_unref(f);
    weft_tensor_unref(y);
}

static void one_cancels(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = filled(500000, 1); /* in transfers */
    weft_future *future;
    while (me == 1 && !atomic_load(&has_cancelled)) /* before that the operation cannot end */
        world_sleep_ms(stage, 1);
    weft_status status = weft_group_allreduce_async(all, x, WEFT_OP_SUM, WEFT_FOREVER, &future);
    if (me == 0) {
        world_sleep_ms(stage, 5);
        MUST_OK(weft_future_cancel(future));
        atomic_store(&has_cancelled, true);
    }
    if (!status) {
        status = weft_future_wait(future, 20000);
        weft_future_unref(future);
    }
    MUST_BE(status, WEFT_ERR_CANCELLED);
    must_say(all, "rank 0 cancelled allreduce");
    weft_tensor_unref(x);
    MUST_OK(weft_group_barrier(meet, 20000));
    weft_group_close(all);
    weft_group_close(meet);
}

/* Far ahead of one who does not come yet: bounded, and in order. */
static void one_runs_ahead(weft_agent *agent, void *arg)
{
    enum { COUNT = 300 };
    int me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all");
    weft_future *futures[COUNT];
    weft_tensor *x[COUNT];
    if (me)
        world_sleep_ms(stage, 30 * me);
    for (int i = 0; i < COUNT; i++) {
        x[i] = filled(1 + i % 600, me ? 0 : i);
        MUST_OK(weft_group_broadcast_async(all, x[i], 0, 60000, &futures[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        check_all(x[i], i);
        weft_future_unref(futures[i]);
        weft_tensor_unref(x[i]);
    }
    /* The same between two. */
    for (int i = 0; i < COUNT && me < 2; i++) {
        x[i] = filled(1 + i % 600, me ? 0 : i);
        MUST_OK(me ? weft_group_recv_async(all, x[i], 0, 60000, &futures[i])
                   : weft_group_send_async(all, x[i], 1, 60000, &futures[i]));
    }
    for (int i = 0; i < COUNT && me < 2; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        check_all(x[i], i);
        weft_future_unref(futures[i]);
        weft_tensor_unref(x[i]);
    }
    MUST_OK(weft_group_barrier(all, 60000));
    weft_group_close(all);
}

/* Arguments that are refused at once: nobody else notices. */
static void mistakes(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all");
    weft_tensor *x = filled(6, 1), *y = filled(5, 1), *i = tensor_full(WEFT_SHAPE(6), WEFT_DTYPE_INT32, 1);
    weft_tensor *c = tensor_full(WEFT_SHAPE(6), WEFT_DTYPE_COMPLEX64, 1);
    size_t me = (size_t)weft_group_index(all);
    MUST_BE(weft_group_allreduce(NULL, x, WEFT_OP_SUM, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_allreduce(all, NULL, WEFT_OP_SUM, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_allreduce(all, i, WEFT_OP_AVG, 100), WEFT_ERR_TYPE);
    MUST_BE(weft_group_allreduce(all, c, WEFT_OP_MAX, 100), WEFT_ERR_TYPE);
    MUST_BE(weft_group_allreduce(all, x, (weft_op)17, 100), WEFT_ERR_TYPE);
    MUST_BE(weft_group_allreduce(all, x, WEFT_OP_SUM, -2), WEFT_ERR_INVALID);
    MUST_BE(weft_group_broadcast(all, x, 3, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_allgather(all, x, y, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_reduce_scatter(all, y, x, WEFT_OP_SUM, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_gather(all, x, NULL, me, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_all_to_all(all, y, y, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_all_to_all(all, x, i, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_send(all, x, me, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_recv(all, x, 99, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_set_algorithms(all, "allreduce * * bruck"), WEFT_ERR_INVALID);
    MUST_BE(weft_group_set_algorithms(all, "allreduce four * ring"), WEFT_ERR_INVALID);
    MUST_BE(weft_group_set_algorithms(all, "allreduce ring"), WEFT_ERR_INVALID);
    MUST_OK(weft_group_set_algorithms(all, " ; allreduce 4 100 tree;\nbroadcast * * chain; "));
    MUST_OK(weft_group_allreduce(all, x, WEFT_OP_SUM, 20000));
    MUST_BE(weft_group_set_algorithms(all, "allreduce * * ring"), WEFT_ERR_STATE);
    MUST(!weft_group_error(all) && !weft_group_error(NULL));
    check_all(x, 3);
    weft_group_close(all);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    weft_tensor_unref(i);
    weft_tensor_unref(c);
}

static void begin(world *w)
{
    stage = w;
    atomic_store(&has_cancelled, false);
}

#define STAGE .size = 3, .adjust = adjust, .begin = begin
WORLD_TEST(one_is_missing, 3, 1, STAGE)
WORLD_TEST(members_disagree, 3, 1, STAGE)
WORLD_TEST(one_cancels, 3, 1, STAGE)
WORLD_TEST(one_runs_ahead, 2, 1, STAGE)
WORLD_TEST(mistakes, 1, 1, STAGE)

int main(int argc, char **argv)
{
    const struct CMUnitTest all[] = {cmocka_unit_test(test_one_is_missing),
                                     cmocka_unit_test(test_members_disagree),
                                     cmocka_unit_test(test_one_cancels),
                                     cmocka_unit_test(test_one_runs_ahead),
                                     cmocka_unit_test(test_mistakes),
                                     cmocka_unit_test(test_deaths),
                                     cmocka_unit_test(test_deaths_and_fabrics),
                                     cmocka_unit_test(test_deaths_and_hosts),
                                     cmocka_unit_test(test_cut_link),
                                     cmocka_unit_test(test_no_bulk),
                                     cmocka_unit_test(test_looks),
                                     cmocka_unit_test(test_roots_without_rank_0),
                                     cmocka_unit_test(test_left_behind)};
    const struct CMUnitTest deaths[] = {cmocka_unit_test(test_deaths), cmocka_unit_test(test_deaths_and_fabrics),
                                        cmocka_unit_test(test_deaths_and_hosts)};
    const struct CMUnitTest on_fabrics[] = {cmocka_unit_test(test_deaths_and_fabrics)};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seeds"))
            seeds = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--first"))
            first_seed = strtoull(argv[i + 1], NULL, 10);
    }
    if (argc > 1 && !strcmp(argv[argc - 1], "--fabrics"))
        return cmocka_run_group_tests(on_fabrics, NULL, NULL);
    return argc > 1 ? cmocka_run_group_tests(deaths, NULL, NULL) : cmocka_run_group_tests(all, NULL, NULL);
}
