/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pole.c - CartPole-v1.
 *
 * Products and sums are rounded one by one, in the published order; the build disables contraction for this file. A
 * swinging pole amplifies a difference in the last bit with every turn, so any other order gives other trajectories.
 */
#include "pole.h"

#include "common/random_stream.h"

#include <math.h>

#define GRAVITY 9.8
#define CART_MASS 1.0
#define POLE_MASS 0.1
#define TOTAL_MASS (CART_MASS + POLE_MASS)
#define HALF_LENGTH 0.5
#define POLE_MOMENT (POLE_MASS * HALF_LENGTH)
#define FORCE 10.0
#define STEP_SECONDS 0.02
#define FARTHEST 2.4
#define STEEPEST (12 * 2 * 3.14159265358979323846 / 360)
#define START 0.05

void cartpole_reset(cartpole *pole, uint64_t seed)
{
    random_stream random = {seed};
    pole->x = random_between(&random, -START, START);
    pole->velocity = random_between(&random, -START, START);
    pole->angle = random_between(&random, -START, START);
    pole->spin = random_between(&random, -START, START);
    pole->steps = 0;
}

cartpole_end cartpole_step(cartpole *pole, int action)
{
    double force = action == 1 ? FORCE : -FORCE;
    double cosine = cos(pole->angle), sine = sin(pole->angle);
    double push = (force + POLE_MOMENT * (pole->spin * pole->spin) * sine) / TOTAL_MASS;
    double spin_up =
        (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS));
    double speed_up = push - POLE_MOMENT * spin_up * cosine / TOTAL_MASS;
    pole->x += STEP_SECONDS * pole->velocity;
    pole->velocity += STEP_SECONDS * speed_up;
    pole->angle += STEP_SECONDS * pole->spin;
    pole->spin += STEP_SECONDS * spin_up;
    pole->steps++;
    if (fabs(pole->x) > FARTHEST || fabs(pole->angle) > STEEPEST)
        return CARTPOLE_FELL;
    return pole->steps >= CARTPOLE_LONGEST ? CARTPOLE_CUT : CARTPOLE_GOES_ON;
}

void cartpole_observe(const cartpole *pole, float state[CARTPOLE_STATE])
{
    state[0] = (float)pole->x;
    state[1] = (float)pole->velocity;
    state[2] = (float)pole->angle;
    state[3] = (float)pole->spin;
}
