/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - a policy for the cart-pole and its gradient: REINFORCE (Williams 1992) with the reward to go.
 *
 * affine1 (4 -> hidden), dropout, ReLU, affine2 (hidden -> 2), softmax. Everything random about a decision, which units are
 * dropped and which action is drawn, follows from the decision's key alone: whoever else is in the batch, and in which row
 * it stands, changes nothing, and the same units can be dropped again when the gradient is computed.
 */
#ifndef EXAMPLES_POLICY_H
#define EXAMPLES_POLICY_H

#include <weft/nn.h>

/* Parameters as torch.nn.Linear names and draws them; float32. NULL if memory is out. You unref it. */
weft_module *policy_create(int64_t hidden, double dropout, uint64_t seed);

/* Which units stay, by 1 / (1 - dropout), for each of `rows` decisions: [rows, hidden], the tape's. NULL without dropout. */
weft_tensor *policy_mask(weft_tape *tape, const weft_module *policy, const uint64_t *keys, int64_t rows);
/* states [rows, 4] -> scores [rows, 2], of which the softmax are probabilities. `mask` NULL: nothing is dropped. */
weft_tensor *policy_scores(weft_tape *tape, weft_module *policy, weft_tensor *states, weft_tensor *mask);
/* Draws an action for each row of `probabilities` [rows, 2]. */
void policy_draw(const weft_tensor *probabilities, const uint64_t *keys, int64_t *actions);
/* The sum over rows of -log(probability of actions[row]) returns[row]; actions int64 [rows], returns [rows]. */
weft_tensor *policy_loss(weft_tape *tape, weft_module *policy, weft_tensor *states, weft_tensor *mask,
                         weft_tensor *actions, weft_tensor *returns);

/* rewards [steps, width] -> what is still to come of them, each column by itself, to the next row that is a `last` one. */
void policy_returns(double *rewards, const bool *last, size_t steps, size_t width, double gamma);
/* To mean 0 and deviation 1. */
void policy_normalise(double *returns, size_t count);

#endif
