# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of train_step: reads numbers of steps, one a line, and answers each with the seconds they took."""
import argparse
import sys
import time

import torch
import torch.nn.functional as F

from models import ResNet50, convnet

NODES = 10000  # these as in train_step.c
STEPS, BATCH, WIDTH, LAYERS = 35, 20, 200, 2


def serve(step):
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(f"{time.perf_counter() - start:.6f}", flush=True)


def add_nodes():
    x = torch.ones(1, requires_grad=True)
    out = x
    for _ in range(NODES):
        out = out + x
    out.backward()


def lstm():
    """A forward and a backward pass of a layer."""
    net = torch.nn.LSTM(WIDTH, WIDTH, LAYERS)
    x = torch.rand(STEPS, BATCH, WIDTH).requires_grad_()
    gradient = torch.rand(STEPS, BATCH, WIDTH)

    def step():
        net.zero_grad(set_to_none=True)
        x.grad = None
        net(x)[0].backward(gradient)

    return step


def optimizer(kind):
    """A step of an optimizer on the parameters of ResNet-50."""
    parameters = list(ResNet50(30).parameters())
    for p in parameters:
        p.grad = p.detach().clone()
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=0.001).step
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9).step


def training(kind):
    """A step of a model and its optimizer."""
    if kind == "convnet":
        batch, model = 32, convnet()
        x, target, loss = torch.rand(batch, 1, 28, 28) - 0.5, torch.arange(batch) % 10, F.nll_loss
    else:
        batch, model = 20, ResNet50(30)
        x, loss = torch.rand(batch, 3, 64, 64) - 0.5, F.mse_loss
        target = F.one_hot(torch.arange(batch) % 30, 30).float()
    assert sum(p.numel() for p in model.parameters()) in (1199882, 23569502)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(model(x), target).backward()
        optimizer.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("convnet", "resnet50", "nodes", "lstm", "sgd", "adam"), default="convnet")
    kind = parser.parse_args().model
    torch.set_num_threads(1)
    torch.manual_seed(1)
    serve(add_nodes if kind == "nodes" else lstm() if kind == "lstm" else optimizer(kind) if kind in ("sgd", "adam") else training(kind))


main()
