# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of iteration: training a model that lives on another worker, as its parameter server tutorial does: a remote forward, a
distributed backward pass, a distributed SGD step. Without the tutorial's look at all gradients. Reads numbers of iterations, one a line, and
answers each with the seconds they took."""
import argparse
import ctypes
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import DistributedOptimizer

from models import convnet

SIZES = {"small": (1, 64), "convnet": (32, 1, 28, 28)}


class Server:
    def __init__(self, which):
        self.model = convnet() if which == "convnet" else nn.Sequential(
            nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(dim=1))

    def forward(self, x):
        return self.model(x)

    def parameters(self):
        return [rpc.RRef(p) for p in self.model.parameters()]


def serve(which):
    server = rpc.remote("worker1", Server, args=(which,))
    optimizer = DistributedOptimizer(torch.optim.SGD, server.rpc_sync().parameters(), lr=1e-4)
    x, labels = torch.randn(SIZES[which]), torch.zeros(SIZES[which][0], dtype=torch.int64)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            with dist_autograd.context() as context:
                loss = F.nll_loss(server.rpc_sync().forward(x), labels)
                dist_autograd.backward(context, [loss])
                optimizer.step(context)
        print(f"{time.perf_counter() - start:.6f}", flush=True)


def work(rank, port, which):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=30)
    options._transports = ["uv"]  # no shared memory, as weft's tcp provider has none
    options._channels = ["basic"]
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        serve(which)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, default="small")
    options = parser.parse_args()
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.get_context("spawn").Process(target=work, args=(1, port, options.model), daemon=True).start()
    work(0, port, options.model)


if __name__ == "__main__":
    main()
