/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c - a call from one simulated worker to another, built against an installed libweft_sim. */
#include <stdio.h>
#include <stdlib.h>
#include <weft/rpc.h>
#include <weft/sim.h>

static weft_status sum(weft_call *call, void *user)
{
    int64_t total = 0;
    (void)user;
    for (int64_t i = 0; i < weft_call_i64(call, 0); i++)
        total += i;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(total)));
    return WEFT_OK;
}

static void worker(weft_sim *sim, int rank, void *arg)
{
    const weft_function functions[] = {{.name = "sum",
                                        .takes = {WEFT_TYPE_I64, WEFT_TYPE_NONE},
                                        .gives = {WEFT_TYPE_I64, WEFT_TYPE_NONE},
                                        .run = sum}};
    weft_agent_options options = {.fabric = "sim",
                                  .sim = sim,
                                  .functions = functions,
                                  .function_count = 1,
                                  .has_rank = true,
                                  .rank = rank,
                                  .world_size = 2,
                                  .master_port = 1};
    weft_agent *agent;
    weft_values *results;
    (void)arg;
    if (weft_report(weft_agent_open(&options, &agent, NULL)) != WEFT_OK)
        exit(1);
    if (rank == 0) {
        if (weft_rpc_sync(agent, weft_to_rank(1), "sum", WEFT_VALUES(weft_of_i64(1000)), NULL, &results) != WEFT_OK)
            exit(1);
        int64_t total = 0;
        if (weft_values_get_i64(results, 0, &total) != WEFT_OK)
            exit(1);
        printf("sum %lld\n", (long long)total);
        weft_values_unref(results);
    }
    if (weft_agent_close(agent, WEFT_FOREVER) != WEFT_OK)
        exit(1);
}

int main(void)
{
    weft_sim *sim;
    if (weft_report(weft_sim_open(&(weft_sim_options){.seed = 1}, &sim, NULL)) != 0)
        return 1;
    if (weft_sim_spawn(sim, 0, worker, NULL) != WEFT_OK || weft_sim_spawn(sim, 1, worker, NULL) != WEFT_OK ||
        weft_sim_run(sim, 60000) != WEFT_OK)
        return 1;
    weft_sim_close(sim);
    return 0;
}
