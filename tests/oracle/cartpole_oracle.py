#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cartpole_oracle.py - trajectories of CartPole-v1 by the equations that Gymnasium publishes, in float64, 500 steps each.

usage: tests/oracle/cartpole_oracle.py > tests/data/cartpole.txt      needs nothing but Python; tests do not run it

Three lines a trajectory and one for every tenth step: "NAME FIRST_STEP_OUT_OF_BOUNDS" (501: none); the state at the beginning;
the actions, a digit each; then after steps 10, 20 ... 500 the state, and the sums of the ten states up to it. No resets: what fell goes on, so that a pole that swings
round is there as well. Numbers are hexadecimal.
"""
import math
import random

GRAVITY, CART, POLE, LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
STEPS = 500


def step(state, action):
    x, x_dot, theta, theta_dot = state
    force = FORCE if action == 1 else -FORCE
    costheta, sintheta = math.cos(theta), math.sin(theta)
    total, polemass_length = CART + POLE, POLE * LENGTH
    temp = (force + polemass_length * (theta_dot * theta_dot) * sintheta) / total
    thetaacc = (GRAVITY * sintheta - costheta * temp) / (LENGTH * (4.0 / 3.0 - POLE * (costheta * costheta) / total))
    xacc = temp - polemass_length * thetaacc * costheta / total
    return (x + TAU * x_dot, x_dot + TAU * xacc, theta + TAU * theta_dot, theta_dot + TAU * thetaacc)


def outside(state):
    return abs(state[0]) > 2.4 or abs(state[2]) > 12 * 2 * math.pi / 360


def balance(state, _at, _rng):
    x, x_dot, theta, theta_dot = state
    return int(theta + 0.5 * theta_dot + 0.05 * x + 0.1 * x_dot > 0)


POLICIES = {
    "balance": balance,
    "lean": lambda state, _at, _rng: int(state[2] + state[3] > 0),
    "right": lambda _state, _at, _rng: 1,
    "left": lambda _state, _at, _rng: 0,
    "alternate": lambda _state, at, _rng: at % 2,
    "random": lambda _state, _at, rng: rng.getrandbits(1),
    "mostly-left": lambda _state, _at, rng: int(rng.random() < 0.3),
}


def main():
    for name, policy in POLICIES.items():
        for seed in (1, 2) if name in ("balance", "random") else (3,):
            rng = random.Random(seed)
            state = tuple(rng.uniform(-0.05, 0.05) for _ in range(4))
            start, actions, kept, fell, sums = state, "", [], STEPS + 1, (0.0,) * 4
            for at in range(1, STEPS + 1):
                action = policy(state, at, rng)
                actions += str(action)
                state = step(state, action)
                sums = tuple(s + v for s, v in zip(sums, state))
                if fell > STEPS and outside(state):
                    fell = at
                if at % 10 == 0:
                    kept.append(state + sums)
                    sums = (0.0,) * 4
            print(name, fell)
            print(*(v.hex() for v in start))
            print(actions)
            for state in kept:
                print(*(v.hex() for v in state))


if __name__ == "__main__":
    main()
