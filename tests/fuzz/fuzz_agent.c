/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_agent.c - a whole agent as a decoder: in a small simulated job, rank 1 sends rank 0 the messages that the input
 * says, while rank 0 has calls under way that their replies may hit. Whatever comes, both end in bounded virtual time.
 *
 * Input: records of type u8, size u16 (its top bit: urgent), bytes.
 */
#include "fuzz/inside.h"

#include "rpc/inside.h"
#include "make.h"
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

#define LETTERS_MAX 24
#define CALLS 6
#define HELD_MAX 64

static struct run {
    const uint8_t *bytes;
    size_t size;
    weft_sim *sim;
    weft_call *held[HELD_MAX];
    int held_count;
    bool reached; /* a handler ran for it, or it answered a call */
} run;

static void must(bool holds)
{
    if (!holds)
        abort();
}

static weft_status run_echo(weft_call *call, void *user)
{
    run.reached |= weft_agent_rank(weft_call_agent(call)) == 0;
    weft_call_give(call, WEFT_NO_VALUES);
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    run.reached |= weft_agent_rank(weft_call_agent(call)) == 0;
    if (run.held_count == HELD_MAX)
        return WEFT_ERR_BUSY;
    run.held[run.held_count++] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_status run_back(weft_call *call, void *user)
{
    weft_rref *rref;
    run_echo(call, user);
    weft_status status = weft_rref_create(weft_call_agent(call), weft_of_i64(7), &rref, NULL);
    if (status)
        return status;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    return WEFT_OK;
}

static weft_status run_parts(weft_call *call, void *user)
{
    for (int i = 0; i < 3; i++)
        if (weft_call_send_item(call, WEFT_VALUES(weft_of_i64(i))))
            break; /* nobody takes them */
    return run_echo(call, user);
}

static weft_status run_fail(weft_call *call, void *user)
{
    run_echo(call, user);
    return WEFT_ERR_STATE;
}

static const weft_function functions[] = {
    {.name = "back", .gives = {WEFT_TYPE_RREF}, .run = run_back},
    {.name = "parts", .run = run_parts},
    {.name = "fail", .run = run_fail},
    {.name = "echo", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_echo},
    {.name = "hold",
     .takes = {WEFT_TYPE_REST},
     .gives = {WEFT_TYPE_REST},
     .run = run_hold,
     .flags = WEFT_FUNCTION_INLINE},
};

static void send_all(weft_agent *agent)
{
    size_t at = 0;
    for (int i = 0; i < LETTERS_MAX && run.size - at >= 3; i++) {
        uint8_t type = run.bytes[at];
        size_t said = (size_t)run.bytes[at + 1] | (size_t)run.bytes[at + 2] << 8;
        size_t size = said & 0x7fff, left = run.size - at - 3;
        size = size > INSIDE_MESSAGE_MAX ? INSIDE_MESSAGE_MAX : size;
        size = size > left ? left : size;
        (void)inside_send(agent, 0, type % 0xF0, said & 0x8000, run.bytes + at + 3, size); /* it may refuse */
        at += 3 + size;
        weft_sim_sleep(run.sim, 20000);
    }
}

static void on_item(const weft_values *part, void *arg)
{
    must(part != NULL);
    run.reached = true;
}

/* The victim's own calls, for replies and parts to hit: plain ones, one with parts, references. */
static void await_answers(weft_agent *agent)
{
    weft_future *futures[CALLS] = {NULL};
    weft_rref *rref = NULL;
    weft_tensor *place = tensor_arange(1000, WEFT_DTYPE_FLOAT64);
    for (int i = 0; i < CALLS; i++) {
        weft_rpc_options how = {.timeout_ms = 40, .on_item = i == 1 ? on_item : NULL};
        if (i == 2)
            how.land = (weft_tensors){&place, 1};
        if (weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, &how, &futures[i]))
            futures[i] = NULL;
    }
    weft_status status =
        weft_rpc_remote(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = 40}, &rref);
    weft_sim_sleep(run.sim, 2000000);
    for (int i = 0; i < CALLS; i++) {
        if (futures[i])
            status = weft_future_wait(futures[i], 10000);
        run.reached |= futures[i] && status != WEFT_ERR_TIMEOUT;
        must(!futures[i] || weft_future_done(futures[i]));
        weft_future_unref(futures[i]);
    }
    (void)status; /* any end is fine */
    weft_rref_unref(rref);
    weft_tensor_unref(place);
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
                                  .function_count = sizeof(functions) / sizeof(functions[0]),
                                  .call_timeout_ms = 200,
                                  .memory_budget_bytes = 1 << 20};
    weft_status status = weft_agent_open(&options, &agent, NULL);
    must(status == WEFT_OK);
    if (rank == 1)
        send_all(agent);
    else
        await_answers(agent);
    weft_sim_sleep(sim, 60000000);
    weft_agent_stop(agent);
}

bool fuzz_agent(const uint8_t *bytes, size_t size)
{
    run = (struct run){.bytes = bytes, .size = size, .sim = sim_open(&(weft_sim_options){.seed = 1})};
    must(run.sim != NULL);
    for (int rank = 0; rank < 2; rank++)
        must(weft_sim_spawn(run.sim, rank, play, NULL) == WEFT_OK);
    must(weft_sim_run(run.sim, 60000) == WEFT_OK);
    for (int i = 0; i < run.held_count; i++)
        weft_call_finish(run.held[i], WEFT_OK);
    weft_sim_close(run.sim);
    return run.reached;
}
