/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults_crowd.c - many agents in one simulated job: each opens, calls its neighbour, rank 0 and one far away,
 * and closes. The rendezvous takes four messages a worker, in both directions together.
 * Usage: test_faults_crowd [WORKERS]; tools/long.d/scale has 2,000.
 */
#include "rpc/must.h"
#include "sim/sim.h"
#include "make.h"

#include <weft/weft.h>

#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

typedef struct crowd {
    int size, opened, closed;
    uint64_t joined;    /* messages to and from the store when the first opening succeeded: then all have joined */
    uint64_t called_ns; /* when the last first call was answered */
    int64_t right;
} crowd;

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
};

static void call_one(crowd *all, weft_agent *agent, int rank)
{
    weft_values *values = NULL;
    int64_t sum = 0, number = weft_agent_rank(agent);
    MUST_OK(
        weft_rpc_sync(agent, weft_to_rank(rank % all->size), "add", WEFT_VALUES(weft_of_i64(number)), NULL, &values));
    MUST_OK(weft_values_get_i64(values, 0, &sum));
    MUST(sum == number + 1);
    all->right++;
    weft_values_unref(values);
}

static void be_one_of_many(weft_sim *sim, int rank, void *arg)
{
    crowd *all = arg;
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_status status = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                               .function_count = 1,
                                                               .has_rank = true,
                                                               .rank = rank,
                                                               .world_size = all->size,
                                                               .fabric = "sim",
                                                               .sim = sim},
                                         &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    MUST(weft_agent_workers(agent, NULL, 0) == (size_t)all->size);
    if (all->opened++ == 0)
        all->joined = wfi_sim_channel_messages(sim);
    call_one(all, agent, rank + 1);
    all->called_ns = weft_sim_now(sim);
    call_one(all, agent, 0);
    call_one(all, agent, rank + all->size / 2);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    all->closed++;
}

int main(int argc, char **argv)
{
    struct rusage used;
    crowd all = {.size = argc > 1 ? atoi(argv[1]) : 200};
    MUST(all.size > 1);
    struct timespec cpu;
    weft_sim *sim = sim_open(&(weft_sim_options){.seed = 3});
    for (int rank = 0; rank < all.size; rank++)
        MUST_OK(weft_sim_spawn(sim, rank, be_one_of_many, &all));
    MUST_OK(weft_sim_run(sim, 3600 * 1000));
    MUST(all.opened == all.size && all.closed == all.size && all.right == 3 * (int64_t)all.size);
    MUST(all.joined > 0 && all.joined <= 4 * (uint64_t)all.size);
    uint64_t end_ns = weft_sim_now(sim), messages = wfi_sim_channel_messages(sim);
    weft_sim_close(sim);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    getrusage(RUSAGE_SELF, &used);
    printf("%d agents: joined by %llu messages, %llu to the end; all had called after %.1f ms of the world's time, all "
           "were "
           "closed after %.1f; %.1f s of processor time, %ld MiB\n",
           all.size, (unsigned long long)all.joined, (unsigned long long)messages, (double)all.called_ns / 1e6,
           (double)end_ns / 1e6, (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9, used.ru_maxrss >> 10);
    return 0;
}
