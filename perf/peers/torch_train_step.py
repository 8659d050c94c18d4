# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of train_step: reads numbers of steps, one a line, and answers each with the seconds they took."""
import argparse
import sys
import time

import torch
import torch.nn.functional as F

from models import ResNet50, convnet


NODES = 10000  # as in train_step.c


def add_nodes():
    x = torch.ones(1, requires_grad=True)
    out = x
    for _ in range(NODES):
        out = out + x
    out.backward()


def serve(step):
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(f"{time.perf_counter() - start:.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("convnet", "resnet50", "nodes"), default="convnet")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    if options.model == "nodes":
        serve(add_nodes)
        return
    if options.model == "convnet":
        batch, model = options.batch_size or 32, convnet()
        x, target, loss = torch.rand(batch, 1, 28, 28) - 0.5, torch.arange(batch) % 10, F.nll_loss
    else:
        batch, model = options.batch_size or 20, ResNet50(30)
        x, loss = torch.rand(batch, 3, 64, 64) - 0.5, F.mse_loss
        target = F.one_hot(torch.arange(batch) % 30, 30).float()
    assert sum(p.numel() for p in model.parameters()) in (1199882, 23569502)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(model(x), target).backward()
        optimizer.step()

    serve(step)


main()
