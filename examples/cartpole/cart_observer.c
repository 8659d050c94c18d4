/* SPDX-License-Identifier: Apache-2.0 */
/* cart_observer.c - an observer: simulates poles, and asks the agent for an action in each step. */
#include "cart_observer.h"

#include "cartpole.h"
#include "common/worker.h"
#include "policy.h"
#include "common/random_stream.h"

#include <weft/rref.h>

#include <stdatomic.h>
#include <stdlib.h>

typedef struct observer {
    size_t envs, steps;
    double gamma;
    uint64_t seed; /* of this observer */
    atomic_bool busy;
    cartpole *poles;
    cartpole_end *ends;
    int64_t *beginnings;           /* by pole: its resets in this episode */
    int64_t *first;                /* by pole: the length of its first trajectory; 0 while it lasts */
    bool *last;                    /* [steps, envs]: a trajectory ends here */
    weft_tensor *states, *actions; /* [envs, 4], [envs]: arguments and results of select_action */
} observer;

static void drop_observer(void *object)
{
    observer *o = object;
    weft_tensor_unref(o->actions);
    weft_tensor_unref(o->states);
    free(o->last);
    free(o->first);
    free(o->beginnings);
    free(o->ends);
    free(o->poles);
    free(o);
}

static const weft_object_type observer_type = {.name = "observer", .drop = drop_observer};

static observer *create(size_t envs, size_t steps, double gamma, uint64_t seed)
{
    observer *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->envs = envs;
    o->steps = steps;
    o->gamma = gamma;
    o->seed = seed;
    o->poles = calloc(envs, sizeof *o->poles);
    o->ends = calloc(envs, sizeof *o->ends);
    o->beginnings = calloc(envs, sizeof *o->beginnings);
    o->first = calloc(envs, sizeof *o->first);
    o->last = calloc(envs * steps, sizeof *o->last);
    o->states = weft_tensor_zeros(WEFT_SHAPE((int64_t)envs, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32);
    o->actions = weft_tensor_zeros(WEFT_SHAPE((int64_t)envs), WEFT_DTYPE_INT64);
    if (o->poles && o->ends && o->beginnings && o->first && o->last && o->states && o->actions)
        return o;
    drop_observer(o);
    return NULL;
}

static weft_status make_observer(weft_call *call, void *arg)
{
    int64_t envs = weft_call_i64(call, 0), steps = weft_call_i64(call, 1);
    int rank = weft_agent_rank(weft_call_agent(call));
    (void)arg;
    if (envs < 1 || envs > CART_MOST_ENVS || steps < 1 || steps > CART_MOST_STEPS || envs * steps > CART_MOST_MOVES) {
        weft_call_fail(call, WEFT_ERR_INVALID, "%lld poles for %lld steps: expected at most %d, %d, and %d together",
                       (long long)envs, (long long)steps, CART_MOST_ENVS, CART_MOST_STEPS, CART_MOST_MOVES);
        return WEFT_ERR_INVALID;
    }
    uint64_t seed = random_key((uint64_t)weft_call_i64(call, 3), (uint64_t)rank);
    observer *o = create((size_t)envs, (size_t)steps, weft_call_f64(call, 2), seed);
    if (!o)
        return WEFT_ERR_MEMORY;
    weft_call_give_object(call, &observer_type, o);
    return WEFT_OK;
}

/* ---- An episode ------------------------------------------------------------------------------------------------- */

/* Resets a pole. Its initial state depends only on the observer, the pole, the episode, and the number of resets. */
static void begin(observer *o, size_t i, int64_t episode)
{
    uint64_t key = random_key(random_key(o->seed, (uint64_t)episode), i);
    cartpole_reset(&o->poles[i], random_key(key, (uint64_t)o->beginnings[i]++));
}

static void begin_all(observer *o, int64_t episode)
{
    for (size_t i = 0; i < o->envs; i++) {
        o->beginnings[i] = o->first[i] = 0;
        begin(o, i, episode);
    }
}

static void observe(const observer *o)
{
    float *states = weft_tensor_data(o->states);
    for (size_t i = 0; i < o->envs; i++)
        cartpole_observe(&o->poles[i], states + i * CARTPOLE_STATE);
}

/*
 * Applies the agent's actions. A pole that fell is reset. The episode continues, so that all observers have the same
 * number of steps.
 */
static void move(observer *o, int64_t episode, size_t step, double *rewards)
{
    bool over = step + 1 == o->steps;
    cartpole_step_all(o->poles, o->envs, weft_tensor_data(o->actions), o->ends);
    for (size_t i = 0; i < o->envs; i++) {
        bool ends = o->ends[i] != CARTPOLE_GOES_ON || over;
        rewards[step * o->envs + i] = 1;
        o->last[step * o->envs + i] = ends;
        if (ends && !o->first[i])
            o->first[i] = (int64_t)step + 1;
        if (ends && !over)
            begin(o, i, episode);
    }
}

static double mean_first(const observer *o)
{
    double sum = 0;
    for (size_t i = 0; i < o->envs; i++)
        sum += (double)o->first[i];
    return sum / (double)o->envs;
}

static weft_status play(observer *o, weft_call *call, int64_t episode, double *rewards)
{
    weft_error *error = NULL;
    const weft_rpc_options how = {
        .land = {&o->actions, 1}, .timeout_ms = WEFT_FOREVER, .parent = call, .error = &error};
    weft_status st = WEFT_OK;
    begin_all(o, episode);
    for (size_t step = 0; step < o->steps && !st; step++) {
        observe(o);
        st = weft_rpc_sync(weft_call_agent(call), weft_to_rank(weft_call_from(call)), CART_SELECT_ACTION,
                           WEFT_VALUES(weft_of_i64((int64_t)step), weft_of_tensor(o->states)), &how, NULL);
        if (!st)
            move(o, episode, step, rewards);
    }
    weft_call_fail_with(call, error);
    weft_error_unref(error);
    return st;
}

static weft_status play_and_give(observer *o, weft_call *call)
{
    weft_tensor *returns = weft_tensor_empty(WEFT_SHAPE((int64_t)o->steps, (int64_t)o->envs), WEFT_DTYPE_FLOAT64);
    if (!returns)
        return WEFT_ERR_MEMORY;
    weft_status st = play(o, call, weft_call_i64(call, 1), weft_tensor_data(returns));
    if (!st) {
        policy_returns(weft_tensor_data(returns), o->last, o->steps, o->envs, o->gamma);
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(returns), weft_of_f64(mean_first(o))));
    }
    weft_tensor_unref(returns);
    return st;
}

