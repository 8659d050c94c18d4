/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_dead_callers.c - a thousand calls that are answered after the process that made them was killed.
 * This program is its own child, told by argv[1] what to do: "calls" (rank 1, killed) or serves (rank 2, survives).
 */
#include "rpc/must.h"

#include <weft/weft.h>

#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tensors.h"
#include "unit.h"

enum { CALLS = 1000, LARGE = 64 * 1024, PATIENCE_MS = 20000 };

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

/* ---- The server ----------------------------------------------------------------------------------------------- */

static weft_call *held[CALLS];
static atomic_int held_count;

static weft_status serve_hold(weft_call *call, void *user)
{
    weft_call *taken = weft_call_defer_keeping(call); /* its argument stays with it */
    held[atomic_fetch_add(&held_count, 1)] = taken;
    return WEFT_DEFERRED;
}

static weft_status serve_double(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(2 * weft_call_i64(call, 0))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "hold", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_hold},
    {.name = "double", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_double},
};

static weft_agent *open_agent(weft_job *job)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof(functions) / sizeof(*functions),
                                  .job = job,
                                  .death_timeout_ms = 1000,
                                  .leaks_fail = true};
    weft_status status = weft_agent_open(&options, &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

static void must_double(weft_agent *agent, int to)
{
    weft_values *got = NULL;
    int64_t n = 0;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "double", WEFT_VALUES(weft_of_i64(21)), NULL, &got));
    MUST(!weft_values_get_i64(got, 0, &n) && n == 42);
    weft_values_unref(got);
}

/* ---- The children --------------------------------------------------------------------------------------------- */

/* Every tenth call brings, and would take back, more than a message carries. */
static int call_until_killed(void)
{
    weft_agent *agent = open_agent(NULL);
    if (weft_agent_rank(agent) == 1) {
        weft_future *futures[CALLS];
        weft_tensor *small = tensor_zeros(WEFT_SHAPE(16), WEFT_DTYPE_UINT8),
                    *large = tensor_zeros(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8);
        for (int i = 0; i < CALLS; i++)
            MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "hold", WEFT_VALUES(weft_of_tensor(i % 10 ? small : large)),
                                   &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &futures[i]));
        for (;;)
            pause();
    }
    return weft_agent_close(agent, WEFT_FOREVER) != WEFT_OK;
}

/* ---- What the parent sees ------------------------------------------------------------------------------------- */

static void answer_all(void)
{
    weft_tensor *small = tensor_zeros(WEFT_SHAPE(16), WEFT_DTYPE_UINT8),
                *large = tensor_zeros(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8);
    for (int i = 0; i < CALLS; i++) {
        MUST(weft_call_cancelled(held[i]) && weft_call_from(held[i]) == 1);
        weft_call_give(held[i], WEFT_VALUES(weft_of_tensor(i % 10 ? small : large)));
        weft_call_finish(held[i], WEFT_OK);
    }
    weft_tensor_unref(small);
    weft_tensor_unref(large);
}

static uint64_t bytes_held(weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats.bytes_held;
}

static void await_held(void)
{
    for (int ms = 0; ms < PATIENCE_MS && atomic_load(&held_count) < CALLS; ms++)
        sleep_ms(1);
    MUST(atomic_load(&held_count) == CALLS);
}

static void await_death(weft_agent *agent)
{
    for (int ms = 0; ms < PATIENCE_MS && weft_agent_alive(agent, 1); ms++)
        sleep_ms(1);
    MUST(!weft_agent_alive(agent, 1));
}

/* One job: the caller is killed with a thousand calls open, and they are answered afterwards. */
static void one_job(void)
{
    const char *argv[] = {"caller", "calls", NULL};
    weft_job *job = NULL;
    int worst = -1;
    atomic_store(&held_count, 0);
    MUST_OK(weft_job_open(&(weft_job_options){.count = 2, .argv = argv}, &job, NULL));
    weft_agent *agent = open_agent(job);
    must_double(agent, 2);
    await_held();
    MUST(bytes_held(agent) >= CALLS / 10 * LARGE);
    MUST(!kill(weft_job_pid(job, 1), SIGKILL));
    await_death(agent);
    must_double(agent, 2); /* while they lie there */
    answer_all();
    for (int ms = 0; ms < PATIENCE_MS && bytes_held(agent); ms++)
        sleep_ms(1);
    MUST(bytes_held(agent) == 0);
    must_double(agent, 2);
    must_double(agent, 0);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "double", WEFT_VALUES(weft_of_i64(1)), NULL, NULL),
            WEFT_ERR_PEER_DEAD);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    MUST_BE(weft_job_close(job, PATIENCE_MS, &worst), WEFT_ERR_REMOTE);
    MUST(worst == 128 + SIGKILL);
}

static void case_a_thousand_answers_to_the_dead(void **state)
{
    one_job(); /* what is made once */
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 3; i++)
        one_job();
    size_t after = mallinfo2().uordblks;
    assert_true(after < before + 64 * 1024); /* three thousand calls left nothing */
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "calls") == 0)
        return call_until_killed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_a_thousand_answers_to_the_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
