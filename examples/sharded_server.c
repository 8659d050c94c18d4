/* SPDX-License-Identifier: Apache-2.0 */
/* sharded_server.c - a parameter server on two workers: ranks 0 and 1 have one half of the parameters each, ranks 2, 3
 * and 4 train. Without a launcher it starts the other workers itself. docs/serving.md explains the program. */
#include <weft/rpc.h>
#include <weft/job.h>

enum { SERVERS = 2, TRAINERS = 3, WORKERS = SERVERS + TRAINERS, LENGTH = 1000, STEPS = 100 };

/* (gradient) -> parameters. One step with the mean gradient of all trainers; one batch runs at a time. */
static weft_status update(weft_batch *batch, void *user)
{
    weft_tensor **parameters = user, *gradients = weft_batch_tensor(batch, 0); /* row i: the gradient of call i */
    int64_t calls = (int64_t)weft_batch_count(batch);
    if (weft_tensor_dtype(gradients) != WEFT_DTYPE_FLOAT64 || weft_tensor_numel(gradients) != calls * LENGTH) {
        weft_batch_fail(batch, WEFT_ERR_INVALID, "update: a gradient has another shape or dtype: pass %d float64",
                        LENGTH);
        return WEFT_ERR_INVALID;
    }
    weft_tensor *next; /* a new tensor: the last answers may still be read */
    weft_status status = weft_tensor_clone(*parameters, &next, NULL);
    if (status)
        return status;
    for (int64_t i = 0; i < calls * LENGTH; i++)
        ((double *)weft_tensor_data(next))[i % LENGTH] -= 0.1 / (double)calls * weft_tensor_get_f64(gradients, i);
    for (int64_t i = 0; i < calls; i++)
        weft_call_give(weft_batch_call(batch, (size_t)i), WEFT_VALUES(weft_of_tensor(next)));
    weft_tensor_unref(*parameters);
    *parameters = next;
    return WEFT_OK;
}

static weft_status serve(weft_agent *agent)
{
    weft_batch_stats stats;
    weft_status status = weft_agent_serve(agent, WEFT_FOREVER); /* until all others close or serve */
    if (!status)
        status = weft_batch_stats_read(agent, "update", &stats);
    if (!status)
        printf("rank %d: %llu updates in %llu batches\n", weft_agent_rank(agent), (unsigned long long)stats.calls,
               (unsigned long long)stats.batches);
    return status;
}

/* One step on both servers at once. The loss of a trainer is half the squared distance to `goal`. */
static weft_status train_step(weft_agent *agent, weft_tensor **parameters, weft_tensor **gradients, double goal)
{
    weft_future *replies[SERVERS] = {NULL};
    weft_status status = WEFT_OK;
    for (int s = 0; s < SERVERS && !status; s++) {
        for (int64_t i = 0; i < LENGTH; i++)
            ((double *)weft_tensor_data(gradients[s]))[i] = weft_tensor_get_f64(parameters[s], i) - goal;
        status = weft_rpc_async(agent, weft_to_rank(s), "update", WEFT_VALUES(weft_of_tensor(gradients[s])),
                                &(weft_rpc_options){.land = {&parameters[s], 1}}, &replies[s]);
    }
    if (!status)
        status = weft_future_wait_all(replies, SERVERS, WEFT_FOREVER); /* each call has the agent's timeout, 60 s */
    for (int s = 0; s < SERVERS; s++) {
        weft_error_print(weft_future_error(replies[s]), stderr); /* nothing if the call succeeded */
        weft_future_unref(replies[s]);
    }
    return status;
}

static weft_status train(weft_agent *agent)
{
    weft_tensor *parameters[SERVERS] = {NULL}, *gradients[SERVERS] = {NULL};
    weft_status status = WEFT_OK;
    for (int s = 0; s < SERVERS && !status; s++) {
        status =
            weft_tensor_zeros(WEFT_SHAPE(LENGTH), WEFT_DTYPE_FLOAT64, &parameters[s], NULL); /* as on the servers */
        if (!status)
            status = weft_tensor_empty(WEFT_SHAPE(LENGTH), WEFT_DTYPE_FLOAT64, &gradients[s], NULL);
    }
    for (int step = 0; step < STEPS && !status; step++)
        status = train_step(agent, parameters, gradients, weft_agent_rank(agent)); /* its data: its rank */
    if (!status)
        printf("rank %d: the parameters are %.3f and %.3f\n", weft_agent_rank(agent),
               weft_tensor_get_f64(parameters[0], 0), weft_tensor_get_f64(parameters[1], LENGTH - 1));
    for (int s = 0; s < SERVERS; s++) {
        weft_tensor_unref(parameters[s]);
        weft_tensor_unref(gradients[s]);
    }
    return status;
}

int main(void)
{
    static const int trainers[TRAINERS] = {2, 3, 4};
    weft_tensor *parameters = NULL;
    /* A batch begins when it has a call of each trainer that lives. */
    const weft_function served = {.name = "update",
                                  .takes = {WEFT_TYPE_TENSOR},
                                  .gives = {WEFT_TYPE_TENSOR},
                                  .run_batch = update,
                                  .user = &parameters,
                                  .batch = {.callers = trainers, .caller_count = TRAINERS, .wait_us = WEFT_FOREVER}};
    weft_job *job = NULL;
    weft_agent *agent = NULL;
    weft_status status = weft_tensor_zeros(WEFT_SHAPE(LENGTH), WEFT_DTYPE_FLOAT64, &parameters, NULL);
    if (!status && !weft_job_is_launched(NULL, NULL))
        status = weft_job_open(&(weft_job_options){.count = WORKERS - 1}, &job, NULL);
    if (!status)
        status =
            weft_agent_open(&(weft_agent_options){.functions = &served, .function_count = 1, .job = job}, &agent, NULL);
    if (!status)
        status = weft_agent_rank(agent) < SERVERS ? serve(agent) : train(agent);
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER);
    weft_status ended = weft_job_close(job, WEFT_FOREVER, NULL);
    weft_tensor_unref(parameters);
    return weft_report(status ? status : closed ? closed : ended);
}
