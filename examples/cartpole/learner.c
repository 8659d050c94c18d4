/* SPDX-License-Identifier: Apache-2.0 */
/* learner.c - the policy of the agent. */
#include "learner.h"

#include "pole.h"
#include "policy.h"
#include "common/random_stream.h"
#include "common/temporary.h"

#include <weft/optim.h>

#include <stdlib.h>
#include <string.h>

enum { FOR_WEIGHTS = 1, FOR_DECISIONS }; /* streams of random numbers */

/* The states of one observer in this episode, and the actions chosen for them. */
typedef struct track {
    float *states;    /* [steps, envs, 4] */
    int64_t *actions; /* [steps, envs] */
    int64_t steps;    /* decided on */
} track;

struct cart_learner {
    const cart_settings *set;
    weft_module *policy;
    weft_optimizer *adam;
    uint64_t evaluations;
    int64_t episode; /* -1: no episode has begun */
    track *tracks;   /* by rank; rank 0 has none */
};

cart_learner *cart_learner_create(const cart_settings *set)
{
    cart_learner *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    size_t poles = (size_t)(set->steps * set->envs);
    bool whole = true;
    l->set = set;
    l->episode = -1;
    weft_status status =
        policy_create(set->hidden, set->dropout, random_key((uint64_t)set->seed, FOR_WEIGHTS), &l->policy);
    if (!status)
        status = weft_optimizer_create(weft_module_parameters(l->policy),
                                       &(weft_optimizer_spec){.type = &weft_adam_type, .lr = set->lr}, &l->adam, NULL);
    l->tracks = calloc((size_t)set->world_size, sizeof(*l->tracks));
    for (int64_t rank = 1; rank < set->world_size && l->tracks; rank++) {
        track *k = &l->tracks[rank];
        k->states = malloc(poles * CARTPOLE_STATE * sizeof(*k->states));
        k->actions = malloc(poles * sizeof(*k->actions));
        whole = whole && k->states && k->actions;
    }
    if (whole && !status && l->tracks)
        return l;
    cart_learner_free(l);
    return NULL;
}

void cart_learner_free(cart_learner *l)
{
    if (!l)
        return;
    for (int64_t rank = 1; rank < l->set->world_size && l->tracks; rank++) {
        free(l->tracks[rank].actions);
        free(l->tracks[rank].states);
    }
    free(l->tracks);
    weft_optimizer_unref(l->adam);
    weft_module_unref(l->policy);
    free(l);
}

weft_module *cart_learner_policy(const cart_learner *l)
{
    return l->policy;
}

uint64_t cart_learner_evaluations(const cart_learner *l)
{
    return l->evaluations;
}

/* ---- Deciding --------------------------------------------------------------------------------------------------- */

void cart_learner_begin(cart_learner *l, int64_t episode)
{
    l->episode = episode;
    for (int64_t rank = 1; rank < l->set->world_size; rank++)
        l->tracks[rank].steps = 0;
}

weft_status cart_learner_admit(cart_learner *l, weft_call *call)
{
    int rank = weft_call_from(call);
    int64_t step = weft_call_i64(call, 0);
    const weft_tensor *states = weft_call_tensor(call, 1);
    bool fits = weft_tensor_dtype(states) == WEFT_DTYPE_FLOAT32 && weft_tensor_ndim(states) == 2 &&
                weft_tensor_size(states, 0) == l->set->envs && weft_tensor_size(states, 1) == CARTPOLE_STATE;
    const track *k = &l->tracks[rank];
    bool next = rank > 0 && l->episode >= 0 && step == k->steps && step < l->set->steps;
    if (!fits)
        weft_call_fail(call, WEFT_ERR_SHAPE, "expected the states of %d poles, float32", (int)l->set->envs);
    else if (!next)
        weft_call_fail(call, WEFT_ERR_STATE, "step %lld of observer %d does not come now", (long long)step, rank);
    return !fits ? WEFT_ERR_SHAPE : next ? WEFT_OK : WEFT_ERR_STATE;
}

static uint64_t decision_key(const cart_learner *l, int rank, int64_t step, int64_t pole)
{
    uint64_t key = random_key(random_key((uint64_t)l->set->seed, FOR_DECISIONS), (uint64_t)l->episode);
    return random_key(random_key(key, (uint64_t)step), (uint64_t)rank << 32 | (uint64_t)pole);
}

/* The keys of all poles of an observer, in one step. */
static void put_keys(const cart_learner *l, int rank, int64_t step, uint64_t *keys)
{
    for (int64_t pole = 0; pole < l->set->envs; pole++)
        keys[pole] = decision_key(l, rank, step, pole);
}

static void remember(cart_learner *l, int rank, const float *states, const int64_t *actions)
{
    track *k = &l->tracks[rank];
    size_t envs = (size_t)l->set->envs, at = (size_t)k->steps++ * envs;
    memcpy(k->states + at * CARTPOLE_STATE, states, envs * CARTPOLE_STATE * sizeof(*states));
    memcpy(k->actions + at, actions, envs * sizeof(*actions));
}

