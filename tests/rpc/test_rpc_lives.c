/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_lives.c - processes of a job on tcp that are stopped, continued or killed, and what the others see of it. This program
 * is its own child, told by argv[1] what to do; child and parent talk over two pipes.
 */
#include "rpc/must.h"
#include "rpc/world.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define REPORT_FD 109 /* out of the way of those that are open already */
#define ORDER_FD 110

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- The children -------------------------------------------------------------------------------------------------- */

static atomic_int told[6][3]; /* how often, by event and rank */

static void count_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)agent, (void)why, (void)arg;
    MUST(event > 0 && event < 6 && rank >= 0 && rank < 3);
    atomic_fetch_add(&told[event][rank], 1);
}

static weft_status run_add(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static weft_call *held;

static weft_status run_hold(weft_call *call, void *user)
{
    (void)user;
    held = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_I64}, .gives = {WEFT_I64}, .run = run_add},
    {.name = "hold", .run = run_hold},
};

static weft_agent *open_child(void)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_status st = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                           .function_count = sizeof functions / sizeof *functions,
                                                           .on_membership = count_news,
                                                           .rendezvous_timeout_ms = 20000,
                                                           .no_binding = true,
                                                           .error = &error},
                                     &agent);
    weft_error_print(error, stderr);
    MUST_OK(st);
    return agent;
}

static void say(char what)
{
    MUST(write(REPORT_FD, &what, 1) == 1);
}

static void await_order(char what)
{
    char got = 0;
    MUST(read(ORDER_FD, &got, 1) == 1 && got == what);
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
        say('r');
        await_told(WEFT_SELF_EVICTED, 1);
        MUST_BE(weft_agent_status(agent), WEFT_ERR_EVICTED);
        MUST_BE(add_at(agent, 0), WEFT_ERR_EVICTED);
        MUST_BE(weft_agent_close(agent), WEFT_ERR_EVICTED);
        memset(told, 0, sizeof told);
        agent = open_child();
        MUST_OK(add_at(agent, 0));
        MUST_OK(add_at(agent, 2));
        say('a');
    }
    MUST_OK(weft_agent_close(agent));
    return 0;
}

/* Watches rank 1 through its lives. */
static int child_watches(void)
{
    weft_agent *agent = open_child();
    for (int round = 0; round < 2; round++) {
        weft_worker before = weft_agent_worker(agent, 1);
        MUST_OK(weft_watch(agent, 1));
        MUST_OK(add_at(agent, 1));
        say('r');
        await_told(WEFT_MEMBER_DEAD, 1);
        MUST_BE(add_at(agent, 1), WEFT_ERR_PEER_DEAD);
        MUST(weft_agent_find(agent, "worker1") == -1 && !weft_agent_alive(agent, 1));
        MUST_OK(add_at(agent, 2 - weft_agent_rank(agent)));
        say('d');
        await_told(WEFT_MEMBER_JOINED, 1);
        weft_worker after = weft_agent_worker(agent, 1);
        MUST(after.incarnation > before.incarnation && weft_agent_find(agent, "worker1") == 1);
        MUST_OK(add_at(agent, 1));
        memset(told, 0, sizeof told);
        say('j');
        await_order('n');
    }
    MUST_OK(weft_agent_close(agent));
    MUST(!atomic_load(&told[WEFT_MEMBER_DEAD][1]));
    return 0;
}

/* Has a call outstanding at rank 1, which is stopped for three bounds that are switched off. */
static int child_is_patient(void)
{
    weft_agent *agent = open_child();
    weft_future *future;
    MUST_OK(weft_watch(agent, 1));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(1)), NULL, &future));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
    say('r');
    await_order('n'); /* rank 1 is stopped */
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(1)), NULL, &future));
    MUST_BE(weft_future_wait(future, 3000), WEFT_ERR_TIMEOUT);
    MUST(!weft_future_done(future) && weft_agent_alive(agent, 1));
    say('a');
    MUST_OK(weft_future_wait(future, WEFT_FOREVER)); /* continued: as if nothing had been */
    weft_future_unref(future);
    MUST(!atomic_load(&told[WEFT_MEMBER_DEAD][1]));
    MUST_OK(weft_agent_close(agent));
    return 0;
}

