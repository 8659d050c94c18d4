/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_lives.c - processes of a job on tcp that are stopped, continued or killed, and what the others see of it.
 * This program is its own child.
 */
#include "children.h"
#include "rpc/world.h"

#include <signal.h>
#include <unistd.h>

/* ---- The children --------------------------------------------------------------------------------------------- */

static atomic_int told[6][3]; /* how often, by event and rank */

static void count_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    MUST(event > 0 && event < 6 && rank >= 0 && rank < 3);
    atomic_fetch_add(&told[event][rank], 1);
}

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static weft_call *held;

static weft_status run_hold(weft_call *call, void *user)
{
    held = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
    {.name = "hold", .run = run_hold},
};

static weft_agent *open_child(void)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_status status = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                               .function_count = sizeof(functions) / sizeof(*functions),
                                                               .on_membership = count_news,
                                                               .rendezvous_timeout_ms = 20000,
                                                               .no_binding = true},
                                         &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

static weft_status add_at(weft_agent *agent, int rank)
{
    return weft_rpc_sync(agent, weft_to_rank(rank), "add", WEFT_VALUES(weft_of_i64(1)), NULL, NULL);
}

static void await_told(weft_member_event event, int rank)
{
    for (int i = 0; i < 20000 && !atomic_load(&told[event][rank]); i++)
        usleep(1000);
    MUST(atomic_load(&told[event][rank]) == 1);
}

