#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_bench.py [--small] - the cases of gpu_bench_ops.c with PyTorch (eager).

A line for each case: "bench NAME SECONDS NUMBER UNIT".

float32 without TF32, also in convolutions. Without torchvision there is no resnet50.
"""
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCHES, RUNS_MOST, CHAIN = 5, 100000, 100
small = "--small" in sys.argv[1:]
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True  # it may try its algorithms in the warm-up
gpu = torch.device("cuda")


def seconds_of(run, runs):
    began = time.perf_counter()
    for _ in range(runs):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / runs


def measure(name, run, amount, unit):
    for _ in range(3):
        seconds_of(run, 1)
    best = seconds_of(run, 1)
    runs = min(RUNS_MOST, int((0.001 if small else 0.1) / best) + 1)
    for _ in range(1 if small else BATCHES):
        best = min(best, seconds_of(run, runs))
    print(f"bench {name} {best:.9f} {amount / best:.2f} {unit}", flush=True)


def operators():
    side, row, square = (64, 128, 32) if small else (8192, 1024, 4096)
    size = 4 * side * side
    x, y = torch.full((side, side), 0.5, device=gpu), torch.full((side, side), 0.5, device=gpu)
    lines, few = x.reshape(-1, row), torch.full((8,), 0.5, device=gpu)
    a, b = torch.full((square, square), 0.5, device=gpu), torch.full((square, square), 0.5, device=gpu)

    def chain():
        z = few
        for _ in range(CHAIN):
            z = z + few

    with torch.no_grad():
        measure("copy", lambda: y.copy_(x), 2e-9 * size, "GB/s")
        measure("add", lambda: x + y, 3e-9 * size, "GB/s")
        measure("transpose", lambda: y.copy_(x.t()), 2e-9 * size, "GB/s")
        measure("sum", x.sum, 1e-9 * size, "GB/s")
        measure("softmax", lambda: lines.softmax(-1), 2e-9 * size, "GB/s")
        measure("matmul", lambda: torch.matmul(a, b), 2e-12 * square**3, "TFLOP/s")
        measure("add_8_x100", chain, CHAIN * 1e-6, "Mop/s")


def adam():
    count = 1000 if small else 25000000
    parameter = nn.Parameter(torch.full((count,), 0.5, device=gpu))
    parameter.grad = torch.full((count,), 0.5, device=gpu)
    measure("adam", torch.optim.Adam([parameter], fused=True).step, 7 * 4e-9 * count, "GB/s")


class ConvNet(nn.Module):
    """The network of PyTorch's MNIST example."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout2d(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = self.fc1(torch.flatten(self.dropout1(x), 1))
        return self.fc2(self.dropout2(F.relu(x)))


def training(name, model, shape):
    model = model.to(gpu).train()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.full(shape, 0.5, device=gpu), torch.zeros(shape[0], dtype=torch.int64, device=gpu)

    def step():
        sgd.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        sgd.step()

    measure(name, step, shape[0], "images/s")


print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
operators()
adam()
training("convnet", ConvNet(), (2 if small else 64, 1, 28, 28))
try:
    import torchvision
except ImportError:
    torchvision = None
    print("no torchvision: resnet50 is not measured")
if torchvision is not None and not small:
    training("resnet50", torchvision.models.resnet50(), (32, 3, 224, 224))
