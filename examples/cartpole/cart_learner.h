/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cart_learner.h - the agent's side: decides for observers, remembers what they saw and did, and learns from it.
 *
 * No tape records while an episode runs. At its end the policy, which has not changed meanwhile, is evaluated
 * once more: one observer at a time, on all states that it saw, with the same units dropped. The gradient comes
 * from that. There are three reasons:
 *   - A tape of a whole episode would have six records a step, and a backward pass through thousands of
 *     products of a few rows. This has a few products of hundreds of rows.
 *   - Without batching, several threads decide for several observers at once, but a tape is for one thread.
 *   - Rows are added in the same order, however they were batched.
 */
#ifndef EXAMPLES_CART_LEARNER_H
#define EXAMPLES_CART_LEARNER_H

#include <weft/nn.h>
#include <weft/rpc.h>

#include "cart_settings.h"

typedef struct cart_learner cart_learner;

/* NULL if memory is out. */
cart_learner *cart_learner_create(const cart_settings *settings);
void cart_learner_free(cart_learner *learner);
weft_module *cart_learner_policy(const cart_learner *learner);
uint64_t cart_learner_evaluations(const cart_learner *learner); /* of the policy, to decide on actions */

/* Begins an episode: from now on it decides for the observers, from step 0. */
void cart_learner_begin(cart_learner *learner, int64_t episode);

/*
 * Whether this call of select_action is the next step of an observer that takes part; if so,
 * cart_learner_decide has to follow. A failure is kept in the call. Any thread.
 */
WEFT_NODISCARD weft_status cart_learner_admit(cart_learner *learner, weft_call *call);
/*
 * Decides for `count` admitted observers: states [count, poles, 4] -> actions [count, poles], the tape's. Rank
 * 0 stands for a row that was not admitted. Any threads at once, for different observers. NULL when the tape
 * fails.
 */
weft_tensor *cart_learner_decide(cart_learner *learner, weft_tape *tape, const int *ranks, int64_t count,
                                 weft_tensor *states);

/* One step of Adam by what the observers saw in this episode. returns: by rank, what run_episode gave; NULL:
 * takes no part. */
WEFT_NODISCARD weft_status cart_learner_learn(cart_learner *learner, weft_tensor *const *returns, weft_error **error);

#endif
