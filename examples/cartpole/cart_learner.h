/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cart_learner.h - the policy of the agent: decides for observers, records their states and actions, and learns from
 * them.
 *
 * No tape records while an episode runs. When it has ended, the policy is evaluated again, one observer at a time, on
 * all states that the observer had, with the same units dropped. The policy has not changed in between. This second
 * evaluation gives the gradient. There are three reasons:
 *   - A tape of a complete episode would have six records a step, and its backward pass thousands of products of a few
 *     rows. The second evaluation has a few products of hundreds of rows.
 *
 *   - Without batching, several threads decide for several observers at once, but a tape belongs to one thread.
 *   - The order in which rows are added does not depend on the batches.
 */
#ifndef EXAMPLES_CART_LEARNER_H
#define EXAMPLES_CART_LEARNER_H

#include <weft/nn.h>
#include <weft/rpc.h>

#include "cart_settings.h"

typedef struct cart_learner cart_learner;

/* NULL: no memory. */
cart_learner *cart_learner_create(const cart_settings *settings);
void cart_learner_free(cart_learner *learner);
weft_module *cart_learner_policy(const cart_learner *learner);
uint64_t cart_learner_evaluations(const cart_learner *learner); /* of the policy, to choose actions */

/* Begins an episode, at step 0 of each observer. */
void cart_learner_begin(cart_learner *learner, int64_t episode);

/*
 * Checks that this call of select_action is the next step of an observer that takes part. If so, cart_learner_decide
 * must follow. If not, the call keeps the failure. Any thread.
 */
WEFT_NODISCARD weft_status cart_learner_admit(cart_learner *learner, weft_call *call);
/*
 * Chooses actions for `count` admitted observers: states [count, poles, 4] -> actions [count, poles], owned by the
 * tape. Rank 0 stands for a row that was not admitted. Several threads may call it at once, for different observers.
 * NULL: the tape failed.
 */
weft_tensor *cart_learner_decide(cart_learner *learner, weft_tape *tape, const int *ranks, int64_t count,
                                 weft_tensor *states);

/*
 * Makes one step of Adam from the states and actions of this episode. `returns`, by rank, has the results of
 * run_episode; NULL for an observer that takes no part.
 */
WEFT_NODISCARD weft_status cart_learner_learn(cart_learner *learner, weft_tensor *const *returns, weft_error **error);

#endif
