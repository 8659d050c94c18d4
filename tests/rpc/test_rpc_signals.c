/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_signals.c - what a program does with signals: weft_agent_wake in a handler makes the program's waits return.
 */
#include "rpc/world.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static weft_agent *volatile the_agent;
static volatile sig_atomic_t handled;

static void on_signal(int signal_number)
{
    (void)signal_number;
    handled = handled + 1;
    weft_agent_wake(the_agent);
}

static void handle(int signal_number)
{
    struct sigaction how = {.sa_handler = on_signal};
    MUST(sigaction(signal_number, &how, NULL) == 0);
}

static atomic_bool released;
static atomic_int inner; /* what a wait inside a handler returned, + 1000; 0: not yet */

/* Does not answer before it is released. */
static weft_status run_hold(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    while (!atomic_load(&released))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return WEFT_OK;
}

/* Waits inside a handler for "hold". */
static weft_status run_nested(weft_call *call, void *user)
{
    weft_future *future;
    (void)user;
    MUST_OK(weft_rpc_async(weft_call_agent(call), weft_to_rank(0), "hold", WEFT_NO_VALUES, NULL, &future));
    weft_status status = weft_future_wait(future, 20000);
    weft_future_unref(future);
    atomic_store(&inner, 1000 + (int)status);
    return status;
}

static const weft_function functions[] = {{.name = "hold", .run = run_hold},
                                          {.name = "nested", .run = run_nested},
                                          {.name = "nothing", .run = world_run_nothing}};

static weft_agent *open_alone(bool no_threads)
{
    weft_agent *agent;
    atomic_store(&released, false);
    handled = 0;
    MUST_OK(weft_agent_open(&(weft_agent_options){.functions = functions,
                                                  .function_count = 3,
                                                  .has_rank = true,
                                                  .world_size = 1,
                                                  .master_port = WEFT_ANY_PORT,
                                                  .no_threads = no_threads},
                            &agent, NULL));
    the_agent = agent;
    return agent;
}

static void close_alone(weft_agent *agent)
{
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    the_agent = NULL;
}

/* Sends SIGUSR2 to a thread after some milliseconds, while it waits. */
typedef struct shot {
    pthread_t target, thread;
} shot;

static void *shoot(void *arg)
{
    shot *s = arg;
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    MUST(pthread_kill(s->target, SIGUSR2) == 0);
    return NULL;
}

static void shoot_soon(shot *s)
{
    handle(SIGUSR2);
    s->target = pthread_self();
    MUST(pthread_create(&s->thread, NULL, shoot, s) == 0);
}

/* A wait in progress returns, every further one at once, until the effect is ended. */
static void waits_return(bool no_threads)
{
    shot s;
    size_t index = 7;
    weft_agent *agent = open_alone(no_threads);
    weft_future *future = weft_future_create(agent), *other = weft_future_create(agent);
    shoot_soon(&s);
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    MUST(pthread_join(s.thread, NULL) == 0);
    assert_int_equal(handled, 1);
    assert_false(weft_future_done(future));
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    MUST_BE(weft_future_wait_until(future, UINT64_MAX), WEFT_ERR_CANCELLED);
    MUST_BE(weft_future_wait_all((weft_future *[]){future, other}, 2, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    MUST_BE(weft_future_wait_any((weft_future *[]){future, other}, 2, WEFT_FOREVER, &index), WEFT_ERR_CANCELLED);
    assert_int_equal(index, 7);
    if (no_threads)
        (void)weft_agent_progress(agent, WEFT_FOREVER);
    MUST_OK(weft_future_complete(future, NULL, NULL));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER)); /* what is complete is not cancelled */
    assert_true(weft_agent_clear_wake(agent));
    assert_false(weft_agent_clear_wake(agent));
    MUST_BE(weft_future_wait(other, 20), WEFT_ERR_TIMEOUT);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL));
    weft_future_unref(future);
    weft_future_unref(other);
    close_alone(agent);
}

static void test_waits_return(void **cmocka)
{
    (void)cmocka;
    for (int i = 0; i < 5; i++)
        waits_return(false);
}

static void test_waits_return_without_threads(void **cmocka)
{
    (void)cmocka;
    for (int i = 0; i < 5; i++)
        waits_return(true);
}

static void test_progress_returns(void **cmocka)
{
    shot s;
    (void)cmocka;
    weft_agent *agent = open_alone(true);
    shoot_soon(&s);
    while (!handled)
        (void)weft_agent_progress(agent, WEFT_FOREVER);
    MUST(pthread_join(s.thread, NULL) == 0);
    close_alone(agent); /* closing waits as ever, although the effect was not ended */
}

/* The handler runs on one thread, and waits of all threads return. */
static void *wait_long(void *arg)
{
    MUST_BE(weft_future_wait(arg, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    return NULL;
}

static void test_waits_of_all_threads_return(void **cmocka)
{
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    shot s;
    (void)cmocka;
    weft_agent *agent = open_alone(false);
    weft_future *future = weft_future_create(agent);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, wait_long, future) == 0);
    shoot_soon(&s);
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    MUST(pthread_join(s.thread, NULL) == 0);
    weft_future_unref(future);
    close_alone(agent);
}

/* The call of weft_rpc_sync is cancelled; a wait inside a handler goes on. */
static void test_calls_and_handlers(void **cmocka)
{
    shot s;
    weft_error *error = NULL;
    weft_future *nested;
    (void)cmocka;
    weft_agent *agent = open_alone(false);
    atomic_store(&inner, 0);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "nested", WEFT_NO_VALUES, NULL, &nested));
    shoot_soon(&s);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "hold", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL),
            WEFT_ERR_CANCELLED);
    MUST(pthread_join(s.thread, NULL) == 0);
    assert_int_equal(weft_error_code(error), WEFT_ERR_CANCELLED);
    weft_error_unref(error);
    assert_int_equal(atomic_load(&inner), 0);
    assert_true(weft_agent_clear_wake(agent));
    atomic_store(&released, true);
    MUST_OK(weft_future_wait(nested, 20000));
    assert_int_equal(atomic_load(&inner), 1000 + WEFT_OK);
    weft_future_unref(nested);
    close_alone(agent);
}

