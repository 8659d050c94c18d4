/* SPDX-License-Identifier: Apache-2.0 */
/* observer.h - an observer: simulates poles for an episode, with actions that the agent, the caller, chooses. */
#ifndef EXAMPLES_OBSERVER_H
#define EXAMPLES_OBSERVER_H

#include <weft/rpc.h>

#define CART_MOST_ENVS 4096
#define CART_MOST_STEPS 100000
#define CART_MOST_MOVES (1 << 24) /* poles times steps of an observer: 128 MB of returns */

/* The function of an observer: "run_episode" (episode, poles, steps, discount, seed) -> float64 [steps, poles], the
 * rewards to go, and the mean length of the first trajectories. In each step it calls the agent's function. */
extern const weft_function cart_run_episode;

/* The function of the agent: "select_action" (step, float32 [poles, 4]) -> int64 [poles]. */
#define CART_SELECT_ACTION "select_action"

#endif