static int child_serves(void)
{
    weft_agent *agent = open_child();
    say('r');
    MUST_OK(weft_agent_close(agent));
    return 0;
}

/* The store goes, killed or stopped, while it closes, or has a call outstanding. */
static int child_loses_the_store(bool closes)
{
    weft_agent *agent = open_child();
    MUST_OK(add_at(agent, 0));
    say('r');
    if (!closes) {
        await_told(WEFT_STORE_LOST, 0);
        say('f');
    }
    double began = now_s();
    MUST_BE(weft_agent_close(agent), WEFT_ERR_STORE_LOST);
    MUST(closes || now_s() - began < 5);
    say('c');
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
    say('r');
    await_order('n');
    weft_agent_stop(agent);
    return 0;
}

/* Waits in a barrier for rank 1, which is killed or stopped before it comes; then meets the one that is left. */
static int child_meets(void)
{
    static const int left[] = {0, 2};
    weft_agent *agent = open_child();
    weft_group *all, *two;
    weft_future *future;
    MUST_OK(weft_group_create(agent, "all", NULL, 0, &all));
    MUST_OK(weft_group_barrier_async(all, WEFT_FOREVER, &future));
    say('r');
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_PEER_DEAD);
    MUST(weft_error_worker(weft_future_error(future)) == 1);
    say('f');
    weft_future_unref(future);
    MUST_BE(weft_group_barrier(all, 1000), WEFT_ERR_PEER_DEAD);
    MUST_OK(weft_group_create(agent, "two", left, 2, &two));
    MUST_OK(weft_group_barrier(two, 20000));
    weft_group_destroy(two);
    weft_group_destroy(all); /* now that the other one has heard of the death from it */
    MUST_OK(weft_agent_close(agent));
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} roles[] = {{"comes-again", child_comes_again},
             {"watches", child_watches},
             {"is-patient", child_is_patient},
             {"serves", child_serves},
             {"meets", child_meets},
             {"loses-closing", child_loses_the_store_closing},
             {"loses-working", child_loses_the_store_working},
             {"keeps-the-store", child_keeps_the_store}};

/* ---- The parent ---------------------------------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int report, order;
} child;

static void become(const char *role, int rank, int port, int report, int order)
{
    char rank_text[16], port_text[16];
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(port_text, sizeof port_text, "%d", port);
    alarm(60);
    report = fcntl(report, F_DUPFD, 100); /* out of the way of the numbers that they get */
    order = fcntl(order, F_DUPFD, 100);
    for (int fd = 3; fd < 100; fd++)
        close(fd);
    dup2(report, REPORT_FD);
    dup2(order, ORDER_FD);
    close(report);
    close(order);
    setenv("RANK", rank_text, 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("MASTER_PORT", port_text, 1);
    execl("/proc/self/exe", "test_rpc_lives", role, (char *)NULL);
    _exit(99);
}

static child start_child(int rank, int port, const char *role)
{
    int reports[2], orders[2];
    MUST(pipe(reports) == 0 && pipe(orders) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0)
        become(role, rank, port, reports[1], orders[0]);
    close(reports[1]);
    close(orders[0]);
    return (child){pid, reports[0], orders[1]};
}

static void start_job(child children[3], const char *zero, const char *one, const char *two, const char *death_ms)
{
    int port = world_free_port();
    setenv("WEFT_DEATH_MS", death_ms, 1);
    children[0] = start_child(0, port, zero);
    children[1] = start_child(1, port, one);
    children[2] = start_child(2, port, two);
}

static void hear(const child *from, char what)
{
    char heard = 0;
    assert_int_equal(read(from->report, &heard, 1), 1);
    assert_int_equal(heard, what);
}

static void order(const child *to, char what)
{
    assert_int_equal(write(to->order, &what, 1), 1);
}

