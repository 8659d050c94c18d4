#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""resnet50.py - a fingerprint of torchvision's ResNet-50, forward and backward, with weights from formula.py.

usage: tests/oracle/resnet50.py double > tests/data/resnet50.txt      needs python3-torch and torchvision; tests do not run it

Lines: "name KIND NAME" (kind p or b, in order), "loss VALUE", "logits VALUES", "grad NAME NORM VALUES" (five sampled
elements: number i * numel / 5), "buffer NAME NORM". Weights as test_nn_resnet.c fills them.
"""
import sys

import torch
import torchvision

import formula

BATCH, SIZE, CLASSES = 8, 64, 30


def fill(net):
    for key, (name, p) in enumerate(net.named_parameters()):
        if p.dim() == 4:
            factor, offset = (6.0 / (p.shape[0] * p.shape[2] * p.shape[3])) ** 0.5, 0.0
        elif p.dim() == 2:
            factor, offset = p.shape[1] ** -0.5, 0.0
        elif name.endswith("bias"):
            factor, offset = 0.1, 0.0
        elif name.endswith("bn3.weight"):  # short residual branches: otherwise float32 alone is off by 4e-3
            factor, offset = 0.05, 0.2
        else:
            factor, offset = 0.25, 1.0
        p.data.copy_(formula.tensor(p.shape, 1000 + key, factor, offset, torch.float32))


def line(*parts):
    print(*[f"{part:.9g}" if isinstance(part, float) else part for part in parts])


def sample(t):
    flat = t.detach().reshape(-1)
    return [flat[i * flat.numel() // 5].item() for i in range(5)]


def main():
    torch.set_num_threads(1)
    net = torchvision.models.resnet50(weights=None, num_classes=CLASSES)
    fill(net)
    double = len(sys.argv) > 1 and sys.argv[1] == "double"
    net = net.double() if double else net
    x = formula.tensor((BATCH, 3, SIZE, SIZE), 1, dtype=torch.float64 if double else torch.float32)
    target = formula.below((BATCH,), 2, CLASSES)
    logits = net(x)
    loss = torch.nn.functional.cross_entropy(logits, target)
    loss.backward()
    for name, _ in net.named_parameters():
        line("name", "p", name)
    for name, _ in net.named_buffers():
        line("name", "b", name)
    line("loss", loss.item())
    line("logits", *logits.detach().reshape(-1).tolist())
    for name, p in net.named_parameters():
        line("grad", name, p.grad.double().norm().item(), *sample(p.grad))
    for name, b in net.named_buffers():
        line("buffer", name, b.double().norm().item())


main()
