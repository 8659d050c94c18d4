/* SPDX-License-Identifier: Apache-2.0 */
/* test_examples_learner.c - what the CartPole agent learns from: the decisions of each observer, and that one's own
 * returns. */
#include <stdint.h>
#include "tensors.h"
#include "unit.h"

#include <learner.h>
#include <pole.h>

#include <string.h>

enum { OBSERVERS = 3, STEPS = 5, ENVS = 2 };

static const cart_settings set = {
    .world_size = OBSERVERS + 1, .steps = STEPS, .envs = ENVS, .hidden = 8, .seed = 5, .lr = 0.01, .gamma = 1};

/* Of all observers at once, each with states of its own. */
static void decide(cart_learner *learner, int step)
{
    const int ranks[OBSERVERS] = {1, 2, 3};
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *states =
        weft_tape_take(t, tensor_empty(WEFT_SHAPE(OBSERVERS, ENVS, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32));
    float *values = weft_tensor_data(states);
    for (int i = 0; i < OBSERVERS * ENVS * CARTPOLE_STATE; i++)
        values[i] = (float)((i * 7 + step * 3) % 11 - 5) / 10;
    assert_non_null(cart_learner_decide(learner, t, ranks, OBSERVERS, states));
    weft_tape_close(t);
}

/* What the policy is after an episode in which observer i + 1 got returns of `signs[i]` throughout; 0: it took no
 * part. Only the sign of a gradient decides how Adam begins. */
static void learn(const int signs[OBSERVERS], char text[1 << 14])
{
    weft_tensor *returns[OBSERVERS + 1] = {NULL};
    weft_error *error = NULL;
    cart_learner *learner = cart_learner_create(&set);
    assert_non_null(learner);
    cart_learner_begin(learner, 0);
    for (int step = 0; step < STEPS; step++)
        decide(learner, step);
    for (int i = 0; i < OBSERVERS; i++)
        if (signs[i])
            returns[i + 1] = tensor_full(WEFT_SHAPE(STEPS, ENVS), WEFT_DTYPE_FLOAT64, signs[i]);
    assert_int_equal(cart_learner_learn(learner, returns, &error), WEFT_OK);
    size_t used = 0;
    weft_tensors weights = weft_module_parameters(cart_learner_policy(learner));
    for (size_t i = 0; i < weights.count; i++) {
        assert_true(used + weft_tensor_nbytes(weights.items[i]) <= 1 << 14);
        memcpy(text + used, weft_tensor_data(weights.items[i]), weft_tensor_nbytes(weights.items[i]));
        used += weft_tensor_nbytes(weights.items[i]);
    }
    for (int i = 0; i < OBSERVERS; i++)
        weft_tensor_unref(returns[i + 1]);
    cart_learner_free(learner);
}

static void each_observer_counts_with_returns_of_its_own(void **state)
{
    static const int all[][OBSERVERS] = {{1, 1, 1},  {1, 1, -1},  {1, -1, 1}, {-1, 1, 1}, {0, 1, 1},
                                         {0, 1, -1}, {0, -1, -1}, {1, 0, 1},  {1, 0, -1}, {1, 0, 0}};
    enum { WAYS = sizeof(all) / sizeof(*all) };
    static char learned[WAYS][1 << 14], again[1 << 14];
    for (int i = 0; i < WAYS; i++) {
        learn(all[i], learned[i]);
        learn(all[i], again);
        assert_memory_equal(learned[i], again, sizeof(again));
        for (int k = 0; k < i; k++)
            if (memcmp(learned[i], learned[k], sizeof(again)) == 0)
                fail_msg("ways %d and %d teach the same", i, k);
    }
}

UNIT_MAIN(each_observer_counts_with_returns_of_its_own)
