/* SPDX-License-Identifier: Apache-2.0 */
/* cart_learner.c - the policy of the agent. */
#include "cart_learner.h"

#include "cartpole.h"
#include "policy.h"
#include "common/random_stream.h"

#include <weft/optim.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define UNITS_AT_ONCE (1 << 16) /* of the hidden layer, in one backward pass: its tensors fit the cache of a core */

enum { FOR_WEIGHTS = 1, FOR_DECISIONS }; /* streams of random numbers */

/* The states of one observer in this episode, and the actions chosen for them. */
typedef struct track {
    float *states;    /* [steps, envs, 4] */
    int64_t *actions; /* [steps, envs] */
    int64_t steps;    /* decided on */
    bool deciding;
} track;

struct cart_learner {
    const cart_settings *set;
    weft_module *policy;
    weft_optimizer *adam;
    atomic_uint_fast64_t evaluations;

    pthread_mutex_t lock; /* protects the fields below; only the thread that decides for a track uses its arrays */
    int64_t episode;      /* -1: no episode has begun */
    track *tracks;        /* by rank; rank 0 has none */
};

cart_learner *cart_learner_create(const cart_settings *set)
{
    cart_learner *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    size_t poles = (size_t)(set->steps * set->envs);
    bool whole = true;
    l->set = set;
    l->episode = -1;
    pthread_mutex_init(&l->lock, NULL);
    l->policy = policy_create(set->hidden, set->dropout, random_key((uint64_t)set->seed, FOR_WEIGHTS));
    if (l->policy && weft_module_to_device(l->policy, set->device)) {
        cart_learner_free(l);
        return NULL;
    }
    if (l->policy)
        l->adam = weft_adam_create(weft_module_parameters(l->policy), &(weft_optimizer_spec){.lr = set->lr}, NULL);
    l->tracks = calloc((size_t)set->job.world_size, sizeof *l->tracks);
    for (int64_t rank = 1; rank < set->job.world_size && l->tracks; rank++) {
        track *k = &l->tracks[rank];
        k->states = malloc(poles * CARTPOLE_STATE * sizeof *k->states);
        k->actions = malloc(poles * sizeof *k->actions);
        whole = whole && k->states && k->actions;
    }
    if (whole && l->adam && l->tracks)
        return l;
    cart_learner_free(l);
    return NULL;
}

void cart_learner_free(cart_learner *l)
{
    if (!l)
        return;
    for (int64_t rank = 1; rank < l->set->job.world_size && l->tracks; rank++) {
        free(l->tracks[rank].actions);
        free(l->tracks[rank].states);
    }
    free(l->tracks);
    weft_optimizer_unref(l->adam);
    weft_module_unref(l->policy);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

weft_module *cart_learner_policy(const cart_learner *l)
{
    return l->policy;
}

uint64_t cart_learner_evaluations(const cart_learner *l)
{
    return atomic_load(&l->evaluations);
}

/* ---- Deciding --------------------------------------------------------------------------------------------------- */

void cart_learner_begin(cart_learner *l, int64_t episode)
{
    pthread_mutex_lock(&l->lock);
    l->episode = episode;
    for (int64_t rank = 1; rank < l->set->job.world_size; rank++)
        l->tracks[rank].steps = 0;
    pthread_mutex_unlock(&l->lock);
}

weft_status cart_learner_admit(cart_learner *l, weft_call *call)
{
    int rank = weft_call_from(call);
    int64_t step = weft_call_i64(call, 0);
    const weft_tensor *states = weft_call_tensor(call, 1);
    bool fits = weft_tensor_dtype(states) == WEFT_DTYPE_FLOAT32 && weft_tensor_ndim(states) == 2 &&
                weft_tensor_size(states, 0) == l->set->envs && weft_tensor_size(states, 1) == CARTPOLE_STATE;
    pthread_mutex_lock(&l->lock);
    track *k = &l->tracks[rank];
    bool next = rank > 0 && l->episode >= 0 && !k->deciding && step == k->steps && step < l->set->steps;
    if (fits && next)
        k->deciding = true;
    pthread_mutex_unlock(&l->lock);
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

static void find_keys(const cart_learner *l, const int *ranks, int64_t count, uint64_t *keys)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t pole = 0; pole < l->set->envs; pole++)
            *keys++ = decision_key(l, ranks[i], ranks[i] ? l->tracks[ranks[i]].steps : 0, pole);
}

