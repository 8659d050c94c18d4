/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pole.h - CartPole-v1: a pole stands on a cart, which is pushed to the left or to the right so that the pole does
 * not fall.
 *
 * The equations are those of Barto, Sutton and Anderson (Neuronlike adaptive elements that can solve difficult learning
 * control problems, 1983) without friction. The constants are those of Gymnasium's CartPole-v1: force 10 N, explicit
 * Euler steps of 20 ms, a reward of 1 for every step. Numbers are float64. The same seeds and actions give the same
 * numbers.
 */
#ifndef EXAMPLES_POLE_H
#define EXAMPLES_POLE_H

#include <stdint.h>

#define CARTPOLE_STATE 4 /* numbers of a state, in the order of struct cartpole */
#define CARTPOLE_ACTIONS 2
#define CARTPOLE_LONGEST 500 /* steps: then a trajectory ends */
#define CARTPOLE_SOLVED 475  /* the mean reward above which the problem counts as solved */

typedef enum cartpole_end {
    CARTPOLE_GOES_ON = 0,
    CARTPOLE_FELL, /* over 12 degrees, or more than 2.4 m from the middle */
    CARTPOLE_CUT,  /* it stood for CARTPOLE_LONGEST steps */
} cartpole_end;

typedef struct cartpole {
    double x, velocity; /* of the cart: metres right of the middle, metres per second */
    double angle, spin; /* of the pole: radians from upright, radians per second */
    int steps;          /* since the reset */
} cartpole;

/* Resets the pole: each number of its state is uniform in [-0.05, 0.05), a function of the seed. */
void cartpole_reset(cartpole *pole, uint64_t seed);
/*
 * Makes one step; action 1 pushes to the right, 0 to the left. A pole that fell can be stepped further: it swings
 * round.
 */
cartpole_end cartpole_step(cartpole *pole, int action);
/* The input of the policy. */
void cartpole_observe(const cartpole *pole, float state[CARTPOLE_STATE]);

#endif
