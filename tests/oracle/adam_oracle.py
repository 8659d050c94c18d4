#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""adam_oracle.py - where torch.optim.Adam takes two parameters in 25 steps, for combinations of its options.

usage: tests/oracle/adam_oracle.py > tests/data/adam_cases.txt      needs python3-torch; tests do not run it

Two lines a case: "LR BETA1 BETA2 EPS WEIGHT_DECAY AMSGRAD", then the parameters' 7 + 6 elements after steps 1, 2 and 25.
Parameters and gradients come from formula.py: keys 1, 2 and 100 + 2 step + parameter; gradients shrink to a tenth after step
4, so that AMSGrad's largest mean square is not the last. After step 10 the rate halves.
"""
import torch

import formula

SHAPES = [(7,), (2, 3)]
STEPS = 25


def run(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0, amsgrad=False):
    parameters = [formula.tensor(shape, 1 + k) for k, shape in enumerate(SHAPES)]
    adam = torch.optim.Adam(parameters, lr, (beta1, beta2), eps, decay, amsgrad)
    words = []
    for step in range(STEPS):
        for k, p in enumerate(parameters):
            p.grad = formula.tensor(p.shape, 100 + 2 * step + k, 0.1 if step > 4 else 1.0)
        adam.step()
        if step == 10:
            adam.param_groups[0]["lr"] = lr / 2
        if step in (0, 1, STEPS - 1):
            words += [f"{v:.17g}" for p in parameters for v in p.reshape(-1).tolist()]
    print(lr, beta1, beta2, eps, decay, int(amsgrad))
    print(*words)


for amsgrad in (False, True):
    for decay in (0, 0.01):
        run(decay=decay, amsgrad=amsgrad)
        run(lr=1e-2, decay=decay, amsgrad=amsgrad)
        run(lr=0.5, beta1=0.5, beta2=0.6, decay=decay, amsgrad=amsgrad)
        run(lr=1e-2, beta1=0.99, beta2=0.9, eps=1e-3, decay=decay, amsgrad=amsgrad)
        run(lr=1e-2, beta1=1e-3, beta2=1e-3, eps=0.1, decay=decay, amsgrad=amsgrad)