static void remember(cart_learner *l, const int *ranks, int64_t count, const float *states, const int64_t *actions)
{
    int64_t envs = l->set->envs;
    for (int64_t i = 0; i < count; i++) {
        track *k = &l->tracks[ranks[i]];
        if (!ranks[i] || !actions)
            continue;
        memcpy(k->states + k->steps * envs * CARTPOLE_STATE, states + i * envs * CARTPOLE_STATE,
               (size_t)(envs * CARTPOLE_STATE) * sizeof *states);
        memcpy(k->actions + k->steps * envs, actions + i * envs, (size_t)envs * sizeof *actions);
    }
    pthread_mutex_lock(&l->lock);
    for (int64_t i = 0; i < count; i++) {
        l->tracks[ranks[i]].steps += actions != NULL;
        l->tracks[ranks[i]].deciding = false;
    }
    pthread_mutex_unlock(&l->lock);
}

/* On the device of tape `t`, which owns the result. */
static weft_tensor *moved(weft_tape *t, weft_tensor *x, weft_device device)
{
    weft_tensor *there = x ? weft_tape_take(t, weft_tensor_to_device(x, device)) : NULL;
    if (x && !there)
        weft_tape_fail(t, WEFT_ERR_MEMORY, "states cannot be copied to the device");
    return there;
}

/* The policy's probabilities for x [rows, 4]; both are CPU tensors, and `t` owns the result. On a GPU the policy runs
 * on a tape of its own. */
static weft_tensor *evaluate(cart_learner *l, weft_tape *t, weft_tensor *x, weft_tensor *mask)
{
    const weft_device device = l->set->device;
    if (device.kind == WEFT_DEVICE_CPU)
        return weft_softmax(t, policy_scores(t, l->policy, x, mask), -1);
    weft_tape *there = weft_tape_open(&(weft_tape_options){.device = device});
    weft_tensor *scores = policy_scores(there, l->policy, moved(there, x, device), moved(there, mask, device));
    weft_tensor *probabilities = weft_softmax(there, scores, -1);
    if (weft_tape_status(there))
        weft_tape_fail(t, weft_tape_status(there), "the policy on the device: %s",
                       weft_error_message(weft_tape_error(there)));
    weft_tensor *here = moved(t, probabilities, (weft_device){0});
    weft_tape_close(there);
    return here;
}

weft_tensor *cart_learner_decide(cart_learner *l, weft_tape *t, const int *ranks, int64_t count, weft_tensor *states)
{
    int64_t rows = count * l->set->envs;
    weft_tensor *x = weft_reshape(t, states, WEFT_SHAPE(rows, CARTPOLE_STATE));
    weft_tensor *keys = weft_tape_take(t, weft_tensor_empty(WEFT_SHAPE(rows), WEFT_DTYPE_INT64));
    weft_tensor *actions = weft_tape_take(t, weft_tensor_empty(WEFT_SHAPE(count, l->set->envs), WEFT_DTYPE_INT64));
    weft_tensor *probabilities = NULL;
    if (keys && actions) {
        find_keys(l, ranks, count, weft_tensor_data(keys));
        weft_tensor *mask = policy_mask(t, l->policy, weft_tensor_data(keys), rows);
        probabilities = evaluate(l, t, x, mask);
        atomic_fetch_add(&l->evaluations, 1);
    } else {
        weft_tape_fail(t, WEFT_ERR_MEMORY, "out of memory for %d decisions", (int)rows);
    }
    if (probabilities)
        policy_draw(probabilities, weft_tensor_data(keys), weft_tensor_data(actions));
    remember(l, ranks, count, weft_tensor_data(states), probabilities ? weft_tensor_data(actions) : NULL);
    return probabilities ? actions : NULL;
}

/* ---- Learning --------------------------------------------------------------------------------------------------- */