weft_tensor *cart_learner_decide(cart_learner *l, weft_tape *t, const int *ranks, int64_t count, weft_tensor *states)
{
    int64_t rows = count * l->set->envs;
    weft_tensor *x = weft_reshape(t, states, WEFT_SHAPE(rows, CARTPOLE_STATE));
    weft_tensor *keys = temporary_empty(t, WEFT_SHAPE(rows), WEFT_DTYPE_INT64);
    weft_tensor *actions = temporary_empty(t, WEFT_SHAPE(count, l->set->envs), WEFT_DTYPE_INT64);
    weft_tensor *probabilities = NULL;
    if (keys && actions) {
        for (int64_t i = 0; i < count; i++)
            put_keys(l, ranks[i], l->tracks[ranks[i]].steps, (uint64_t *)weft_tensor_data(keys) + i * l->set->envs);
        weft_tensor *mask = policy_mask(t, l->policy, weft_tensor_data(keys), rows);
        probabilities = weft_softmax(t, policy_scores(t, l->policy, x, mask), -1);
        l->evaluations++;
    }
    if (!probabilities)
        return NULL;
    const float *seen = weft_tensor_data(states);
    int64_t *chosen = weft_tensor_data(actions);
    policy_draw(probabilities, weft_tensor_data(keys), chosen);
    for (int64_t i = 0; i < count; i++)
        if (ranks[i])
            remember(l, ranks[i], seen + i * l->set->envs * CARTPOLE_STATE, chosen + i * l->set->envs);
    return actions;
}

/* ---- Learning --------------------------------------------------------------------------------------------------- */

/* Joins all returns, in the order of ranks, and normalises them if asked to. NULL: no memory. */
static double *join_returns(const cart_learner *l, weft_tensor *const *returns, size_t *observers)
{
    size_t each = (size_t)(l->set->steps * l->set->envs), count = 0;
    double *all = malloc((size_t)l->set->world_size * each * sizeof(*all));
    for (int64_t rank = 1; rank < l->set->world_size && all; rank++)
        if (returns[rank])
            memcpy(all + count++ * each, weft_tensor_data(returns[rank]), each * sizeof(*all));
    if (all && l->set->normalise)
        policy_normalise(all, count * each);
    *observers = count;
    return all;
}

static weft_tensor *as_float32(weft_tape *t, int64_t rows, double *returns)
{
    weft_tensor *wide = temporary_wrap(t, WEFT_SHAPE(rows), WEFT_DTYPE_FLOAT64, returns), *narrow = NULL;
    weft_error *why = NULL;
    weft_status status = wide ? weft_tensor_to(wide, WEFT_DTYPE_FLOAT32, &narrow, &why) : WEFT_OK;
    return temporary_keep(t, status, narrow, why);
}

/* Adds the gradient of one observer's episode. */
static weft_status learn_from(cart_learner *l, int rank, double *returns, double factor, weft_error **error)
{
    int64_t steps = l->set->steps, envs = l->set->envs, rows = steps * envs;
    const track *k = &l->tracks[rank];
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *states = temporary_wrap(t, WEFT_SHAPE(rows, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32, k->states);
    weft_tensor *actions = temporary_wrap(t, WEFT_SHAPE(rows), WEFT_DTYPE_INT64, k->actions);
    weft_tensor *keys = temporary_empty(t, WEFT_SHAPE(rows), WEFT_DTYPE_INT64);
    weft_tensor *weights = as_float32(t, rows, returns);
    if (keys && weights) {
        for (int64_t step = 0; step < steps; step++)
            put_keys(l, rank, step, (uint64_t *)weft_tensor_data(keys) + step * envs);
        weft_tensor *mask = policy_mask(t, l->policy, weft_tensor_data(keys), rows);
        weft_tensor *loss = policy_loss(t, l->policy, states, mask, actions, weights);
        weft_backward(t, weft_scale(t, loss, factor));
    }
    weft_status status = weft_tape_status(t);
    if (status)
        *error = weft_error_ref(weft_tape_error(t));
    else
        status = weft_optimizer_accumulate(l->adam, weft_tape_grads(t, weft_module_parameters(l->policy)));
    weft_tape_close(t);
    return status;
}

weft_status cart_learner_learn(cart_learner *l, weft_tensor *const *returns, weft_error **error)
{
    size_t observers;
    double *all = join_returns(l, returns, &observers), *next = all;
    weft_status status = all ? WEFT_OK : WEFT_ERR_MEMORY;
    double factor = 1.0 / (double)((int64_t)observers * l->set->envs); /* the mean over all poles */
    for (int rank = 1; rank < l->set->world_size && !status; rank++) {
        if (!returns[rank])
            continue;
        status = learn_from(l, rank, next, factor, error);
        next += l->set->steps * l->set->envs;
    }
    free(all);
    return status ? status : weft_optimizer_step(l->adam);
}
