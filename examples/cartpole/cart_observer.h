/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cart_observer.h - the observer's side: poles that are stepped for an episode, with actions that the agent decides on.
 *
 * The agent makes an observer on each worker and keeps a remote reference to it; "run_episode" is called on the reference, and calls
 * the agent's "select_action" for every step. All that an observer needs to know comes with these two calls.
 */
#ifndef EXAMPLES_CART_OBSERVER_H
#define EXAMPLES_CART_OBSERVER_H

#include <weft/rpc.h>

#include "cart_settings.h"

/*
 * What an observer's agent registers:
 *   "make_observer" (poles, steps of an episode, discount, seed) -> the observer, which stays there;
 *   "run_episode" (observer, episode) -> float64 [steps, poles], the rewards to go; the mean length of the poles' first trajectories.
 */
extern const weft_function cart_observer_functions[2];

/* The agent's function: "select_action" (step, float32 [poles, 4]) -> int64 [poles]. */
#define CART_SELECT_ACTION "select_action"

/* A worker of the job from its beginning to its end; its exit code. */
int cart_observer_run(const cart_settings *settings);

#endif
