#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""convnet.py - a fingerprint of PyTorch's MNIST example network without dropout, in float64, weights from formula.py.

usage: tests/oracle/convnet.py > tests/data/convnet.txt      needs python3-torch; tests do not run it

Lines: "loss VALUE", "logits VALUES" (log-probabilities), "grad NAME NORM VALUES" (five sampled elements), by parameter.
"""
import torch
import torch.nn.functional as F
from torch import nn

import formula


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(self.conv2(F.relu(self.conv1(x))), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def line(*parts):
    print(*[f"{part:.9g}" if isinstance(part, float) else part for part in parts])


torch.set_num_threads(1)
net = Net().double()
for key, p in enumerate(net.parameters()):
    fan_in = p[0].numel() if p.dim() > 1 else 25
    p.data.copy_(formula.tensor(p.shape, 1000 + key, fan_in ** -0.5, 0.0, torch.float32))
log_probabilities = net(formula.tensor((6, 1, 28, 28), 1))
loss = F.nll_loss(log_probabilities, formula.below((6,), 2, 10))
loss.backward()
line("loss", loss.item())
line("logits", *log_probabilities.detach().reshape(-1).tolist())
for name, p in net.named_parameters():
    flat = p.grad.reshape(-1)
    line("grad", name, flat.norm().item(), *[flat[i * flat.numel() // 5].item() for i in range(5)])
