/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale.c - the smallest whole program: two workers, one function, one call with a tensor.
 *
 *   scale                                                            starts the second worker itself
 *   RANK=0|1 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... scale      is one of the two, by hand or under a launcher
 *   cc scale.c $(pkg-config --cflags --libs weft)                    builds it
 */
#include <weft/weft.h>

#include <stdlib.h>
#include <string.h>

static weft_status scale(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);        /* owns what this call computes */
    weft_tensor *x = weft_call_tensor(call, 0); /* the signature was checked before we run */
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_scale(t, x, weft_call_f64(call, 1)))));
    return WEFT_OK; /* a failure that the tape or the call keeps goes to the caller */
}

static const weft_function functions[] = {
    {.name = "scale", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64}, .gives = {WEFT_TYPE_TENSOR}, .run = scale},
};

static int print_help(const char *program, FILE *to)
{
    fprintf(to,
            "usage: %s [--report FILE] [--help]\nRank 1 sends a tensor to rank 0, which scales it and sends it back.\n",
            program);
    return to == stdout ? 0 : 2;
}

/* The result's sum, as JSON. */
static weft_status write_report(const char *path, const weft_tensor *scaled)
{
    double sum = 0;
    FILE *file = fopen(path, "w");
    if (!file)
        return WEFT_ERR_IO;
    for (int64_t i = 0; i < weft_tensor_numel(scaled); i++)
        sum += weft_tensor_get_f64(scaled, i);
    fprintf(file, "{\"elements\": %lld, \"sum\": %g}\n", (long long)weft_tensor_numel(scaled), sum);
    return fclose(file) ? WEFT_ERR_IO : WEFT_OK;
}

static weft_status ask(weft_agent *agent, const char *report)
{
    weft_future *reply;
    weft_tensor *x = weft_tensor_arange(8, WEFT_DTYPE_FLOAT32);
    weft_status st =
        weft_rpc_async(agent, weft_to_rank(0), "scale", WEFT_VALUES(weft_of_tensor(x), weft_of_f64(2.5)), NULL, &reply);
    weft_tensor_unref(x); /* the call has its own reference */
    if (st)
        return st;
    st = weft_future_wait(reply, WEFT_FOREVER);
    if (!st)
        weft_tensor_print(weft_future_tensor(reply, 0), stdout);
    else
        weft_error_print(weft_future_error(reply), stderr);
    if (!st && report)
        st = write_report(report, weft_future_tensor(reply, 0));
    weft_future_unref(reply);
    return st;
}

int main(int argc, char **argv)
{
    weft_job *job = NULL;
    weft_agent *agent;
    const char *report = argc == 3 && strcmp(argv[1], "--report") == 0 ? argv[2] : NULL;
    if (argc > 1 && !report)
        return print_help(argv[0], strcmp(argv[1], "--help") == 0 ? stdout : stderr);
    weft_status st = getenv("RANK") ? WEFT_OK : weft_job_open(&(weft_job_options){.count = 1}, &job, NULL);
    if (!st)
        st = weft_agent_open(&(weft_agent_options){.functions = functions, .function_count = 1, .job = job}, &agent,
                             NULL);
    if (st)
        return weft_report(st);
    if (weft_agent_rank(agent) == 1)
        st = ask(agent, report);
    weft_status closed = weft_agent_close(agent); /* waits until nobody has calls outstanding */
    weft_status ended = weft_job_close(job, WEFT_FOREVER, NULL);
    return weft_report(st ? st : closed ? closed : ended);
}
