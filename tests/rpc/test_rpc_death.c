/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_death.c - workers that die or stop with calls of all kinds outstanding: on the simulation at random
 * moments, on tcp with processes. This program is its own child there, told by argv[1] what to do.
 */
#include "children.h"
#include "rpc/world.h"
#include "tensors.h"

#include <signal.h>
#include <unistd.h>

#define LARGE (3 << 19)

static weft_call *held[4][64]; /* by rank: on the simulation each one's own, as in a process of its own */
static atomic_int held_count[4];

static weft_status run_never(weft_call *call, void *user)
{
    int rank = weft_agent_rank(weft_call_agent(call));
    held[rank][atomic_fetch_add(&held_count[rank], 1)] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "never", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_never},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "nothing", .run = world_run_nothing},
};

/* ---- Calls of all kinds ---------------------------------------------------------------------------------------- */

enum { KINDS = 5 };

typedef struct outstanding {
    weft_future *futures[KINDS];
    weft_tensor *small, *large, *land;
    weft_rref *rref;
    atomic_int completions;
} outstanding;

static void count_completion(weft_future *future, void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void start_one(weft_agent *agent, outstanding *o, int kind, int to, const char *function, weft_tensor *tensor,
                      bool land)
{
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .land = {&o->land, land}};
    MUST_OK(weft_rpc_async(agent, weft_to_rank(to), function, WEFT_VALUES(weft_of_tensor(tensor)), &options,
                           &o->futures[kind]));
    MUST_OK(weft_future_add_done_callback(o->futures[kind], count_completion, &o->completions, NULL));
}

static void start_all(weft_agent *agent, outstanding *o, int to)
{
    *o = (outstanding){.small = tensor_full(WEFT_SHAPE(8), WEFT_DTYPE_FLOAT32, 1),
                       .large = tensor_full(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8, 1),
                       .land = tensor_zeros(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8)};
    start_one(agent, o, 0, to, "never", o->small, false);
    start_one(agent, o, 1, to, "never", o->large, true);
    start_one(agent, o, 2, to, "echo", o->large, true);
    start_one(agent, o, 3, to, "echo", o->large, false);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "never", WEFT_NO_VALUES,
                            &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &o->rref));
    MUST_OK(weft_rref_to_here_async(o->rref, WEFT_FOREVER, &o->futures[4]));
    MUST_OK(weft_future_add_done_callback(o->futures[4], count_completion, &o->completions, NULL));
}

/* Each ends well, if it was quick, or with this status, once. The two that nobody answers cannot end well. */
static void await_all(outstanding *o, weft_status why)
{
    for (int i = 0; i < KINDS; i++) {
        weft_status status = weft_future_wait(o->futures[i], WEFT_FOREVER);
        if (status != WEFT_OK || i < 2 || i == 4)
            MUST_BE(status, why);
    }
}

static void drop_all(outstanding *o)
{
    for (int i = 0; i < KINDS; i++)
        weft_future_unref(o->futures[i]);
    weft_tensor_unref(o->small);
    weft_tensor_unref(o->large);
    weft_tensor_unref(o->land);
    weft_rref_unref(o->rref);
}

/* ---- On the simulation ----------------------------------------------------------------------------------------- */

typedef struct scene {
    world w;
    int deaths[4][4];        /* told to whom, of whom */
    char reasons[4][4][160]; /* which the store gave */
    int order[4];
    uint64_t kill_at_ns;
    int victim;
    bool pause;
} scene;

static void note_membership(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    scene *s = arg;
    if (event == WEFT_MEMBER_DEAD)
        s->deaths[weft_agent_rank(agent)][rank]++;
    else if (event == WEFT_MEMBER_SELF_EVICTED)
        s->deaths[rank][rank]++;
    if (event == WEFT_MEMBER_DEAD || event == WEFT_MEMBER_SELF_EVICTED)
        snprintf(s->reasons[weft_agent_rank(agent)][rank], sizeof(s->reasons[0][0]), "%s", why);
}

