/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cartpole.h - CartPole-v1: a pole stands on a cart that is pushed to the left or to the right, and is not to fall.
 *
 * The equations are those of Barto, Sutton, Anderson (Neuronlike adaptive elements that can solve difficult learning control
 * problems, 1983) without friction, the constants and their use those of Gymnasium's CartPole-v1: force 10 N, explicit Euler
 * steps of 20 ms, a reward of 1 for every step. Numbers are float64, and the same for the same seeds and actions.
 */
#ifndef EXAMPLES_CARTPOLE_H
#define EXAMPLES_CARTPOLE_H

#include <stddef.h>
#include <stdint.h>

#define CARTPOLE_STATE 4 /* numbers of a state, in the order of struct cartpole */
#define CARTPOLE_ACTIONS 2
#define CARTPOLE_LONGEST 500 /* steps: then a trajectory is cut off */
#define CARTPOLE_SOLVED 475  /* the mean reward from which on the problem counts as solved */

typedef enum cartpole_end {
    CARTPOLE_GOES_ON = 0,
    CARTPOLE_FELL, /* over 12 degrees, or more than 2.4 m from the middle */
    CARTPOLE_CUT,  /* it stood for CARTPOLE_LONGEST steps */
} cartpole_end;

typedef struct cartpole {
    double x, velocity; /* of the cart: metres to the right of the middle, metres a second */
    double angle, spin; /* of the pole: radians from upright, radians a second */
    int steps;          /* since the reset */
} cartpole;

/* A new beginning: each number of the state uniform in [-0.05, 0.05), a function of the seed. */
void cartpole_reset(cartpole *pole, uint64_t seed);
/* One step; action 1 pushes to the right, 0 to the left. A pole that fell may be stepped on: it swings round. */
cartpole_end cartpole_step(cartpole *pole, int action);
/* The same of `count` of them, with an action and an end each. */
void cartpole_step_all(cartpole *poles, size_t count, const int64_t *actions, cartpole_end *ends);
/* As the policy sees it. */
void cartpole_observe(const cartpole *pole, float state[CARTPOLE_STATE]);

#endif
