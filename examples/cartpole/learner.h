/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learner.h - the policy of the agent: decides for observers, records their states and actions, and learns from
 * them. One thread.
 *
 * No tape records while an episode runs. When it has ended, the policy is evaluated again, one observer at a time, on
 * all states that the observer had, with the same units dropped. The policy has not changed in between. This second
 * evaluation gives the gradient. There are two reasons:
 *   - A tape of a complete episode would have six records a step, and its backward pass thousands of products of a few
 *     rows. The second evaluation has two products of hundreds of rows.
 *   - The order in which rows are added does not depend on the batches.
 */
#ifndef EXAMPLES_LEARNER_H
#define EXAMPLES_LEARNER_H

#include <weft/nn.h>
#include <weft/rpc.h>

typedef struct cart_settings {
    int64_t world_size; /* rank 0 is the agent, the others are observers */
    int64_t steps, envs, hidden, seed;
    double gamma, dropout, lr;
    bool normalise; /* normalise the returns to mean 0 and deviation 1 */
    weft_device device;
} cart_settings;

typedef struct cart_learner cart_learner;

/* NULL: no memory. */
cart_learner *cart_learner_create(const cart_settings *settings);
void cart_learner_free(cart_learner *learner);
weft_module *cart_learner_policy(const cart_learner *learner);
uint64_t cart_learner_evaluations(const cart_learner *learner); /* of the policy, to choose actions */

/* Begins an episode, at step 0 of each observer. */
void cart_learner_begin(cart_learner *learner, int64_t episode);

/*
 * Checks that this call of select_action is the next step of an observer that takes part. If not, the
 * call keeps the failure.
 */
WEFT_NODISCARD weft_status cart_learner_admit(cart_learner *learner, weft_call *call);
/*
 * Chooses actions for `count` admitted observers: states [count, poles, 4] -> actions [count, poles], both on the
 * policy's device. The tape owns the actions; its device may be another one. Rank 0 stands for a row that was not
 * admitted. NULL: the tape failed.
 */
weft_tensor *cart_learner_decide(cart_learner *learner, weft_tape *tape, const int *ranks, int64_t count,
                                 weft_tensor *states);

/*
 * Makes one step of Adam from the states and actions of this episode. `returns`, by rank, has the results of
 * run_episode; NULL for an observer that takes no part.
 */
WEFT_NODISCARD weft_status cart_learner_learn(cart_learner *learner, weft_tensor *const *returns, weft_error **error);

#endif
