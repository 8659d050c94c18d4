# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of sequence: reads numbers of passes, one a line, and answers each with the seconds they took."""
import argparse
import sys
import time

import torch

STEPS, BATCH, WIDTH, LAYERS = 35, 20, 200, 2
ROWS, COLUMNS, BAGS, LENGTH = 100000, 64, 512, 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("lstm", "bag", "sparse_bag", "embedding"), default="lstm")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    if options.model == "lstm":
        net = torch.nn.LSTM(WIDTH, WIDTH, LAYERS)
        x = torch.rand(STEPS, BATCH, WIDTH).requires_grad_()
        gradient = torch.rand(STEPS, BATCH, WIDTH)
    else:
        if options.model == "embedding":
            net = torch.nn.Embedding(ROWS, COLUMNS)
        else:
            net = torch.nn.EmbeddingBag(ROWS, COLUMNS, mode="sum", sparse=options.model == "sparse_bag")
        x = torch.randint(ROWS, (BAGS, LENGTH))
        gradient = torch.rand(BAGS, LENGTH, COLUMNS) if options.model == "embedding" else torch.rand(BAGS, COLUMNS)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            net.zero_grad(set_to_none=True)
            x.grad = None
            y = net(x)
            (y[0] if options.model == "lstm" else y).backward(gradient)
        print(f"{time.perf_counter() - start:.6f}", flush=True)


main()