/* Finds the observer that argument 0 refers to. If it could not be made, the call fails with the reason. */
static weft_status find_observer(weft_call *call, void **out)
{
    weft_rref *rref = weft_call_rref(call, 0);
    weft_future *made;
    weft_status st = weft_rref_local_typed(rref, &observer_type, WEFT_FOREVER, out);
    if (!st || weft_rref_to_here_async(rref, WEFT_FOREVER, &made))
        return st;
    if (weft_future_wait(made, WEFT_FOREVER))
        weft_call_fail_with(call, weft_future_error(made));
    weft_future_unref(made);
    return st;
}

static weft_status run_episode(weft_call *call, void *arg)
{
    void *object;
    (void)arg;
    weft_status st = find_observer(call, &object);
    if (st)
        return st;
    observer *o = object;
    if (atomic_exchange(&o->busy, true)) {
        weft_call_fail(call, WEFT_ERR_STATE, "this observer is in an episode already");
        return WEFT_ERR_STATE;
    }
    st = play_and_give(o, call);
    atomic_store(&o->busy, false);
    return st;
}

/* ---- The worker ------------------------------------------------------------------------------------------------- */

const weft_function cart_observer_functions[2] = {
    {.name = "make_observer",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_ANY},
     .run = make_observer},
    {.name = "run_episode",
     .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .run = run_episode},
};

/* The agent calls this when it ends the job early. */
static weft_status dismissed(weft_call *call, void *arg)
{
    (void)arg;
    worker_exit("the agent ended the job: %s", weft_call_string(call, 0));
}

static void on_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)agent, (void)rank, (void)arg;
    if (event == WEFT_MEMBER_SELF_EVICTED)
        worker_exit("this observer was declared dead, and is out of the job: %s", why);
    if (event == WEFT_MEMBER_STORE_LOST)
        worker_exit("the agent is gone: %s", why);
}

int cart_observer_run(const cart_settings *set)
{
    const weft_function functions[] = {cart_observer_functions[0],
                                       cart_observer_functions[1],
                                       {.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed}};
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options options = worker_agent_options(&set->job);
    options.functions = functions;
    options.function_count = sizeof functions / sizeof *functions;
    options.on_membership = on_event;
    options.no_threads = true; /* episodes run inside weft_agent_close: more threads would compete for few cores */
    weft_status st = weft_agent_open(&options, &agent, &error);
    if (st)
        return worker_error(st, error);
    worker_outlive_parent();
    st = weft_agent_close(agent);
    return st ? worker_error(st, NULL) : 0;
}