static void watch(weft_agent_options *options, void *arg)
{
    options->on_membership = note_membership;
    options->membership_arg = arg;
    options->death_timeout_ms = 500;
}

/* An error that the end of a worker caused has the reason that the store gave. */
static void check_reason(const weft_error *error, const char *reason)
{
    MUST(error && reason[0]);
    if (!strstr(weft_error_message(error), reason))
        fail_msg("no \"%s\" in \"%s\"", reason, weft_error_message(error));
}

static void everybody_to_everybody(weft_agent *agent, void *arg)
{
    scene *s = arg;
    outstanding all[4];
    int me = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    for (int rank = 0; rank < size; rank++)
        if (rank != me)
            start_all(agent, &all[rank], rank);
    if (me == 0) {
        weft_sim_sleep(s->w.sim, s->kill_at_ns);
        if (s->pause)
            weft_sim_pause(s->w.sim, s->victim);
        else
            weft_sim_kill(s->w.sim, s->victim);
    }
    if (me == s->victim)
        await_all(&all[0], WEFT_ERR_EVICTED); /* only if it was but paused */
    else
        await_all(&all[s->victim], WEFT_ERR_PEER_DEAD);
    if (me == 0 && s->pause)
        weft_sim_resume(s->w.sim, s->victim);
    if (me != s->victim)
        MUST(weft_agent_alive(agent, s->victim) == false && weft_agent_status(agent) == WEFT_OK);
    for (int rank = 0; rank < size; rank++) { /* the others go on */
        if (rank != me && me != s->victim && rank != s->victim)
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "nothing", WEFT_NO_VALUES, NULL, NULL));
    }
    world_sleep_ms(&s->w, 3000);
    for (int i = 0; i < atomic_load(&held_count[me]); i++) /* those of the dead too */
        weft_call_finish(held[me][i], WEFT_OK);
    for (int rank = 0; rank < size; rank++) {
        if (rank == me)
            continue;
        for (int i = 0; i < KINDS; i++) {
            weft_status status = weft_future_wait(all[rank].futures[i], WEFT_FOREVER);
            bool empty = i == 1 && status == WEFT_ERR_SHAPE; /* answered with nothing where something was to land */
            MUST(status == WEFT_OK || empty || me == s->victim || rank == s->victim);
            if (status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_EVICTED)
                check_reason(weft_future_error(all[rank].futures[i]), s->reasons[me][s->victim]);
        }
        if (rank == s->victim) { /* a call that begins after the death */
            weft_error *error = NULL;
            MUST_BE(weft_rpc_sync(agent, weft_to_rank(rank), "nothing", WEFT_NO_VALUES,
                                  &(weft_rpc_options){.error = &error}, NULL),
                    WEFT_ERR_PEER_DEAD);
            check_reason(error, s->reasons[me][rank]);
            weft_error_unref(error);
        }
        world_sleep_ms(&s->w, 1);
        MUST(atomic_load(&all[rank].completions) == KINDS);
        drop_all(&all[rank]);
    }
}

static void run_scene(uint64_t seed, bool pause)
{
    scene s = {.w = {.fabric = WORLD_SIM,
                     .seed = seed,
                     .size = 4,
                     WORLD_FUNCTIONS(functions),
                     .program = everybody_to_everybody,
                     .adjust = watch,
                     .close_may_fail = pause},
               .kill_at_ns = seed * 7919 % 4000 * 1000,
               .victim = 1 + (int)(seed % 3),
               .pause = pause};
    s.w.arg = &s;
    memset(held_count, 0, sizeof(held_count));
    world_run(&s.w);
    for (int rank = 0; rank < 4; rank++)
        for (int of = 0; of < 4; of++)
            MUST(s.deaths[rank][of] == (of == s.victim && (rank != of || pause)));
}

