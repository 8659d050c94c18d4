/* SPDX-License-Identifier: Apache-2.0 */
/* policy.c - a policy for the cart-pole and its gradient. */
#include "policy.h"

#include "pole.h"
#include "common/random_stream.h"
#include "common/temporary.h"

#include <math.h>
#include <stdlib.h>

enum { KEY_ACTION = 1, KEY_UNITS = 2 }; /* random streams of a decision */

typedef struct shape {
    int64_t hidden;
    double dropout;
} shape;

/* ---- The network ------------------------------------------------------------------------------------------------ */

static weft_tensor *apply(weft_tape *t, weft_module *policy, weft_tensor *x)
{
    return weft_softmax(t, policy_scores(t, policy, x, NULL), -1);
}

weft_status policy_create(int64_t hidden, double dropout, uint64_t seed, weft_module **out)
{
    static const weft_module_type type = {.name = "Policy", .forward = apply, .drop = free};
    weft_module *policy, *first = NULL, *second = NULL;
    shape *s = malloc(sizeof(*s));
    if (!s)
        return WEFT_ERR_MEMORY;
    *s = (shape){hidden, dropout};
    weft_status status = weft_module_create(&type, s, &policy, NULL); /* takes s, also on failure */
    if (status)
        return status;
    status = weft_linear_create(CARTPOLE_STATE, hidden, false, random_key(seed, 1), &first, NULL);
    if (!status)
        status = weft_linear_create(hidden, CARTPOLE_ACTIONS, false, random_key(seed, 2), &second, NULL);
    weft_module_add_child(policy, "affine1", first);
    weft_module_add_child(policy, "affine2", second);
    if (!status)
        status = weft_module_status(policy);
    if (status)
        weft_module_unref(policy);
    else
        *out = policy;
    return status;
}

weft_tensor *policy_scores(weft_tape *t, weft_module *policy, weft_tensor *states, weft_tensor *mask)
{
    weft_tensor *x = weft_module_forward(t, weft_module_child(policy, 0), states);
    if (mask)
        x = weft_mul(t, x, mask);
    return weft_module_forward(t, weft_module_child(policy, 1), weft_relu(t, x));
}

/* ---- What is random --------------------------------------------------------------------------------------------- */

/* Returns 1 if number < limit, else 0: as an index, because a branch would be mispredicted half of the time. */
static inline uint64_t is_below(uint32_t number, uint32_t limit)
{
    return ((uint64_t)number - limit) >> 63;
}

/* Draws two units from each random number; rates are rounded to 2^-32. */
static void fill_mask(float *mask, int64_t units, uint64_t key, double dropout)
{
    random_stream random = {random_key(key, KEY_UNITS)};
    const uint32_t limit = (uint32_t)(dropout * 0x1p32);
    const float values[] = {(float)(1 / (1 - dropout)), 0}; /* kept, dropped */
    for (int64_t i = 0; i < units; i += 2) {
        uint64_t bits = random_u64(&random);
        mask[i] = values[is_below((uint32_t)bits, limit)];
        if (i + 1 < units)
            mask[i + 1] = values[is_below((uint32_t)(bits >> 32), limit)];
    }
}

weft_tensor *policy_mask(weft_tape *t, const weft_module *policy, const uint64_t *keys, int64_t rows)
{
    const shape *s = weft_module_state(policy);
    if (s->dropout <= 0)
        return NULL;
    weft_tensor *mask = temporary_empty(t, WEFT_SHAPE(rows, s->hidden), WEFT_DTYPE_FLOAT32);
    if (!mask)
        return NULL;
    float *data = weft_tensor_data(mask);
    for (int64_t i = 0; i < rows; i++)
        fill_mask(data + i * s->hidden, s->hidden, keys[i], s->dropout);
    return temporary_move(t, mask, weft_tensor_device(weft_module_find(policy, "affine1.weight")));
}

/* The action is 1 if a number in [0, 1) is above the probability of action 0. On a GPU no value is read: that waits. */
weft_tensor *policy_draw(weft_tape *t, weft_tensor *probabilities, const uint64_t *keys)
{
    int64_t rows = weft_tensor_size(probabilities, 0);
    const float *first = weft_tensor_data(probabilities);
    weft_tensor *actions = temporary_empty(t, WEFT_SHAPE(rows), WEFT_DTYPE_INT64), *wide = NULL;
    weft_tensor *units = temporary_empty(t, WEFT_SHAPE(rows, 1), WEFT_DTYPE_FLOAT64);
    for (int64_t i = 0; i < rows && units && actions; i++) {
        random_stream random = {random_key(keys[i], KEY_ACTION)};
        double unit = ((double *)weft_tensor_data(units))[i] = random_unit(&random);
        ((int64_t *)weft_tensor_data(actions))[i] = first && unit > first[i * CARTPOLE_ACTIONS];
    }
    if (first)
        return actions;
    weft_error *why = NULL;
    weft_status status = weft_tensor_to(weft_narrow(t, probabilities, 1, 0, 1), WEFT_DTYPE_FLOAT64, &wide, &why);
    wide = temporary_keep(t, status, wide, why);
    units = temporary_move(t, units, weft_tensor_device(probabilities));
    return weft_argmax(t, weft_concat(t, (weft_tensors){(weft_tensor *[]){wide, units}, 2}, 1), 1);
}

/* ---- Learning --------------------------------------------------------------------------------------------------- */

weft_tensor *policy_loss(weft_tape *t, weft_module *policy, weft_tensor *states, weft_tensor *mask,
                         weft_tensor *actions, weft_tensor *returns)
{
    weft_tensor *scores = policy_scores(t, policy, states, mask);
    weft_tensor *surprise = weft_cross_entropy_reduced(t, scores, actions, WEFT_REDUCTION_NONE);
    return weft_sum(t, weft_mul(t, surprise, returns));
}

void policy_returns(double *rewards, const bool *last, size_t steps, size_t width, double gamma)
{
    for (size_t at = steps - 1; at-- > 0;)
        for (size_t i = at * width; i < (at + 1) * width; i++)
            if (!last[i])
                rewards[i] += gamma * rewards[i + width];
}

void policy_normalise(double *returns, size_t count)
{
    double mean = 0, square = 0;
    for (size_t i = 0; i < count; i++)
        mean += returns[i] / (double)count;
    for (size_t i = 0; i < count; i++)
        square += (returns[i] - mean) * (returns[i] - mean);
    double deviation =
        sqrt(square / (double)(count > 1 ? count - 1 : 1)) + 1.1920929e-07; /* the constant of PyTorch's example */
    for (size_t i = 0; i < count; i++)
        returns[i] = (returns[i] - mean) / deviation;
}
