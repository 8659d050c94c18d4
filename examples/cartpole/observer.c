/* SPDX-License-Identifier: Apache-2.0 */
/* observer.c - an observer: simulates poles, and asks the agent for an action in each step. */
#include "observer.h"

#include "common/random_stream.h"
#include "pole.h"
#include "policy.h"

#include <stdlib.h>

typedef struct observer {
    size_t envs, steps;
    uint64_t seed; /* of this observer, in this episode */
    cartpole *poles;
    int64_t *beginnings;                     /* by pole: its resets */
    int64_t *first;                          /* by pole: the length of its first trajectory; 0 while it lasts */
    bool *last;                              /* [steps, envs]: a trajectory ends here */
    weft_tensor *states, *actions, *returns; /* [envs, 4], [envs]: of select_action; [steps, envs] */
} observer;

/* Resets a pole. Its initial state depends only on the observer, the pole, the episode, and the number of resets. */
static void begin(observer *o, size_t i)
{
    cartpole_reset(&o->poles[i], random_key(random_key(o->seed, i), (uint64_t)o->beginnings[i]++));
}

static weft_status open_observer(observer *o)
{
    int64_t envs = (int64_t)o->envs, steps = (int64_t)o->steps;
    o->poles = calloc(o->envs, sizeof(*o->poles));
    o->beginnings = calloc(o->envs, sizeof(*o->beginnings));
    o->first = calloc(o->envs, sizeof(*o->first));
    o->last = calloc(o->envs * o->steps, sizeof(*o->last));
    weft_status status = o->poles && o->beginnings && o->first && o->last ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!status)
        status = weft_tensor_zeros(WEFT_SHAPE(envs, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32, &o->states, NULL);
    if (!status)
        status = weft_tensor_zeros(WEFT_SHAPE(envs), WEFT_DTYPE_INT64, &o->actions, NULL);
    if (!status) /* a reward of 1 for every step */
        status = weft_tensor_full(WEFT_SHAPE(steps, envs), WEFT_DTYPE_FLOAT64, 1, &o->returns, NULL);
    for (size_t i = 0; i < o->envs && !status; i++)
        begin(o, i);
    return status;
}

static void close_observer(observer *o)
{
    weft_tensor_unref(o->returns);
    weft_tensor_unref(o->actions);
    weft_tensor_unref(o->states);
    free(o->last);
    free(o->first);
    free(o->beginnings);
    free(o->poles);
}

/*
 * Applies the agent's actions. A pole that fell is reset. The episode continues, so that all observers have the same
 * number of steps.
 */
static void move(observer *o, size_t step)
{
    bool over = step + 1 == o->steps;
    const int64_t *actions = weft_tensor_data(o->actions);
    for (size_t i = 0; i < o->envs; i++) {
        bool ends = cartpole_step(&o->poles[i], (int)actions[i]) != CARTPOLE_GOES_ON || over;
        o->last[step * o->envs + i] = ends;
        if (ends && !o->first[i])
            o->first[i] = (int64_t)step + 1;
        if (ends && !over)
            begin(o, i);
    }
}

static weft_status play(observer *o, weft_call *call)
{
    weft_error *error = NULL;
    const weft_rpc_options how = {
        .land = {&o->actions, 1}, .timeout_ms = WEFT_FOREVER, .parent = call, .error = &error};
    weft_status status = WEFT_OK;
    float *states = weft_tensor_data(o->states);
    for (size_t step = 0; step < o->steps && !status; step++) {
        for (size_t i = 0; i < o->envs; i++)
            cartpole_observe(&o->poles[i], states + i * CARTPOLE_STATE);
        status = weft_rpc_sync(weft_call_agent(call), weft_to_rank(weft_call_from(call)), CART_SELECT_ACTION,
                               WEFT_VALUES(weft_of_i64((int64_t)step), weft_of_tensor(o->states)), &how, NULL);
        if (!status)
            move(o, step);
    }
    weft_call_fail_with(call, error);
    weft_error_unref(error);
    return status;
}

static weft_status run_episode(weft_call *call, void *arg)
{
    int64_t episode = weft_call_i64(call, 0), envs = weft_call_i64(call, 1), steps = weft_call_i64(call, 2);
    int rank = weft_agent_rank(weft_call_agent(call));
    double length = 0;
    (void)arg;
    if (envs < 1 || envs > CART_MOST_ENVS || steps < 1 || steps > CART_MOST_STEPS || envs * steps > CART_MOST_MOVES) {
        weft_call_fail(call, WEFT_ERR_INVALID, "%lld poles for %lld steps: expected at most %d, %d, and %d together",
                       (long long)envs, (long long)steps, CART_MOST_ENVS, CART_MOST_STEPS, CART_MOST_MOVES);
        return WEFT_ERR_INVALID;
    }
    uint64_t seed = random_key((uint64_t)weft_call_i64(call, 4), (uint64_t)rank);
    observer o = {.envs = (size_t)envs, .steps = (size_t)steps, .seed = random_key(seed, (uint64_t)episode)};
    weft_status status = open_observer(&o);
    if (!status)
        status = play(&o, call);
    if (!status) {
        policy_returns(weft_tensor_data(o.returns), o.last, o.steps, o.envs, weft_call_f64(call, 3));
        for (size_t i = 0; i < o.envs; i++)
            length += (double)o.first[i] / (double)o.envs;
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(o.returns), weft_of_f64(length)));
    }
    close_observer(&o);
    return status;
}

const weft_function cart_run_episode = {
    .name = "run_episode",
    .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64},
    .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
    .run = run_episode};
