#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""follow.py - the losses of 20 steps of training of the reference models in float64, weights and inputs from formula.py.

usage: tests/oracle/follow.py > tests/data/follow.txt      needs python3-torch; tests do not run it

A line for each model: its name, and its losses. First the MNIST ConvNet without dropout (whose numbers are each library's own), and
ResNet-50 in train mode. Then small forms of the models of the examples, for GPUs (tests/gpu/test_gpu_follow.c).
"""
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

import formula

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "perf", "peers"))
from models import Bottleneck, ResNet50, convnet  # noqa: E402  pylint: disable=wrong-import-position

STEPS = 20


def factor_of(name, p):
    """As factor_of in follow.h."""
    if p.dim() == 4:
        return (6.0 / (p.shape[0] * p.shape[2] * p.shape[3])) ** 0.5, 0.0
    if p.dim() == 2:
        return p.shape[1] ** -0.5, 0.0
    if "bias" in name:
        return 0.1, 0.0
    return (0.05, 0.2) if name.endswith("bn3.weight") else (0.25, 1.0)


def follow(what, net, loss_of, optimizer, **options):
    """loss_of(net, step)"""
    net = net.double()
    for key, (name, p) in enumerate(net.named_parameters()):
        factor, offset = factor_of(name, p)
        p.data.copy_(formula.tensor(p.shape, 1000 + key, factor, offset))
    optimizer = optimizer(net.parameters(), **options)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(net, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(what, *[f"{value:.12g}" for value in losses])


def images(count, channels, size, classes, loss):
    x, target = formula.tensor((count, channels, size, size), 1), formula.below((count,), 2, classes)
    return lambda net, step: loss(net(x), target)


# ---- The small forms. The inputs of a step have the keys 100 + 10 * step and those after it. ----

class Rnn(nn.Module):
    """Of examples/rnn_model_parallel.c."""

    def __init__(self, words, width, hidden):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(words, width), nn.LSTM(width, hidden, 2)
        self.decoder = nn.Linear(hidden, words)

    def forward(self, x):
        return self.decoder(self.lstm(self.embedding(x))[0])


class Hybrid(nn.Module):
    """Of examples/ddp_rpc_hybrid.c."""

    def __init__(self, rows, width, classes):
        super().__init__()
        self.bag, self.dense = nn.EmbeddingBag(rows, width, mode="sum"), nn.Linear(width, classes)

    def forward(self, index, offsets):
        return self.dense(self.bag(index, offsets))


class Policy(nn.Module):
    """Of examples/cartpole/policy.c."""

    def __init__(self, hidden):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, hidden), nn.Linear(hidden, 2)

    def forward(self, x, mask):
        return self.affine2(F.relu(self.affine1(x) * mask))


def small_convnet():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.MaxPool2d(2), nn.Flatten(1), nn.Linear(2304, 32), nn.ReLU(),
        nn.Linear(32, 10), nn.LogSoftmax(dim=1))


def small_resnet():
    """One block for each of the four stages. At least four images: of two the last stage would normalize two numbers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
        Bottleneck(8, 2, 1), Bottleneck(8, 4, 2), Bottleneck(16, 8, 2), Bottleneck(32, 16, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(1), nn.Linear(64, 10))


def rnn_loss(net, step):
    key, words = 100 + 10 * step, 30
    scores = net(formula.below((6, 5), key, words))
    return F.cross_entropy(scores.reshape(30, words), formula.below((30,), key + 1, words))


def hybrid_loss(net, step):
    key, offsets = 100 + 10 * step, torch.tensor([0, 4, 5, 11, 18, 18, 25])
    return F.cross_entropy(net(formula.below((30,), key, 100), offsets), formula.below((7,), key + 1, 8))


def policy_loss(net, step):
    key, rows, hidden = 100 + 10 * step, 40, net.affine1.out_features
    mask = (formula.below((rows, hidden), key + 3, 10) >= 6) * 2.5
    scores = net(formula.tensor((rows, 4), key), mask)
    surprise = F.cross_entropy(scores, formula.below((rows,), key + 1, 2), reduction="none")
    return (surprise * formula.tensor((rows,), key + 2, 0.5, 1)).sum()


def main():
    torch.set_num_threads(1)
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    follow("convnet", convnet().eval(), images(8, 1, 28, 10, F.nll_loss), sgd, lr=0.02, momentum=0.9)
    follow("resnet50", ResNet50(30).train(), images(4, 3, 64, 30, F.cross_entropy), sgd, lr=0.0002, momentum=0.9)
    follow("small_convnet", small_convnet(), images(4, 1, 28, 10, F.nll_loss), sgd, lr=0.02, momentum=0.9)
    follow("small_resnet", small_resnet().train(), images(4, 3, 32, 10, F.cross_entropy), sgd, lr=0.0005, momentum=0.9)
    follow("rnn", Rnn(30, 8, 12), rnn_loss, sgd, lr=0.5)
    follow("hybrid", Hybrid(100, 16, 8), hybrid_loss, sgd, lr=0.05)
    follow("policy", Policy(128), policy_loss, adam, lr=0.01)


main()
