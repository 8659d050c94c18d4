#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""sgd_oracle.py - where torch.optim.SGD takes two parameters in 25 steps, for combinations of its options.

usage: tests/oracle/sgd_oracle.py > tests/data/sgd_cases.txt      needs python3-torch; tests do not run it

Two lines a case: "LR MOMENTUM DAMPENING WEIGHT_DECAY NESTEROV", then the parameters' 7 + 6 elements after steps 1, 2 and 25.
Parameters and gradients come from formula.py: keys 1, 2 and 100 + 2 step + parameter. After step 10 the rate halves.
"""
import torch

import formula

SHAPES = [(7,), (2, 3)]
STEPS = 25


def run(lr, momentum, dampening, decay, nesterov):
    parameters = [formula.tensor(shape, 1 + k) for k, shape in enumerate(SHAPES)]
    sgd = torch.optim.SGD(parameters, lr, momentum, dampening, decay, nesterov)
    words = []
    for step in range(STEPS):
        for k, p in enumerate(parameters):
            p.grad = formula.tensor(p.shape, 100 + 2 * step + k)
        sgd.step()
        if step == 10:
            sgd.param_groups[0]["lr"] = lr / 2
        if step in (0, 1, STEPS - 1):
            words += [f"{v:.17g}" for p in parameters for v in p.reshape(-1).tolist()]
    print(lr, momentum, dampening, decay, int(nesterov))
    print(*words)


for momentum in (0, 0.5, 0.9):
    for dampening in (0, 0.3, 1):
        for decay in (0, 0.01):
            run(0.05, momentum, dampening, decay, False)
            if momentum > 0 and dampening == 0:
                run(0.05, momentum, 0, decay, True)
run(1.0, 0.99, 0, 0.1, True)
run(1e-4, 0.9, 0, 5e-4, False)
