/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cart_observer.h - an observer: simulates poles for an episode, with actions that the agent chooses.
 *
 * The agent makes an observer on each worker and keeps a remote reference to it. It calls "run_episode" on the
 * reference. In each step of the episode the observer calls the agent's "select_action".
 */
#ifndef EXAMPLES_CART_OBSERVER_H
#define EXAMPLES_CART_OBSERVER_H

#include <weft/rpc.h>

#include "cart_settings.h"

/*
 * The functions of an observer's worker: "make_observer" (poles, steps of an episode, discount, seed) -> the observer,
 * which stays on that worker; "run_episode" (observer, episode) -> float64 [steps, poles], the rewards to go, and the
 * mean length of the first trajectories.
 */
extern const weft_function cart_observer_functions[2];

/* The function of the agent: "select_action" (step, float32 [poles, 4]) -> int64 [poles]. */
#define CART_SELECT_ACTION "select_action"

/* Runs an observer's worker until the job ends. Returns the exit code. */
int cart_observer_run(const cart_settings *settings);

#endif
