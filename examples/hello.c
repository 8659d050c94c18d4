/* SPDX-License-Identifier: Apache-2.0 */
/* hello.c - rank 1 sends a tensor to rank 0, which answers with its sum. Without a launcher it starts rank 1 itself. */
#include <weft/rpc.h>
#include <weft/job.h>

static weft_status sum(weft_call *call, void *user) /* runs on rank 0, once for each call */
{
    weft_tensor *x = weft_call_tensor(call, 0); /* the signature was checked before */
    double total = 0;
    (void)user;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        total += weft_tensor_get_f64(x, i);
    weft_call_give(call, WEFT_VALUES(weft_of_f64(total)));
    return WEFT_OK; /* a negative status would be sent to the caller */
}

static const weft_function sums[] = {
    {.name = "sum", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_F64}, .run = sum}};

static weft_status ask(weft_agent *agent)
{
    weft_values *results = NULL;
    weft_error *error = NULL;
    double total = 0;
    weft_tensor *x = NULL;
    weft_status status = weft_tensor_arange(1000000, WEFT_DTYPE_FLOAT64, &x, &error); /* 0, 1, 2 ... */
    if (!status)
        status = weft_rpc_sync(agent, weft_to_rank(0), "sum", WEFT_VALUES(weft_of_tensor(x)),
                               &(weft_rpc_options){.error = &error}, &results);
    if (!status)
        status = weft_values_get_f64(results, 0, &total);
    if (!status)
        printf("rank %d: the sum of 1000000 numbers is %.0f\n", weft_agent_rank(agent), total);
    weft_error_print(error, stderr); /* nothing if all succeeded */
    weft_error_unref(error);
    weft_values_unref(results);
    weft_tensor_unref(x);
    return status;
}

int main(void)
{
    bool launched = weft_job_is_launched(NULL, NULL);
    weft_job *job = NULL;
    weft_agent *agent = NULL;
    weft_status status = launched ? WEFT_OK : weft_job_open(&(weft_job_options){.count = 1}, &job, NULL);
    if (!status)
        status =
            weft_agent_open(&(weft_agent_options){.functions = sums, .function_count = 1, .job = job}, &agent, NULL);
    if (!status)
        status = weft_agent_rank(agent) > 0 ? ask(agent) : weft_agent_serve(agent, WEFT_FOREVER); /* until all end */
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER);
    weft_status ended = weft_job_close(job, WEFT_FOREVER, NULL);
    return weft_report(status ? status : closed ? closed : ended);
}