/* Joins all returns, in the order of ranks, and normalises them if asked to. NULL: no memory. */
static double *join_returns(const cart_learner *l, weft_tensor *const *returns, size_t *observers)
{
    size_t each = (size_t)(l->set->steps * l->set->envs), count = 0;
    double *all = malloc((size_t)l->set->job.world_size * each * sizeof *all);
    for (int64_t rank = 1; rank < l->set->job.world_size && all; rank++)
        if (returns[rank])
            memcpy(all + count++ * each, weft_tensor_data(returns[rank]), each * sizeof *all);
    if (all && l->set->normalise)
        policy_normalise(all, count * each);
    *observers = count;
    return all;
}

static void learn_keys(const cart_learner *l, int rank, int64_t step, int64_t steps, uint64_t *keys)
{
    for (int64_t i = 0; i < steps; i++)
        for (int64_t pole = 0; pole < l->set->envs; pole++)
            *keys++ = decision_key(l, rank, step + i, pole);
}

static weft_tensor *as_float32(weft_tape *t, int64_t rows, double *returns)
{
    weft_tensor *wide = weft_tensor_wrap(WEFT_SHAPE(rows), WEFT_DTYPE_FLOAT64, returns, NULL, NULL, NULL);
    weft_tensor *narrow = wide ? weft_tape_take(t, weft_tensor_to(wide, WEFT_DTYPE_FLOAT32)) : NULL;
    weft_tensor_unref(wide);
    return narrow;
}

/* Adds the gradient of some steps of one observer. */
static weft_status learn_from(cart_learner *l, int rank, int64_t step, int64_t steps, double *returns, double factor,
                              weft_error **error)
{
    int64_t rows = steps * l->set->envs, first = step * l->set->envs;
    const track *k = &l->tracks[rank];
    const weft_device device = l->set->device;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .device = device});
    weft_tensor *states = weft_tape_take(t, weft_tensor_wrap(WEFT_SHAPE(rows, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32,
                                                             k->states + first * CARTPOLE_STATE, NULL, NULL, NULL));
    weft_tensor *actions =
        weft_tape_take(t, weft_tensor_wrap(WEFT_SHAPE(rows), WEFT_DTYPE_INT64, k->actions + first, NULL, NULL, NULL));
    weft_tensor *keys = weft_tape_take(t, weft_tensor_empty(WEFT_SHAPE(rows), WEFT_DTYPE_INT64));
    weft_tensor *weights = as_float32(t, rows, returns);
    if (keys && weights) {
        learn_keys(l, rank, step, steps, weft_tensor_data(keys));
        weft_tensor *mask = moved(t, policy_mask(t, l->policy, weft_tensor_data(keys), rows), device);
        weft_tensor *loss = policy_loss(t, l->policy, moved(t, states, device), mask, moved(t, actions, device),
                                        moved(t, weights, device));
        weft_backward(t, weft_scale(t, loss, factor));
    } else {
        weft_tape_fail(t, WEFT_ERR_MEMORY, "out of memory for %d decisions", (int)rows);
    }
    weft_status st = weft_tape_status(t);
    if (st)
        *error = weft_error_ref(weft_tape_error(t));
    else
        st = weft_optimizer_accumulate(l->adam, weft_tape_grads(t, weft_module_parameters(l->policy)));
    weft_tape_close(t);
    return st;
}

static weft_status learn_from_all(cart_learner *l, weft_tensor *const *returns, double *all, size_t observers,
                                  weft_error **error)
{
    int64_t steps = l->set->steps, envs = l->set->envs, at_once = UNITS_AT_ONCE / (l->set->hidden * envs);
    double factor = 1.0 / (double)((int64_t)observers * envs); /* the mean over all poles */
    weft_status st = WEFT_OK;
    at_once = at_once > 0 ? at_once : 1;
    for (int rank = 1; rank < l->set->job.world_size && !st; rank++) {
        if (!returns[rank])
            continue;
        for (int64_t at = 0; at < steps && !st; at += at_once) {
            int64_t some = steps - at < at_once ? steps - at : at_once;
            st = learn_from(l, rank, at, some, all + at * envs, factor, error);
        }
        all += steps * envs;
    }
    return st;
}

weft_status cart_learner_learn(cart_learner *l, weft_tensor *const *returns, weft_error **error)
{
    size_t observers;
    double *all = join_returns(l, returns, &observers);
    if (!all)
        return WEFT_ERR_MEMORY;
    weft_status st = learn_from_all(l, returns, all, observers, error);
    free(all);
    return st ? st : weft_optimizer_step(l->adam);
}