static void test_killed_at_any_moment(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(40); seed++)
        run_scene(seed, false);
}

static void test_stopped_at_any_moment(void **state)
{
    for (uint64_t seed = 1; seed <= world_seeds(40); seed++)
        run_scene(seed, true);
}

/* Only rank 0 has a bound: it is the job's, and those who name none, or another, hear of deaths all the same. */
static void bound_of_rank_0(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = options->rank == 0 ? 500 : options->rank == 1 ? WEFT_FOREVER : 60000;
}

/* A program may print the message alone. */
static void names_the_dead(weft_agent *agent)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .error = &error};
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(2), "never", WEFT_NO_VALUES, &options, NULL), WEFT_ERR_PEER_DEAD);
    MUST(strstr(weft_error_message(error), "rank 2 (worker2) is dead: "));
    weft_error_unref(error);
}

static void wait_for_the_stopped(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 1) {
        uint64_t began = weft_agent_now_ns(agent);
        weft_sim_pause(w->sim, 2);
        names_the_dead(agent);
        MUST(weft_agent_now_ns(agent) - began < UINT64_C(1000000000));
        names_the_dead(agent); /* it could not be started */
        weft_sim_resume(w->sim, 2);
    } else if (weft_agent_rank(agent) == 2) {
        while (!weft_agent_status(agent))
            world_sleep_ms(w, 1);
    }
}

WORLD_TEST(wait_for_the_stopped, 10, 0, .size = 3, WORLD_FUNCTIONS(functions), .adjust = bound_of_rank_0,
           .close_may_fail = true)

/* The bound is switched off: rank 1 stands still for ten minutes, and then it is as if nothing had been. */
static atomic_int called, waited;

static void begin(world *w)
{
    atomic_store(&called, 0);
    atomic_store(&waited, 0);
}

static void no_bound(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = WEFT_FOREVER;
}

static void have_patience(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_future *future;
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    if (weft_agent_rank(agent) == 1)
        return;
    MUST_OK(weft_agent_watch(agent, 1));
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, NULL));
    for (atomic_fetch_add(&called, 1); atomic_load(&called) < 2;)
        world_sleep_ms(w, 1);
    weft_sim_pause(w->sim, 1);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, &options, &future));
    MUST_BE(weft_future_wait(future, 600000), WEFT_ERR_TIMEOUT);
    MUST(!weft_future_done(future) && weft_agent_alive(agent, 1));
    for (atomic_fetch_add(&waited, 1); atomic_load(&waited) < 2;)
        world_sleep_ms(w, 1);
    weft_sim_resume(w->sim, 1);
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST(weft_agent_alive(agent, 1));
    weft_future_unref(future);
}

WORLD_TEST(have_patience, 3, 0, .size = 3, WORLD_FUNCTIONS(functions), .adjust = no_bound, .begin = begin)

/* ---- On tcp: children ------------------------------------------------------------------------------------------ */

static atomic_int member_event;

static void keep_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    if (event != WEFT_MEMBER_LEFT)
        atomic_store(&member_event, (int)event);
}

static weft_agent *open_child(void)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_status status = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                               .function_count = sizeof(functions) / sizeof(*functions),
                                                               .on_membership = keep_event,
                                                               .rendezvous_timeout_ms = 20000,
                                                               .no_binding = true},
                                         &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

static void await_event(weft_member_event event)
{
    for (int i = 0; i < 3000 && !atomic_load(&member_event); i++)
        usleep(1000);
    MUST(atomic_load(&member_event) == (int)event);
}

/* Serves until the job ends, or it is killed. */
static int child_serves(void)
{
    weft_agent *agent = open_child();
    child_say('r');
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* Has calls of all kinds outstanding towards rank 1 until they fail. */
static int child_calls(void)
{
    outstanding o;
    weft_agent *agent = open_child();
    start_all(agent, &o, 1);
    usleep(100000);
    child_say('r');
    await_all(&o, WEFT_ERR_PEER_DEAD);
    child_say('f');
    await_event(WEFT_MEMBER_DEAD);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_PEER_DEAD);
    int other = weft_agent_rank(agent) == 0 ? 2 : 0;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(other), "nothing", WEFT_NO_VALUES, NULL, NULL));
    drop_all(&o);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* Is stopped, continued, and told that it is out. */
