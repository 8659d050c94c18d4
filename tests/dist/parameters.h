/* SPDX-License-Identifier: Apache-2.0 */
/* parameters.h - for the tests of contexts: three workers, each with a parameter of [2], and what a root asks of
 * them. */
#ifndef TESTS_DIST_PARAMETERS_H
#define TESTS_DIST_PARAMETERS_H

#include "rpc/world.h"
#include "tensors.h"

#define WORKERS 3

static inline weft_tensor *leaf_of(float a, float b)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    memcpy(weft_tensor_data(x), (float[]){a, b}, 2 * sizeof(float));
    weft_tensor_set_requires_grad(x, true);
    return x;
}

/* A parameter of each rank's, [2]. All agents of a world live in this process. */
static weft_tensor *parameters[WORKERS];

static inline void make_parameters(world *w)
{
    (void)w;
    for (int rank = 0; rank < WORKERS; rank++)
        parameters[rank] = leaf_of((float)rank + 2, (float)rank - 3);
}

static inline void drop_parameters(world *w)
{
    (void)w;
    for (int rank = 0; rank < WORKERS; rank++)
        weft_tensor_unref(parameters[rank]);
}

static inline weft_tensor *parameter_here(const weft_call *call)
{
    return parameters[weft_agent_rank(weft_call_agent(call))];
}

/* (x) -> (parameter * x) */
static inline weft_status serve_times(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *y = weft_mul(weft_call_tape(call), parameter_here(call), weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

/* (x, hops) -> parameter * x, sent on to the next worker while hops are left */
static inline weft_status serve_pass_on(weft_call *call, void *user)
{
    (void)user;
    weft_agent *agent = weft_call_agent(call);
    weft_tape *t = weft_call_tape(call);
    int64_t hops = weft_call_i64(call, 1);
    weft_tensor *y = weft_mul(t, parameter_here(call), weft_call_tensor(call, 0));
    if (!hops) {
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
        return WEFT_OK;
    }
    weft_values *results;
    weft_status status = weft_rpc_sync(agent, weft_to_rank((weft_agent_rank(agent) + 1) % WORKERS), "pass_on",
                                       WEFT_VALUES(weft_of_tensor(y), weft_of_i64(hops - 1)),
                                       &(weft_rpc_options){.tape = t, .parent = call}, &results);
    if (!status) {
        weft_call_give(call, weft_values_args(results));
        weft_values_unref(results);
    }
    return status;
}

/* () -> the gradient of this worker's parameter in the call's context; null if there is none */
static inline weft_status serve_gradient(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)), parameter_here(call));
    weft_call_give(call, WEFT_VALUES(gradient ? weft_of_tensor(gradient) : weft_of_null()));
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

static inline weft_status broken_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted,
                                          weft_tensor **dx)
{
    (void)state, (void)saved, (void)dy, (void)wanted, (void)dx;
    return WEFT_ERR_SYSTEM;
}

/* (x) -> x, whose gradient fails */
static inline weft_status serve_broken(weft_call *call, void *user)
{
    (void)user;
    static const weft_operator op = {.name = "broken_pipe", .backward = broken_backward};
    weft_tensor *x = weft_call_tensor(call, 0), *y = tensor_clone(x), *out = NULL;
    weft_tape_record(weft_call_tape(call), &op, (weft_tensors){&x, 1}, (weft_tensors){0}, NULL, (weft_tensors){&y, 1},
                     &out);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(out)));
    weft_tensor_unref(y);
    return WEFT_OK;
}

#define DIST_TEST(name, seeds, on_tcp)                                                                                 \
    WORLD_TEST(name, seeds, on_tcp, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = make_parameters,             \
               .end = drop_parameters)

/* A call's results, for the tape's while. */
static inline weft_values *call_on(weft_tape *t, weft_agent *agent, int rank, const char *function, weft_args args)
{
    weft_values *results = NULL;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), function, args, &(weft_rpc_options){.tape = t}, &results));
    return results;
}

static inline weft_tensor *result(const weft_values *results, size_t index)
{
    weft_tensor *tensor = NULL;
    MUST_OK(weft_values_get_tensor(results, index, &tensor));
    return tensor;
}

static inline void must_be(const weft_tensor *tensor, float a, float b)
{
    const float *values = tensor ? weft_tensor_data((weft_tensor *)tensor) : NULL;
    MUST(values && values[0] == a && values[1] == b);
}

static inline void must_have_gradient(weft_context *c, const weft_tensor *leaf, float a, float b)
{
    weft_tensor *gradient = weft_context_ref_grad(c, leaf);
    must_be(gradient, a, b);
    weft_tensor_unref(gradient);
}

/* The gradient of rank's parameter; NULL in `values`: it must have none. */
static inline void must_have_there(weft_tape *t, weft_agent *agent, int rank, const float *values)
{
    weft_values *results = call_on(t, agent, rank, "gradient", WEFT_NO_VALUES);
    if (values)
        must_be(result(results, 0), values[0], values[1]);
    else
        MUST(weft_values_type(results, 0) == WEFT_TYPE_NULL);
    weft_values_unref(results);
}

/* Closes it, waits for all to let go, and sees that they did. */
static inline void close_and_look(weft_context *c, weft_agent *agent)
{
    weft_future *gone;
    size_t passes;
    weft_context_close(c, &gone);
    MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
    weft_future_unref(gone);
    MUST(weft_agent_contexts(agent, &passes) == 0 && passes == 0);
}

#endif
