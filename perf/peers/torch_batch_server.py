# SPDX-License-Identifier: Apache-2.0
"""The tutorial's batch-updating parameter server (ResNet-50, MSE, SGD) in PyTorch RPC, on CPU, with N trainers.

After "Implementing Batch RPC Processing Using Asynchronous Executions" of the PyTorch tutorials: trainers send gradients with
one call and get the updated model as its result. Prints one JSON object.
"""
import argparse
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

from models import ResNet50

CLASSES = 30


class BatchServer:
    def __init__(self, trainers):
        self.model, self.trainers = ResNet50(CLASSES), trainers
        self.lock, self.future, self.arrived = threading.Lock(), torch.futures.Future(), 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)

    def get_model(self):
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch_model(server, gradients):
        self = server.local_value()
        with self.lock:
            self.arrived += 1
            for p, g in zip(self.model.parameters(), gradients):
                p.grad += g
            future = self.future
            if self.arrived >= self.trainers:
                for p in self.model.parameters():
                    p.grad /= self.trainers
                self.arrived = 0
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                future.set_result(self.model)
                self.future = torch.futures.Future()
        return future


def train(server, iterations, batch, side):
    torch.set_num_threads(1)
    model = server.rpc_sync(timeout=0).get_model()
    x, target = torch.randn(batch, 3, side, side), torch.zeros(batch, CLASSES)
    target[torch.arange(batch), torch.randint(CLASSES, (batch,))] = 1
    start, away = time.perf_counter(), 0.0
    for _ in range(iterations):
        torch.nn.functional.mse_loss(model(x), target).backward()
        before = time.perf_counter()
        model = rpc.rpc_sync(server.owner(), BatchServer.update_and_fetch_model,
                             args=(server, [p.grad for p in model.parameters()]), timeout=0)
        away += time.perf_counter() - before
    return time.perf_counter() - start, away


def work(rank, options, port, results):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    backend = rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, rpc_timeout=0, init_method=f"tcp://127.0.0.1:{port}")
    if options.transport == "tcp":
        backend._transports = ["uv"]
        backend._channels = ["basic"]
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=options.trainers + 1, rpc_backend_options=backend)
    if rank == 0:
        server = rpc.RRef(BatchServer(options.trainers))
        futures = [rpc.rpc_async(f"worker{t}", train, args=(server, options.iterations, options.batch_size,
                                                             options.image_size), timeout=0)
                   for t in range(1, options.trainers + 1)]
        times = [future.wait() for future in futures]
        results.put((times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--transport", choices=("default", "tcp"), default="tcp")
    options = parser.parse_args()
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=work, args=(rank, options, port, results), daemon=True)
               for rank in range(options.trainers + 1)]
    for worker in workers:
        worker.start()
    try:
        times, peak = results.get(timeout=180)
    finally:
        for worker in workers:
            worker.join(timeout=10)
            worker.kill()
    seconds = max(total for total, _ in times)
    print(json.dumps({
        "trainers": options.trainers, "iterations": options.iterations, "seconds": seconds,
        "images_per_s": options.trainers * options.iterations * options.batch_size / seconds,
        "communication_share": sum(away for _, away in times) / sum(total for total, _ in times),
        "server_peak_mb": peak / 1e6, "torch": torch.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
