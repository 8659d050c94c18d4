#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""follow.py - the losses of 20 steps of training of the reference models in float64, weights and inputs from formula.py.

usage: tests/oracle/follow.py > tests/data/follow.txt      needs python3-torch; tests do not run it

A line for each model: its name, and its losses. The ConvNet runs without dropout (whose numbers are each library's own), ResNet-50 in train
mode. Both: SGD with momentum 0.9.
"""
import os
import sys

import torch
import torch.nn.functional as F

import formula

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "perf", "peers"))
from models import ResNet50, convnet  # noqa: E402  pylint: disable=wrong-import-position

STEPS = 20


def factor_of(name, p):
    """As factor_of in test_nn_follow.c."""
    if p.dim() == 4:
        return (6.0 / (p.shape[0] * p.shape[2] * p.shape[3])) ** 0.5, 0.0
    if p.dim() == 2:
        return p.shape[1] ** -0.5, 0.0
    if name.endswith("bias"):
        return 0.1, 0.0
    return (0.05, 0.2) if name.endswith("bn3.weight") else (0.25, 1.0)


def follow(what, net, x, target, loss_of, lr):
    net = net.double()
    for key, (name, p) in enumerate(net.named_parameters()):
        factor, offset = factor_of(name, p)
        p.data.copy_(formula.tensor(p.shape, 1000 + key, factor, offset))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(net(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(what, *[f"{value:.12g}" for value in losses])


def main():
    torch.set_num_threads(1)
    small, large = convnet().eval(), ResNet50(30).train()
    follow("convnet", small, formula.tensor((8, 1, 28, 28), 1), formula.below((8,), 2, 10), F.nll_loss, 0.02)
    follow("resnet50", large, formula.tensor((4, 3, 64, 64), 1), formula.below((4,), 2, 30), F.cross_entropy, 0.0002)


main()