/* The signal interrupts weft wherever it is: thousands of signals beside calls, and no call is lost. */
static void test_signals_beside_calls(void **cmocka)
{
    timer_t timer;
    struct itimerspec often = {.it_interval = {.tv_nsec = 200000}, .it_value = {.tv_nsec = 200000}};
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    (void)cmocka;
    for (int no_threads = 0; no_threads < 2; no_threads++) {
        weft_agent *agent = open_alone(no_threads);
        handle(SIGUSR2);
        MUST(timer_create(CLOCK_MONOTONIC, &how, &timer) == 0);
        MUST(timer_settime(timer, 0, &often, NULL) == 0);
        for (int i = 0; i < 300; i++) {
            weft_future *future;
            weft_status status;
            MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, &future));
            while ((status = weft_future_wait(future, 20000)) == WEFT_ERR_CANCELLED)
                (void)weft_agent_clear_wake(agent);
            MUST_OK(status);
            weft_future_unref(future);
        }
        MUST(timer_delete(timer) == 0);
        assert_true(handled > 0);
        signal(SIGUSR2, SIG_IGN);
        close_alone(agent);
    }
}

static void wake_in_sim(weft_agent *agent, void *arg)
{
    (void)arg;
    weft_future *future = weft_future_create(agent);
    weft_agent_wake(agent);
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    MUST(weft_agent_clear_wake(agent));
    MUST_BE(weft_future_wait(future, 5), WEFT_ERR_TIMEOUT);
    weft_future_unref(future);
    weft_agent_wake(agent); /* closing is not affected */
}

WORLD_TEST(wake_in_sim, 5, 1, .size = 2)

static void test_null_and_closed(void **cmocka)
{
    (void)cmocka;
    weft_agent_wake(NULL);
    assert_false(weft_agent_clear_wake(NULL));
    assert_int_equal(weft_agent_store_port(NULL), 0);
}

/* ---- The masks of weft's threads -------------------------------------------------------------------------------- */

/* Reads name and blocked signals of a thread; false if it is not one of weft's. */
static bool read_mask(const char *thread, unsigned long long *mask)
{
    char path[300], line[200], name[20] = "";
    bool found = false;
    snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        sscanf(line, "Name: %19s", name);
        found |= sscanf(line, "SigBlk: %llx", mask) == 1;
    }
    if (file)
        fclose(file);
    return found && strncmp(name, "weft-", 5) == 0;
}

static void test_only_faults_reach_threads_of_weft(void **cmocka)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    static const int others[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE, SIGCHLD};
    unsigned long long mask;
    int count = 0;
    (void)cmocka;
    weft_agent *agent = open_alone(false);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL));
    DIR *threads = opendir("/proc/self/task");
    MUST(threads);
    for (struct dirent *thread; (thread = readdir(threads));) {
        if (!read_mask(thread->d_name, &mask))
            continue;
        count++;
        /* The system blocks all signals in a thread that is just starting. */
        for (int tries = 0; mask >> (SIGSEGV - 1) & 1 && tries < 10000; tries++) {
            world_sleep_ms(&(world){0}, 1);
            (void)read_mask(thread->d_name, &mask);
        }
        for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
            assert_false(mask >> (faults[i] - 1) & 1);
        for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
            assert_true(mask >> (others[i] - 1) & 1);
    }
    closedir(threads);
    assert_true(count >= 3); /* a worker, the poller, the event thread */
    close_alone(agent);
}

/* ---- WEFT_ANY_PORT ----------------------------------------------------------------------------------------------- */

static atomic_int told_port;
static atomic_bool joined;

static void *join(void *arg)
{
    weft_agent *agent;
    (void)arg;
    while (!atomic_load(&told_port))
        usleep(1000);
    MUST_OK(weft_agent_open(
        &(weft_agent_options){
            .has_rank = true, .rank = 1, .world_size = 2, .elastic = true, .master_port = atomic_load(&told_port)},
        &agent, NULL));
    assert_int_equal(weft_agent_store_port(agent), atomic_load(&told_port));
    atomic_store(&joined, true);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return NULL;
}

static void test_any_port(void **cmocka)
{
    pthread_t thread;
    weft_agent *agent;
    weft_error *error = NULL;
    (void)cmocka;
    MUST(pthread_create(&thread, NULL, join, NULL) == 0);
    MUST_OK(weft_agent_open(
        &(weft_agent_options){
            .has_rank = true, .rank = 0, .world_size = 2, .elastic = true, .master_port = WEFT_ANY_PORT},
        &agent, NULL));
    assert_true(weft_agent_store_port(agent) > 0);
    atomic_store(&told_port, weft_agent_store_port(agent));
    while (!atomic_load(&joined))
        usleep(1000);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    pthread_join(thread, NULL);
    MUST_BE(weft_agent_open(
                &(weft_agent_options){.has_rank = true, .rank = 1, .world_size = 2, .master_port = WEFT_ANY_PORT},
                &agent, &error),
            WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "only rank 0 takes a free port"));
    weft_error_unref(error);
}

UNIT_MAIN(test_waits_return, test_waits_return_without_threads, test_progress_returns, test_waits_of_all_threads_return,
          test_calls_and_handlers, test_signals_beside_calls, test_wake_in_sim, test_null_and_closed,
          test_only_faults_reach_threads_of_weft, test_any_port)
