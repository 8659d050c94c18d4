/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_examples_cartpole.c - the physics against tests/data/cartpole.txt (see tests/oracle/cartpole_oracle.py), ends
 * and beginnings.
 */
#include <stdint.h>
#include "unit.h"

#include <pole.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 500
#define EVERY 10
#define MANY 16 /* trajectories, at most */
#define TOLERANCE 1e-12

typedef struct trajectory {
    char name[32], actions[STEPS + 1];
    int fell;
    double states[1 + STEPS / EVERY][CARTPOLE_STATE];
    double sums[1 + STEPS / EVERY][CARTPOLE_STATE]; /* of the states since the last row: of each step */
} trajectory;

static trajectory stored[MANY];
static size_t count;

static void read_state(FILE *file, double s[CARTPOLE_STATE])
{
    assert_int_equal(fscanf(file, "%lf %lf %lf %lf", &s[0], &s[1], &s[2], &s[3]), CARTPOLE_STATE);
}

static int read_trajectories(void **state)
{
    FILE *file = fopen(WEFT_TEST_DATA "/cartpole.txt", "r");
    assert_non_null(file);
    for (count = 0; count < MANY; count++) {
        trajectory *t = &stored[count];
        if (fscanf(file, "%31s %d", t->name, &t->fell) != 2)
            break;
        for (int row = 0; row <= STEPS / EVERY; row++) {
            read_state(file, t->states[row]);
            if (row == 0)
                assert_int_equal(fscanf(file, "%500s", t->actions), 1);
            else
                read_state(file, t->sums[row]);
        }
        assert_int_equal(strlen(t->actions), STEPS);
    }
    fclose(file);
    return count >= 8 ? 0 : -1;
}

static cartpole begin(const trajectory *t)
{
    const double *s = t->states[0];
    return (cartpole){.x = s[0], .velocity = s[1], .angle = s[2], .spin = s[3]};
}

static void assert_numbers(const trajectory *t, int step, const char *what, const double *got, const double *wanted)
{
    for (int i = 0; i < CARTPOLE_STATE; i++)
        if (!(fabs(got[i] - wanted[i]) <= TOLERANCE * (1 + fabs(wanted[i]))))
            fail_msg("%s, step %d, %s %d: %.17g, wanted %.17g", t->name, step, what, i, got[i], wanted[i]);
}

/* After each step. `sums` are carried on from the one before. */
static void assert_state(const trajectory *t, const cartpole *pole, double sums[CARTPOLE_STATE])
{
    const double got[] = {pole->x, pole->velocity, pole->angle, pole->spin};
    for (int i = 0; i < CARTPOLE_STATE; i++)
        sums[i] += got[i];
    if (pole->steps % EVERY)
        return;
    int row = pole->steps / EVERY;
    assert_numbers(t, pole->steps, "number", got, t->states[row]);
    assert_numbers(t, pole->steps, "sum of ten of number", sums, t->sums[row]);
    memset(sums, 0, CARTPOLE_STATE * sizeof(*sums));
}

static void trajectories_are_those_of_the_equations(void **state)
{
    for (size_t i = 0; i < count; i++) {
        const trajectory *t = &stored[i];
        cartpole pole = begin(t);
        double sums[CARTPOLE_STATE] = {0};
        int fell = STEPS + 1;
        for (int at = 1; at <= STEPS; at++) {
            cartpole_end end = cartpole_step(&pole, t->actions[at - 1] - '0');
            if (end == CARTPOLE_FELL && fell > at)
                fell = at;
            if (fell > STEPS) /* it stands: cut off at the last step, and not before */
                assert_int_equal(end, at == STEPS ? CARTPOLE_CUT : CARTPOLE_GOES_ON);
            assert_state(t, &pole, sums);
        }
        assert_int_equal(fell, t->fell);
    }
}

static void the_limits_are_where_they_are_published(void **state)
{
    const double steep = 12 * 2 * M_PI / 360;
    /* A step of Euler's moves x and the angle by what the old speeds say: to either side of a limit, and onto none. */
    cartpole inside = {.x = 2.4 - 0.02, .velocity = 0.999}, outside = {.x = 2.4 - 0.02, .velocity = 1.001};
    assert_int_equal(cartpole_step(&inside, 0), CARTPOLE_GOES_ON);
    assert_int_equal(cartpole_step(&outside, 0), CARTPOLE_FELL);
    cartpole steep_inside = {.angle = -steep + 0.02, .spin = -0.999},
             steep_outside = {.angle = -steep + 0.02, .spin = -1.001};
    assert_int_equal(cartpole_step(&steep_inside, 1), CARTPOLE_GOES_ON);
    assert_int_equal(cartpole_step(&steep_outside, 1), CARTPOLE_FELL);
}

static void beginnings_follow_the_seed(void **state)
{
    double least = 1, most = -1, sum = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        cartpole a = {.steps = 7}, b = {.steps = 9};
        float seen[CARTPOLE_STATE];
        cartpole_reset(&a, seed);
        cartpole_reset(&b, seed);
        assert_memory_equal(&a, &b, sizeof(a));
        assert_int_equal(a.steps, 0);
        cartpole_observe(&a, seen);
        const double s[] = {a.x, a.velocity, a.angle, a.spin};
        for (int i = 0; i < CARTPOLE_STATE; i++) {
            assert_true(seen[i] == (float)s[i]);
            least = fmin(least, s[i]);
            most = fmax(most, s[i]);
            sum += s[i];
        }
    }
    assert_true(least >= -0.05 && least < -0.0499 && most < 0.05 && most > 0.0499);
    assert_true(fabs(sum / 4000) < 0.002); /* its deviation is 0.00046 */
}

UNIT_MAIN_WITH(read_trajectories, NULL, trajectories_are_those_of_the_equations,
               the_limits_are_where_they_are_published, beginnings_follow_the_seed)