/* Returns when it stands still: until then its other threads may go on. */
static void send_signal(const child *to, int signal_number)
{
    int status;
    MUST(kill(to->pid, signal_number) == 0);
    if (signal_number == SIGSTOP)
        MUST(waitpid(to->pid, &status, WUNTRACED) == to->pid && WIFSTOPPED(status));
}

static int end_of(child *one)
{
    int status;
    MUST(waitpid(one->pid, &status, 0) == one->pid);
    close(one->report);
    close(one->order);
    return status;
}

static void must_end_well(child children[3])
{
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(end_of(&children[rank]), 0);
}

static void test_comes_again(void **state)
{
    child children[3];
    (void)state;
    start_job(children, "watches", "comes-again", "watches", "1000");
    for (int round = 0; round < 2; round++) {
        for (int rank = 0; rank < 3; rank++)
            hear(&children[rank], 'r');
        double began = now_s();
        send_signal(&children[1], SIGSTOP);
        hear(&children[0], 'd');
        hear(&children[2], 'd');
        assert_true(now_s() - began < 6); /* the bound of 1 s, on a busy machine */
        send_signal(&children[1], SIGCONT);
        hear(&children[1], 'a');
        hear(&children[0], 'j');
        hear(&children[2], 'j');
        order(&children[0], 'n');
        order(&children[2], 'n');
    }
    must_end_well(children);
}

static void test_bound_switched_off(void **state)
{
    child children[3];
    (void)state;
    start_job(children, "is-patient", "serves", "is-patient", "-1");
    for (int rank = 0; rank < 3; rank++)
        hear(&children[rank], 'r');
    send_signal(&children[1], SIGSTOP);
    order(&children[0], 'n');
    order(&children[2], 'n');
    hear(&children[0], 'a');
    hear(&children[2], 'a');
    send_signal(&children[1], SIGCONT);
    must_end_well(children);
}

static void lose_a_member(int signal_number)
{
    child children[3];
    start_job(children, "meets", "serves", "meets", "1000");
    for (int rank = 0; rank < 3; rank++)
        hear(&children[rank], 'r');
    double began = now_s();
    send_signal(&children[1], signal_number);
    hear(&children[0], 'f');
    hear(&children[2], 'f');
    assert_true(now_s() - began < 6); /* the bound of 1 s, on a busy machine */
    assert_int_equal(end_of(&children[0]), 0);
    assert_int_equal(end_of(&children[2]), 0);
    send_signal(&children[1], SIGKILL);
    assert_true(WIFSIGNALED(end_of(&children[1])));
}

static void test_member_lost(void **state)
{
    (void)state;
    lose_a_member(SIGKILL);
    lose_a_member(SIGSTOP);
}

/* Rank 0 is killed or stopped: whoever works or closes hears that the job is over. */
static void lose_the_store(const char *role, int signal_number, bool working)
{
    child children[3];
    start_job(children, "keeps-the-store", role, role, "1000");
    for (int rank = 0; rank < 3; rank++)
        hear(&children[rank], 'r');
    usleep(working ? 0 : 200000); /* they are in weft_agent_close, or about to be: either must do */
    double began = now_s();
    send_signal(&children[0], signal_number);
    for (int rank = 1; rank < 3; rank++) {
        if (working)
            hear(&children[rank], 'f');
        hear(&children[rank], 'c');
    }
    assert_true(now_s() - began < 10);
    send_signal(&children[0], SIGKILL);
    assert_true(WIFSIGNALED(end_of(&children[0])));
    assert_int_equal(end_of(&children[1]), 0);
    assert_int_equal(end_of(&children[2]), 0);
}

static void test_store_killed(void **state)
{
    (void)state;
    lose_the_store("loses-working", SIGKILL, true);
    lose_the_store("loses-closing", SIGKILL, false);
}

static void test_store_stopped(void **state)
{
    (void)state;
    lose_the_store("loses-closing", SIGSTOP, false);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(argv[1], roles[i].name) == 0)
            return roles[i].run();
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_again),   cmocka_unit_test(test_bound_switched_off),
        cmocka_unit_test(test_member_lost),   cmocka_unit_test(test_store_killed),
        cmocka_unit_test(test_store_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
