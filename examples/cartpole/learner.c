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

/* The states of one observer in this episode, and the actions chosen for them, on the policy's device. */
typedef struct track {
    weft_tensor *states;  /* [steps, envs, 4] */
    weft_tensor *actions; /* [steps, envs] */
    int64_t steps;        /* decided on */
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
    l->set = set;
    l->episode = -1;
    weft_status status =
        policy_create(set->hidden, set->dropout, random_key((uint64_t)set->seed, FOR_WEIGHTS), &l->policy);
    if (!status)
        status = weft_module_to_device(l->policy, set->device);
    if (!status)
        status = weft_optimizer_create(weft_module_parameters(l->policy),
                                       &(weft_optimizer_spec){.type = &weft_adam_type, .lr = set->lr}, &l->adam, NULL);
    l->tracks = calloc((size_t)set->world_size, sizeof(*l->tracks));
    if (!l->tracks)
        status = WEFT_ERR_MEMORY;
    const weft_shape states = WEFT_SHAPE(set->steps, set->envs, CARTPOLE_STATE),
                     actions = WEFT_SHAPE(set->steps, set->envs);
    for (int64_t rank = 1; rank < set->world_size && !status; rank++) {
        track *k = &l->tracks[rank];
        status = weft_tensor_empty_on(set->device, states, WEFT_DTYPE_FLOAT32, &k->states, NULL);
        if (!status)
            status = weft_tensor_empty_on(set->device, actions, WEFT_DTYPE_INT64, &k->actions, NULL);
    }
    if (!status)
        return l;
    cart_learner_free(l);
    return NULL;
}

void cart_learner_free(cart_learner *l)
{
    if (!l)
        return;
    for (int64_t rank = 1; rank < l->set->world_size && l->tracks; rank++) {
        weft_tensor_unref(l->tracks[rank].actions);
        weft_tensor_unref(l->tracks[rank].states);
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

/* all[step] = rows[row], for contiguous tensors. */
static weft_status put(weft_tensor *all, int64_t step, weft_tensor *rows, int64_t row)
{
    weft_tensor *to = NULL, *from = NULL;
    size_t bytes = weft_tensor_nbytes(rows) / (size_t)weft_tensor_size(rows, 0);
    char *data = weft_tensor_data(all);
    if (data) { /* on the CPU; views would cost more than the copy */
        memcpy(data + (size_t)step * bytes, (char *)weft_tensor_data(rows) + (size_t)row * bytes, bytes);
        return WEFT_OK;
    }
    weft_status status = weft_tensor_select(all, 0, step, &to, NULL);
    if (!status)
        status = weft_tensor_select(rows, 0, row, &from, NULL);
    if (!status)
        status = weft_tensor_assign(to, from);
    weft_tensor_unref(from);
    weft_tensor_unref(to);
    return status;
}

/* Of the observer in row `row`. */
static void remember(cart_learner *l, weft_tape *t, int rank, int64_t row, weft_tensor *states, weft_tensor *actions)
{
    track *k = &l->tracks[rank];
    weft_status status = put(k->states, k->steps, states, row);
    if (!status)
        status = put(k->actions, k->steps, actions, row);
    if (status)
        weft_tape_fail(t, status, "a step cannot be recorded");
    k->steps++;
}

static weft_tensor *decide(cart_learner *l, weft_tape *t, const int *ranks, int64_t count, weft_tensor *states)
{
    int64_t envs = l->set->envs, rows = count * envs;
    weft_tensor *keys = temporary_empty(t, WEFT_SHAPE(rows), WEFT_DTYPE_INT64);
    if (!keys)
        return NULL;
    for (int64_t i = 0; i < count; i++)
        put_keys(l, ranks[i], l->tracks[ranks[i]].steps, (uint64_t *)weft_tensor_data(keys) + i * envs);
    weft_tensor *x = weft_reshape(t, states, WEFT_SHAPE(rows, CARTPOLE_STATE));
    weft_tensor *mask = policy_mask(t, l->policy, weft_tensor_data(keys), rows);
    weft_tensor *probabilities = weft_softmax(t, policy_scores(t, l->policy, x, mask), -1);
    weft_tensor *actions = probabilities ? policy_draw(t, probabilities, weft_tensor_data(keys)) : NULL;
    actions = weft_reshape(t, actions, WEFT_SHAPE(count, envs));
    states = weft_reshape(t, states, WEFT_SHAPE(count, envs, CARTPOLE_STATE)); /* a plain call has no rows */
    l->evaluations++;
    for (int64_t i = 0; i < count && actions; i++)
        if (ranks[i])
            remember(l, t, ranks[i], i, states, actions);
    return actions;
}

weft_tensor *cart_learner_decide(cart_learner *l, weft_tape *t, const int *ranks, int64_t count, weft_tensor *states)
{
    if (l->set->device.kind == WEFT_DEVICE_CPU)
        return decide(l, t, ranks, count, states);
    weft_tape *inner = weft_tape_open(&(weft_tape_options){.parent = t, .device = l->set->device});
    weft_tensor *actions = weft_tensor_ref(decide(l, inner, ranks, count, states));
    if (weft_tape_status(inner))
        weft_tape_fail(t, weft_tape_status(inner), "%s", weft_error_message(weft_tape_error(inner)));
    weft_tape_close(inner);
    return weft_tape_take(t, actions);
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
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .device = l->set->device});
    weft_tensor *states = weft_reshape(t, k->states, WEFT_SHAPE(rows, CARTPOLE_STATE));
    weft_tensor *actions = weft_reshape(t, k->actions, WEFT_SHAPE(rows));
    weft_tensor *keys = temporary_empty(t, WEFT_SHAPE(rows), WEFT_DTYPE_INT64);
    weft_tensor *weights = temporary_move(t, as_float32(t, rows, returns), l->set->device);
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
