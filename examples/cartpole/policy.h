/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - a policy for the cart-pole and its gradient: REINFORCE (Williams 1992) with the reward to go.
 *
 * The network: affine1 (4 -> hidden), dropout, ReLU, affine2 (hidden -> 2), softmax. The random parts of a decision are
 * the units that are dropped and the action that is drawn. They depend only on the decision's key, not on the batch or
 * the row. So the same units can be dropped again when the gradient is computed.
 */
#ifndef EXAMPLES_POLICY_H
#define EXAMPLES_POLICY_H

#include <weft/nn.h>

/* Creates the policy, float32, with the names and the initial distribution of torch.nn.Linear. */
weft_status policy_create(int64_t hidden, double dropout, uint64_t seed, weft_module **out);

/*
 * The dropout mask of `rows` decisions: 0, or 1 / (1 - dropout) for units that stay. [rows, hidden], on the policy's
 * device, owned by the tape. NULL without dropout.
 */
weft_tensor *policy_mask(weft_tape *tape, const weft_module *policy, const uint64_t *keys, int64_t rows);
/* states [rows, 4] -> scores [rows, 2], the inputs of the softmax. `mask` NULL: nothing is dropped. */
weft_tensor *policy_scores(weft_tape *tape, weft_module *policy, weft_tensor *states, weft_tensor *mask);
/* Draws an action for each row of `probabilities` [rows, 2]: int64 [rows], on their device, owned by the tape. */
weft_tensor *policy_draw(weft_tape *tape, weft_tensor *probabilities, const uint64_t *keys);
/* The sum over rows of -log(probability of actions[row]) returns[row]; actions int64 [rows], returns [rows]. */
weft_tensor *policy_loss(weft_tape *tape, weft_module *policy, weft_tensor *states, weft_tensor *mask,
                         weft_tensor *actions, weft_tensor *returns);

/*
 * Replaces rewards [steps, width] by rewards to go: for each column, the discounted sum up to the next row that is
 * marked in `last`.
 */
void policy_returns(double *rewards, const bool *last, size_t steps, size_t width, double gamma);
/* Normalises to mean 0 and deviation 1. */
void policy_normalise(double *returns, size_t count);

#endif
