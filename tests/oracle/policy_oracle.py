#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""policy_oracle.py - PyTorch's gradients of the CartPole policy on an episode of two observers, as REINFORCE has them.

usage: tests/oracle/policy_oracle.py > tests/data/policy.txt      needs python3-torch; tests do not run it

First "STEPS OBSERVERS HIDDEN GAMMA"; then a line for each step and observer: the state (multiples of 2^-23), the action, whether the
trajectory ends there, the return. Then, without and with dropout: the loss and the gradients of affine1.weight,
affine1.bias, affine2.weight, affine2.bias, a line each. Parameters come from formula.py, keys 1 to 4, by half; the
units that stay are those whose number of key 5 below 10 is at least 6.
"""
import random

import torch
import torch.nn.functional as F

import formula
from cartpole_oracle import outside, step

STEPS, OBSERVERS, HIDDEN, GAMMA, DROPOUT = 60, 2, 128, 0.99, 0.6


def episode():
    rng = random.Random(5)
    begin = lambda: tuple(rng.uniform(-0.05, 0.05) for _ in range(4))
    poles = [begin() for _ in range(OBSERVERS)]
    states, actions, last = [], [], []
    for _ in range(STEPS):
        for k, pole in enumerate(poles):
            actions.append(rng.getrandbits(1))
            states.append([round(v * 2**23) / 2**23 for v in pole])
            poles[k] = step(pole, actions[-1])
            last.append(outside(poles[k]))
            if last[-1]:
                poles[k] = begin()
    return states, actions, last


def to_go(last):
    returns = [1.0] * len(last)
    for i in range(len(last) - OBSERVERS - 1, -1, -1):
        if not last[i]:
            returns[i] += GAMMA * returns[i + OBSERVERS]
    return returns


def main():
    states, actions, last = episode()
    returns = to_go(last)
    print(STEPS, OBSERVERS, HIDDEN, GAMMA)
    for row in zip(states, actions, last, returns):
        print(*(v.hex() for v in row[0]), row[1], int(row[2]), row[3].hex())
    x, r = torch.tensor(states, dtype=torch.float64), torch.tensor(returns, dtype=torch.float64)
    mask = (formula.below((len(states), HIDDEN), 5, 10) >= 6) / (1 - DROPOUT)
    for units in (None, mask):
        w1, b1, w2, b2 = (formula.tensor(shape, key, 0.5).requires_grad_()
                          for key, shape in enumerate(((HIDDEN, 4), (HIDDEN,), (2, HIDDEN), (2,)), 1))
        hidden = F.linear(x, w1, b1)
        probabilities = F.softmax(F.linear(F.relu(hidden if units is None else hidden * units), w2, b2), dim=1)
        log_probs = torch.distributions.Categorical(probabilities).log_prob(torch.tensor(actions))
        loss = (-log_probs * r / OBSERVERS).sum()
        loss.backward()
        print(loss.item().hex())
        for p in (w1, b1, w2, b2):
            print(*(v.hex() for v in p.grad.reshape(-1).tolist()))


if __name__ == "__main__":
    main()
