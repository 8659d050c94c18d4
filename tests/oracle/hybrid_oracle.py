#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""hybrid_oracle.py - the losses of the first epochs of ddp_rpc_hybrid --synchronous by PyTorch, in one process.

usage: tests/oracle/hybrid_oracle.py > tests/data/hybrid_losses.txt      needs python3-torch; tests do not run it

A line for each number of trainers and trainer: "TRAINERS TRAINER LOSS...", a mean loss for each epoch of 10 batches. Weights and batches
are drawn as examples/ddp_rpc_hybrid.c draws them from seed 1 (examples/common/random_stream.h: SplitMix64).
"""
import math

import torch
import torch.nn.functional as F

SEED, EPOCHS, BATCHES, LR = 1, 20, 10, 0.05
ROWS, WIDTH, CLASSES = 100, 16, 8
FOR_EMBEDDING, FOR_DENSE, FOR_BATCHES = range(3)
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed, number):
    return mix(mix((seed + GOLDEN) & MASK) ^ ((number * 0xD1342543DE82EF95 + GOLDEN) & MASK))


class Stream:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + GOLDEN) & MASK
        return mix(self.state)

    def below(self, bound):
        return ((self.next() >> 32) * bound) >> 32

    def unit(self):
        return (self.next() >> 11) * 2.0**-53

    def normal(self):
        u, v = 1 - self.unit(), self.unit()
        return math.sqrt(-2 * math.log(u)) * math.cos(6.283185307179586 * v)

    def quarter(self):
        return -0.25 + 0.5 * self.unit()


def drawn(draw, *shape):
    values = [draw() for _ in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float32).double().reshape(shape).requires_grad_()


def batch(trainer, number):
    stream = Stream(key(key(key(SEED, FOR_BATCHES), trainer), number))
    rows = 20 + stream.below(31)
    index = [stream.below(ROWS) for _ in range(rows)]
    offsets, at = [], 0
    while at < rows:
        offsets.append(at)
        at += 1 + stream.below(10)
    target = [stream.below(CLASSES) for _ in offsets]
    return torch.tensor(index), torch.tensor(offsets), torch.tensor(target)


def train(trainers):
    table = drawn(Stream(key(SEED, FOR_EMBEDDING)).normal, ROWS, WIDTH)
    stream = Stream(key(key(SEED, FOR_DENSE), 0))
    dense = [drawn(stream.quarter, CLASSES, WIDTH), drawn(stream.quarter, CLASSES)]
    optimizer = torch.optim.SGD([table] + dense, lr=LR)
    losses = [[0.0] * EPOCHS for _ in range(trainers)]
    for number in range(EPOCHS * BATCHES):
        optimizer.zero_grad()
        for trainer in range(trainers):
            index, offsets, target = batch(trainer, number)
            loss = F.cross_entropy(F.linear(F.embedding_bag(index, table, offsets, mode="sum"), *dense), target)
            loss.backward()
            losses[trainer][number // BATCHES] += loss.item() / BATCHES
        for p in dense:
            p.grad /= trainers
        optimizer.step()
    for trainer in range(trainers):
        print(trainers, trainer, *[f"{loss:.9g}" for loss in losses[trainer]])


for count in (1, 2, 4):
    train(count)