/* Is stopped for longer than the bound: it is told, comes again, and works; as often as it is ordered to. */
static int child_comes_again(void)
{
    weft_agent *agent = open_child();
    MUST_OK(add_at(agent, 0));
    for (int round = 0; round < 2; round++) {
        child_say('r');
        await_told(WEFT_MEMBER_SELF_EVICTED, 1);
        MUST_BE(weft_agent_status(agent), WEFT_ERR_EVICTED);
        MUST_BE(add_at(agent, 0), WEFT_ERR_EVICTED);
        MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_ERR_EVICTED);
        memset(told, 0, sizeof(told));
        agent = open_child();
        MUST_OK(add_at(agent, 0));
        MUST_OK(add_at(agent, 2));
        child_say('a');
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* Watches rank 1 through its lives. */
static int child_watches(void)
{
    weft_agent *agent = open_child();
    for (int round = 0; round < 2; round++) {
        weft_worker before = weft_agent_worker(agent, 1);
        MUST_OK(weft_agent_watch(agent, 1));
        MUST_OK(add_at(agent, 1));
        child_say('r');
        await_told(WEFT_MEMBER_DEAD, 1);
        MUST_BE(add_at(agent, 1), WEFT_ERR_PEER_DEAD);
        MUST(weft_agent_find(agent, "worker1") == -1 && !weft_agent_alive(agent, 1));
        MUST_OK(add_at(agent, 2 - weft_agent_rank(agent)));
        child_say('d');
        await_told(WEFT_MEMBER_JOINED, 1);
        weft_worker after = weft_agent_worker(agent, 1);
        MUST(after.incarnation > before.incarnation && weft_agent_find(agent, "worker1") == 1);
        MUST_OK(add_at(agent, 1));
        memset(told, 0, sizeof(told));
        child_say('j');
        child_await_order('n');
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    MUST(!atomic_load(&told[WEFT_MEMBER_DEAD][1]));
    return 0;
}

static int child_serves(void)
{
    weft_agent *agent = open_child();
    child_say('r');
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* The store goes, killed or stopped, while it closes, or has a call outstanding. */
static int child_loses_the_store(bool closes)
{
    weft_agent *agent = open_child();
    MUST_OK(add_at(agent, 0));
    child_say('r');
    if (!closes) {
        await_told(WEFT_MEMBER_STORE_LOST, 0);
        child_say('f');
    }
    double began = child_now_s();
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_ERR_STORE_LOST);
    MUST(closes || child_now_s() - began < 5);
    child_say('c');
    return 0;
}

static int child_loses_the_store_closing(void)
{
    return child_loses_the_store(true);
}

static int child_loses_the_store_working(void)
{
    return child_loses_the_store(false);
}

/* Rank 0, which never closes by itself. */
static int child_keeps_the_store(void)
{
    weft_agent *agent = open_child();
    child_say('r');
    child_await_order('n');
    weft_agent_stop(agent);
    return 0;
}

/* Opens a group with rank 1, which is killed or stopped before it comes; then meets the one that is left. */
static int child_meets(void)
{
    static const int left[] = {0, 2};
    weft_agent *agent = open_child();
    weft_group *all, *two;
    weft_error *error = NULL;
    child_say('r');
    MUST_BE(weft_group_open(agent, "all", NULL, 0, WEFT_FOREVER, &all, &error), WEFT_ERR_PEER_DEAD);
    MUST(weft_error_worker(error) == 1);
    child_say('f');
    weft_error_unref(error);
    MUST_OK(weft_group_open(agent, "two", left, 2, 0, &two, NULL));
    MUST_OK(weft_group_barrier(two, 20000));
    weft_group_close(two);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

static const child_role roles[] = {{"comes-again", child_comes_again},
                                   {"watches", child_watches},
                                   {"serves", child_serves},
                                   {"meets", child_meets},
                                   {"loses-closing", child_loses_the_store_closing},
                                   {"loses-working", child_loses_the_store_working},
                                   {"keeps-the-store", child_keeps_the_store}};

/* ---- The parent ----------------------------------------------------------------------------------------------- */

static void test_comes_again(void **state)
{
    child children[3];
    setenv("WEFT_DEATH_MS", "1000", 1);
    child_start_three(children, world_free_port(), "watches", "comes-again", "watches");
    for (int round = 0; round < 2; round++) {
        for (int rank = 0; rank < 3; rank++)
            child_hear(&children[rank], 'r');
        double began = child_now_s();
        child_signal(&children[1], SIGSTOP);
        child_hear(&children[0], 'd');
        child_hear(&children[2], 'd');
        assert_true(child_now_s() - began < 6); /* the bound of 1 s, on a busy machine */
        child_signal(&children[1], SIGCONT);
        child_hear(&children[1], 'a');
        child_hear(&children[0], 'j');
        child_hear(&children[2], 'j');
        child_order(&children[0], 'n');
        child_order(&children[2], 'n');
    }
    child_must_end_well(children, 3);
}

static void lose_a_member(int signal_number)
{
    child children[3];
    setenv("WEFT_DEATH_MS", "1000", 1);
    child_start_three(children, world_free_port(), "meets", "serves", "meets");
    for (int rank = 0; rank < 3; rank++)
        child_hear(&children[rank], 'r');
    double began = child_now_s();
    child_signal(&children[1], signal_number);
    child_hear(&children[0], 'f');
    child_hear(&children[2], 'f');
    assert_true(child_now_s() - began < 6); /* the bound of 1 s, on a busy machine */
    child_must_end_well(&children[0], 1);
    child_must_end_well(&children[2], 1);
    child_kill(&children[1]);
}

static void test_member_lost(void **state)
{
    lose_a_member(SIGKILL);
    lose_a_member(SIGSTOP);
}

/* Rank 0 is killed or stopped: whoever works or closes hears that the job is over. */
static void lose_the_store(const char *role, int signal_number, bool working)
{
    child children[3];
    setenv("WEFT_DEATH_MS", "1000", 1);
    child_start_three(children, world_free_port(), "keeps-the-store", role, role);
    for (int rank = 0; rank < 3; rank++)
        child_hear(&children[rank], 'r');
    usleep(working ? 0 : 200000); /* they are in weft_agent_close, or about to be: either must do */
    double began = child_now_s();
    child_signal(&children[0], signal_number);
    for (int rank = 1; rank < 3; rank++) {
        if (working)
            child_hear(&children[rank], 'f');
        child_hear(&children[rank], 'c');
    }
    assert_true(child_now_s() - began < 10);
    child_kill(&children[0]);
    child_must_end_well(&children[1], 2);
}

static void test_store_killed(void **state)
{
    lose_the_store("loses-working", SIGKILL, true);
    lose_the_store("loses-closing", SIGKILL, false);
}

static void test_store_stopped(void **state)
{
    lose_the_store("loses-closing", SIGSTOP, false);
}

int main(int argc, char **argv)
{
    int played = child_play(argc, argv, roles, sizeof(roles) / sizeof(*roles));
    if (played >= 0)
        return played;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_again),
        cmocka_unit_test(test_member_lost),
        cmocka_unit_test(test_store_killed),
        cmocka_unit_test(test_store_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
