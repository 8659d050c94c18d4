#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tensor_oracle.py - what PyTorch makes of the operators, in float64, for inputs from formula.py.

usage: tests/oracle/tensor_oracle.py > tests/data/tensor_oracle.txt       needs python3-torch; tests do not run it

Lines: "op KIND NUMBERS" begins a case, "out NAME COUNT VALUES" is one of its results, in the order in which
test_tensor_oracle.c computes them. Inputs have the keys 1, 2, 3 in the order of the operator's arguments, the gradient that
comes in has key 9.
"""
import torch
import torch.nn.functional as F

import formula


def out(name, t):
    values = t.detach().reshape(-1).tolist()
    print("out", name, len(values), *[repr(v) if isinstance(v, int) else f"{v:.17g}" for v in values])


def leaf(shape, key, factor=1.0, offset=0.0):
    return formula.tensor(shape, key, factor, offset).requires_grad_()


def pull(y):
    y.backward(formula.tensor(y.shape, 9))


def conv(n, c, h, w, o, kh, kw, sh, sw, ph, pw, dh, dw, groups):
    print("op conv", n, c, h, w, o, kh, kw, sh, sw, ph, pw, dh, dw, groups)
    x, weight, bias = leaf((n, c, h, w), 1), leaf((o, c // groups, kh, kw), 2), leaf((o,), 3)
    y = F.conv2d(x, weight, bias, (sh, sw), (ph, pw), (dh, dw), groups)
    pull(y)
    for name, t in (("y", y), ("dx", x.grad), ("dweight", weight.grad), ("dbias", bias.grad)):
        out(name, t)


def norm(train, *shape):
    print("op norm", int(train), *shape)
    x, weight, bias = leaf(shape, 1, 2.0, 0.5), leaf((shape[1],), 2, 0.5, 1.0), leaf((shape[1],), 3)
    mean, var = formula.tensor((shape[1],), 4), formula.tensor((shape[1],), 5, 0.5, 1.0)
    y = F.batch_norm(x, mean, var, weight, bias, bool(train), 0.1, 1e-5)
    pull(y)
    results = [("y", y), ("dx", x.grad), ("dweight", weight.grad), ("dbias", bias.grad), ("mean", mean), ("var", var)]
    for name, t in results:
        out(name, t)


def max_pool(n, c, h, w, kh, kw, sh, sw, ph, pw):
    print("op max_pool", n, c, h, w, kh, kw, sh, sw, ph, pw)
    x = leaf((n, c, h, w), 1)
    y, indices = F.max_pool2d(x, (kh, kw), (sh, sw), (ph, pw), return_indices=True)
    pull(y)
    for name, t in (("y", y), ("indices", indices), ("dx", x.grad)):
        out(name, t)


def average_pool(n, c, h, w, oh, ow):
    print("op average_pool", n, c, h, w, oh, ow)
    x = leaf((n, c, h, w), 1)
    y = F.adaptive_avg_pool2d(x, (oh, ow))
    pull(y)
    out("y", y)
    out("dx", x.grad)


def softmax(logarithm, dim, *shape):
    print("op softmax", logarithm, dim, *shape)
    x = leaf(shape, 1, 20.0)
    y = F.log_softmax(x, dim) if logarithm else F.softmax(x, dim)
    pull(y)
    out("y", y)
    out("dx", x.grad)


REDUCTIONS = ("mean", "sum", "none")


def nll(reduction, n, c):
    print("op nll", reduction, n, c)
    logp = leaf((n, c), 1)
    y = F.nll_loss(logp, formula.below((n,), 2, c), reduction=REDUCTIONS[reduction])
    pull(y)
    out("y", y)
    out("dlogp", logp.grad)


def mse(reduction, n, c):
    print("op mse", reduction, n, c)
    x = leaf((n, c), 1)
    y = F.mse_loss(x, formula.tensor((n, c), 2), reduction=REDUCTIONS[reduction])
    pull(y)
    out("y", y)
    out("dx", x.grad)


def linear(n, i, o):
    print("op linear", n, i, o)
    x, weight, bias = leaf((n, i), 1), leaf((o, i), 2), leaf((o,), 3)
    y = F.linear(x, weight, bias)
    pull(y)
    for name, t in (("y", y), ("dx", x.grad), ("dweight", weight.grad), ("dbias", bias.grad)):
        out(name, t)


def sgd(momentum, dampening, decay, nesterov):
    print("op sgd", momentum, dampening, decay, int(nesterov))
    p = leaf((7,), 1)
    optimizer = torch.optim.SGD([p], 0.1, momentum, dampening, decay, nesterov)
    for step in range(4):
        p.grad = formula.tensor((7,), 20 + step)
        optimizer.step()
    out("p", p)


for case in ((2, 3, 6, 5, 4, 3, 3, 1, 1, 0, 0, 1, 1, 1), (2, 3, 7, 8, 4, 3, 3, 2, 2, 1, 1, 1, 1, 1),
             (1, 4, 9, 9, 6, 3, 2, 2, 1, 2, 1, 2, 3, 2), (2, 16, 4, 4, 8, 1, 1, 1, 1, 0, 0, 1, 1, 1),
             (1, 3, 16, 16, 2, 7, 7, 2, 2, 3, 3, 1, 1, 1), (1, 4, 5, 5, 4, 3, 3, 1, 1, 1, 1, 1, 1, 4),
             (2, 16, 5, 5, 16, 1, 1, 2, 2, 0, 0, 1, 1, 1), (1, 1, 3, 3, 1, 3, 3, 1, 1, 4, 4, 1, 1, 1)):
    conv(*case)
for train in (1, 0):
    for shape in ((3, 2, 5, 5), (4, 5), (2, 3, 2, 2), (2, 2, 9, 9), (5, 70, 1, 1), (2, 1, 12, 11)):
        norm(train, *shape)
for case in ((2, 2, 6, 6, 2, 2, 2, 2, 0, 0), (1, 3, 9, 8, 3, 3, 2, 2, 1, 1), (1, 2, 7, 13, 3, 2, 1, 3, 1, 0),
             (1, 1, 5, 5, 5, 5, 5, 5, 2, 2), (1, 1, 4, 19, 2, 4, 1, 1, 1, 2), (2, 1, 11, 40, 3, 3, 2, 2, 1, 1)):
    max_pool(*case)
for case in ((2, 3, 4, 4, 1, 1), (1, 2, 7, 5, 3, 2), (1, 1, 2, 3, 5, 4), (2, 1, 6, 6, 3, 3)):
    average_pool(*case)
for logarithm in (0, 1):
    for dim, shape in ((1, (4, 10)), (0, (6, 3)), (1, (2, 5, 3)), (2, (2, 3, 1))):
        softmax(logarithm, dim, *shape)
for reduction in range(3):
    nll(reduction, 5, 4)
    mse(reduction, 5, 13)
for case in ((3, 5, 4), (1, 1, 1), (7, 2, 9)):
    linear(*case)
for case in ((0.0, 0.0, 0.0, False), (0.9, 0.0, 0.0, False), (0.9, 0.25, 0.01, False), (0.9, 0.0, 0.01, True)):
    sgd(*case)
