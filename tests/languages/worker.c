/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - a worker in C of a job whose workers are in four languages (worker.cpp, worker.f90, worker.py). Each has the
 * functions echo, fail, ramp, total and nothing, and calls those of all others. When all have done so, the worker in C++
 * is killed by a call of its function die, and the one in C calls the others again.
 *
 * ramp(n) gives the float64 tensor 1, 2 ... n. total takes a tensor, or a reference to one, and gives its sum.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <weft/group.h>
#include <weft/rpc.h>
#include <weft/rref.h>

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "C: not so: %s\n", what);
    _exit(1);
}

static weft_status run_echo(weft_call *call, void *user)
{
    weft_value values[16];
    (void)user;
    for (size_t i = 0; i < weft_call_count(call) && i < 16; i++)
        switch (weft_call_type(call, i)) {
        case WEFT_TYPE_NULL:
            values[i] = weft_of_null();
            break;
        case WEFT_TYPE_BOOL:
            values[i] = weft_of_bool(weft_call_bool(call, i));
            break;
        case WEFT_TYPE_I64:
            values[i] = weft_of_i64(weft_call_i64(call, i));
            break;
        case WEFT_TYPE_F64:
            values[i] = weft_of_f64(weft_call_f64(call, i));
            break;
        case WEFT_TYPE_STRING:
            values[i] = weft_of_string(weft_call_string(call, i));
            break;
        case WEFT_TYPE_TENSOR:
            values[i] = weft_of_tensor(weft_call_tensor(call, i));
            break;
        case WEFT_TYPE_LIST:
            values[i] = weft_of_list(weft_call_list(call, i));
            break;
        default:
            return WEFT_ERR_TYPE;
        }
    weft_call_give(call, (weft_args){values, weft_call_count(call)});
    return WEFT_OK;
}

static weft_status run_fail(weft_call *call, void *user)
{
    (void)user;
    weft_call_fail(call, WEFT_ERR_INVALID, "never on a Friday");
    return WEFT_ERR_INVALID;
}

static weft_status run_ramp(weft_call *call, void *user)
{
    weft_tensor *x = NULL;
    (void)user;
    weft_status status = weft_tensor_arange(weft_call_i64(call, 0), WEFT_DTYPE_FLOAT64, &x, NULL);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        ((double *)weft_tensor_data(x))[i] += 1;
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor_unref(x);
    return status;
}

static weft_status run_total(weft_call *call, void *user)
{
    weft_values *here = NULL;
    weft_tensor *x = NULL;
    weft_status status = WEFT_OK;
    double sum = 0;
    (void)user;
    if (weft_call_type(call, 0) == WEFT_TYPE_TENSOR)
        x = weft_call_tensor(call, 0);
    else
        status = weft_rref_to_here(weft_call_rref(call, 0), 0, &here, NULL);
    if (!status && here)
        status = weft_values_get_tensor(here, 0, &x);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        sum += weft_tensor_get_f64(x, i);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_f64(sum)));
    weft_values_unref(here);
    return status;
}

static weft_status run_nothing(weft_call *call, void *user)
{
    (void)call, (void)user;
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_echo},
    {.name = "fail", .run = run_fail},
    {.name = "ramp", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_ramp},
    {.name = "total", .takes = {WEFT_TYPE_ANY}, .gives = {WEFT_TYPE_F64}, .run = run_total},
    {.name = "nothing", .run = run_nothing},
};

/* Calls each function of the worker `to`; a reference of it goes to `next`. */
static void call_all(weft_agent *agent, int to, int next, int calls)
{
    weft_values *got = NULL;
    weft_error *error = NULL;
    weft_rref *far = NULL;
    weft_tensor *x = NULL;
    double sum = 0;
    const char *text = "";
    must(!weft_tensor_arange(200001, WEFT_DTYPE_FLOAT64, &x, NULL), "arange");
    weft_args args = WEFT_VALUES(weft_of_bool(true), weft_of_i64(INT64_MIN), weft_of_f64(0.1),
                                 weft_of_string("gr\xc3\xbc\xc3\x9f"), weft_of_tensor(x));
    must(!weft_rpc_sync(agent, weft_to_rank(to), "echo", args, NULL, &got) && weft_values_count(got) == 5, "echo");
    must(!weft_values_get_string(got, 3, &text) && strcmp(text, "gr\xc3\xbc\xc3\x9f") == 0, "a string");
    weft_tensor *y = NULL;
    must(!weft_values_get_tensor(got, 4, &y) && weft_tensor_get_f64(y, 200000) == 200000, "a tensor");
    weft_values_unref(got);
    must(!weft_rpc_sync(agent, weft_to_rank(to), "total", WEFT_VALUES(weft_of_tensor(x)), NULL, &got), "total");
    must(!weft_values_get_f64(got, 0, &sum) && sum == 20000100000.0, "the sum");
    weft_values_unref(got);
    weft_tensor_unref(x);
    must(weft_rpc_sync(agent, weft_to_rank(to), "fail", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL) ==
                 WEFT_ERR_REMOTE &&
             strstr(weft_error_message(error), "never on a Friday"),
         "an error");
    weft_error_unref(error);
    must(!weft_rpc_remote(agent, weft_to_rank(to), "ramp", WEFT_VALUES(weft_of_i64(100)), NULL, &far), "remote");
    must(!weft_rpc_sync(agent, weft_to_rank(next), "total", WEFT_VALUES(weft_of_rref(far)), NULL, &got),
         "of a reference");
    must(!weft_values_get_f64(got, 0, &sum) && sum == 5050, "the sum of a reference");
    weft_values_unref(got);
    weft_rref_unref(far);
    for (int i = 0; i < calls; i++)
        must(!weft_rpc_sync(agent, weft_to_rank(to), "nothing", WEFT_NO_VALUES, NULL, NULL), "nothing");
}

/* Rank 1 dies; the others are there. */
static void survive(weft_agent *agent)
{
    weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "die", WEFT_NO_VALUES, NULL, NULL);
    must(status == WEFT_ERR_PEER_DEAD, weft_status_name(status));
    for (int to = 2; to < 4; to++)
        must(!weft_rpc_sync(agent, weft_to_rank(to), "nothing", WEFT_NO_VALUES, NULL, NULL), "after the death");
}

int main(void)
{
    weft_agent *agent = NULL;
    weft_agent_options options = {.functions = functions, .function_count = 5};
    const char *calls = getenv("CALLS");
    must(!weft_agent_open(&options, &agent, NULL), "open");
    int size = weft_agent_world_size(agent), me = weft_agent_rank(agent);
    for (int i = 1; i < size; i++)
        call_all(agent, (me + i) % size, (me + i + 1) % size, calls ? atoi(calls) : 100);
    weft_group *group = NULL;
    must(!weft_group_open(agent, "all", NULL, 0, 0, &group, NULL) && !weft_group_barrier(group, 0), "the barrier");
    weft_group_close(group);
    if (me == 0)
        survive(agent);
    must(!weft_agent_serve(agent, WEFT_FOREVER), "serve");
    must(!weft_agent_close(agent, WEFT_FOREVER), "close");
    puts("C: all is well");
    return 0;
}
