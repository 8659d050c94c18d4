/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_context.c - the words of passes and contexts as decoders: in a small simulated job, rank 1 takes an honest
 * part in a context of rank 0's, and then calls weft's own functions there with what the input says. Whatever comes,
 * rank 0's pass ends, well or not, and nothing of the context is left.
 *
 * Input: records. A record: which function u8, then for
 *   0 weft:pass sizes u8 of five lists of bytes, a count of gradients u8 (its top bit: of another shape); the lists
 *   1 weft:abort size u8, status i8, rank i8; the bytes
 *   2 weft:close     size u8; the bytes
 *   3 weft:joined    number u8, size u8; the bytes
 *   4 weft:backward  sizes u8 of two lists; the lists
 *   5 weft:final     size u8; the bytes
 */
#include "fuzz/inside.h"
#include "make.h"
#include "tensors.h"

#include <weft/weft.h>

#include <stdlib.h>
#include <string.h>

#define RECORDS_MAX 16
#define LISTS 5

static struct run {
    const uint8_t *bytes;
    size_t size, at;
    weft_sim *sim;
    bool reached; /* a call of the input's was answered, and not by an error */
} run;

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* ---- Input ------------------------------------------------------------------------------------------------------- */

static uint8_t next(void)
{
    return run.at < run.size ? run.bytes[run.at++] : 0;
}

static weft_value next_list(size_t size)
{
    size_t left = run.size - run.at;
    size = size < left ? size : left;
    run.at += size;
    return weft_of_bytes(run.bytes + run.at - size, size);
}

/* ---- Rank 1 ------------------------------------------------------------------------------------------------------ */

static weft_status run_twice(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_scale(weft_call_tape(call), weft_call_tensor(call, 0), 2))));
    return WEFT_OK;
}

/* () -> a handle to a number of this worker's */
static weft_status run_handle(weft_call *call, void *user)
{
    weft_rref *rref;
    weft_status status = weft_rref_create(weft_call_agent(call), weft_of_i64(7), &rref, NULL);
    if (status)
        return status;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "twice", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_twice},
    {.name = "handle", .gives = {WEFT_TYPE_RREF}, .run = run_handle},
};

static void say(weft_agent *agent, const char *function, weft_args args)
{
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(0), function, args, &(weft_rpc_options){.timeout_ms = 20}, NULL);
    run.reached |= status == WEFT_OK;
}

static void say_pass(weft_agent *agent)
{
    size_t sizes[LISTS];
    weft_value args[LISTS + 1];
    for (int i = 0; i < LISTS; i++)
        sizes[i] = next();
    uint8_t count = next();
    for (int i = 0; i < LISTS; i++)
        args[i] = next_list(sizes[i]);
    weft_tensor *gradient = tensor_full(WEFT_SHAPE(count & 0x80 ? 3 : 2), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *items[8];
    for (int i = 0; i < 8; i++)
        items[i] = gradient;
    args[LISTS] = weft_of_tensors((weft_tensors){items, count % 8});
    say(agent, "weft:pass", (weft_args){args, LISTS + 1});
    weft_tensor_unref(gradient);
}

static void say_backward(weft_agent *agent, weft_rref *handle)
{
    size_t first = next(), second = next();
    weft_value head = next_list(first), names = next_list(second);
    say(agent, "weft:backward",
        WEFT_VALUES(weft_of_rref(handle), head, names, weft_of_tensors((weft_tensors){NULL, 0})));
}

static void say_all(weft_agent *agent)
{
    weft_values *values = NULL;
    weft_rref *handle = NULL;
    if (weft_rpc_sync(agent, weft_to_rank(0), "handle", WEFT_NO_VALUES, NULL, &values) == WEFT_OK)
        must(weft_values_get_rref(values, 0, &handle) == WEFT_OK);
    for (int i = 0; i < RECORDS_MAX && run.at < run.size; i++) {
        uint8_t what = next() % 6;
        if (what == 0) {
            say_pass(agent);
        } else if (what == 1) {
            uint8_t size = next();
            int64_t status = (int8_t)next(), rank = (int8_t)next();
            say(agent, "weft:abort",
                WEFT_VALUES(next_list(size), weft_of_i64(status), weft_of_i64(rank), weft_of_string("forged")));
        } else if (what == 2) {
            say(agent, "weft:close", WEFT_VALUES(next_list(next())));
        } else if (what == 3) {
            int64_t number = next();
            say(agent, "weft:joined", WEFT_VALUES(weft_of_i64(number), next_list(next())));
        } else if (what == 5) {
            say(agent, "weft:final", WEFT_VALUES(next_list(next())));
        } else if (handle) {
            say_backward(agent, handle);
        }
    }
    weft_values_unref(values);
}

/* ---- Rank 0 ------------------------------------------------------------------------------------------------------ */

static void be_victim(weft_agent *agent)
{
    weft_context *context;
    weft_values *values = NULL;
    weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 3), *y = NULL;
    weft_tensor_set_requires_grad(x, true);
    must(weft_context_open(agent, &context, NULL) == WEFT_OK);
    weft_tape *t = weft_context_tape(context, NULL);
    if (weft_rpc_sync(agent, weft_to_rank(1), "twice", WEFT_VALUES(weft_of_tensor(x)), &(weft_rpc_options){.tape = t},
                      &values) == WEFT_OK)
        must(weft_values_get_tensor(values, 0, &y) == WEFT_OK);
    weft_sim_sleep(run.sim, 30000000); /* some of the input comes before the pass, some while it runs, some later */
    if (y)
        weft_dist_backward(t, weft_sum(t, y), &(weft_pass_options){.timeout_ms = 100});
    weft_sim_sleep(run.sim, 400000000);
    weft_values_unref(values);
    weft_tape_close(t);
    weft_context_close(context, NULL);
    weft_tensor_unref(x);
}

static void play(weft_sim *sim, int rank, void *arg)
{
    weft_agent *agent;
    weft_agent_options options = {.has_rank = true,
                                  .rank = rank,
                                  .world_size = 2,
                                  .fabric = "sim",
                                  .sim = sim,
                                  .functions = functions,
                                  .function_count = sizeof(functions) / sizeof(functions[0])};
    weft_status status = weft_agent_open(&options, &agent, NULL);
    must(status == WEFT_OK);
    if (rank == 0) {
        be_victim(agent);
    } else {
        weft_sim_sleep(sim, 20000000);
        say_all(agent);
        weft_sim_sleep(sim, 600000000);
    }
    weft_sim_sleep(sim, 100000000);
    size_t passes;
    size_t contexts = weft_agent_contexts(agent, &passes);
    must(contexts == 0 && passes == 0);
    weft_agent_stop(agent);
}

bool fuzz_context(const uint8_t *bytes, size_t size)
{
    run = (struct run){.bytes = bytes, .size = size, .sim = sim_open(&(weft_sim_options){.seed = 1})};
    must(run.sim != NULL);
    for (int rank = 0; rank < 2; rank++)
        must(weft_sim_spawn(run.sim, rank, play, NULL) == WEFT_OK);
    must(weft_sim_run(run.sim, 60000) == WEFT_OK);
    must(weft_dist_optimizer_owners(NULL) == 0); /* so that steps are part of this program */
    weft_sim_close(run.sim);
    return run.reached;
}