static int child_is_stopped(void)
{
    outstanding o;
    weft_agent *agent = open_child();
    start_all(agent, &o, 0);
    usleep(100000);
    child_say('r');
    await_all(&o, WEFT_ERR_EVICTED);
    await_event(WEFT_MEMBER_SELF_EVICTED);
    drop_all(&o);
    MUST_BE(weft_agent_status(agent), WEFT_ERR_EVICTED);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_EVICTED);
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_ERR_EVICTED);
    child_say('f');
    return 0;
}

/* Calls ranks 0 and 2 until the store is lost. */
static int child_loses_the_store(void)
{
    outstanding o, p;
    weft_agent *agent = open_child();
    start_all(agent, &o, 0);
    start_all(agent, &p, 3 - weft_agent_rank(agent));
    usleep(100000);
    child_say('r');
    await_all(&o, WEFT_ERR_STORE_LOST);
    await_all(&p, WEFT_ERR_STORE_LOST);
    child_say('f');
    await_event(WEFT_MEMBER_STORE_LOST);
    drop_all(&o);
    drop_all(&p);
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_ERR_STORE_LOST);
    return 0;
}

static const child_role roles[] = {{"serves", child_serves},
                                   {"calls", child_calls},
                                   {"is-stopped", child_is_stopped},
                                   {"loses-the-store", child_loses_the_store}};

/* ---- On tcp: the parent ---------------------------------------------------------------------------------------- */

static void disturb_rank_1(const char *role, int signal_number)
{
    child children[3];
    child_start_three(children, world_free_port(), "calls", role, "calls");
    for (int rank = 0; rank < 3; rank++)
        child_hear(&children[rank], 'r');
    double began = child_now_s();
    child_signal(&children[1], signal_number);
    child_hear(&children[0], 'f');
    child_hear(&children[2], 'f');
    double took = child_now_s() - began;
    printf("         every call to it had failed after %.0f ms\n", took * 1e3);
    assert_true(took < 15); /* the bound of 2 s, on a busy machine */
    if (signal_number == SIGSTOP) {
        child_signal(&children[1], SIGCONT);
        child_hear(&children[1], 'f');
        child_must_end_well(&children[1], 1);
    } else {
        child_kill(&children[1]);
    }
    child_must_end_well(&children[0], 1);
    child_must_end_well(&children[2], 1);
}

static void test_sigkill(void **state)
{
    disturb_rank_1("serves", SIGKILL);
}

static void test_sigstop(void **state)
{
    disturb_rank_1("is-stopped", SIGSTOP);
}

static void test_store_lost(void **state)
{
    child children[3];
    child_start_three(children, world_free_port(), "serves", "loses-the-store", "loses-the-store");
    for (int rank = 0; rank < 3; rank++)
        child_hear(&children[rank], 'r');
    double began = child_now_s();
    child_signal(&children[0], SIGKILL);
    child_hear(&children[1], 'f');
    child_hear(&children[2], 'f');
    assert_true(child_now_s() - began < 15);
    child_kill(&children[0]);
    child_must_end_well(&children[1], 2);
}

int main(int argc, char **argv)
{
    int played = child_play(argc, argv, roles, sizeof(roles) / sizeof(*roles));
    if (played >= 0)
        return played;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sigkill),
        cmocka_unit_test(test_sigstop),
        cmocka_unit_test(test_store_lost),
        cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_stopped_at_any_moment),
        cmocka_unit_test(test_wait_for_the_stopped),
        cmocka_unit_test(test_have_patience),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
