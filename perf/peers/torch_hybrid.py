# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tutorial "Combining Distributed DataParallel with Distributed RPC Framework": an embedding bag on a parameter server as a
RemoteModule, a linear layer on each trainer under DDP (Gloo), one DistributedOptimizer. Prints a JSON object: iterations a second of a
trainer, the slowest one's."""
import argparse
import ctypes
import json
import os
import random
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef
from torch.nn.parallel import DistributedDataParallel

NUM_EMBEDDINGS, EMBEDDING_DIM, CLASSES, BATCHES = 100, 16, 8, 10


class HybridModel(torch.nn.Module):
    def __init__(self, remote_emb_module):
        super().__init__()
        self.remote_emb_module = remote_emb_module
        self.fc = DistributedDataParallel(torch.nn.Linear(EMBEDDING_DIM, CLASSES))

    def forward(self, indices, offsets):
        return self.fc(self.remote_emb_module.forward(indices, offsets))


def get_next_batch():
    for _ in range(BATCHES):
        num_indices = random.randint(20, 50)
        indices = torch.LongTensor(num_indices).random_(0, NUM_EMBEDDINGS)
        offsets, start = [], 0
        while start < num_indices:
            offsets.append(start)
            start += random.randint(1, 10)
        offsets = torch.LongTensor(offsets)
        target = torch.LongTensor(len(offsets)).random_(CLASSES)
        yield indices, offsets, target


def run_trainer(remote_emb_module, epochs):
    torch.manual_seed(dist.get_rank())
    model = HybridModel(remote_emb_module)
    parameters = remote_emb_module.remote_parameters() + [RRef(p) for p in model.fc.parameters()]
    opt = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.05)
    criterion = torch.nn.CrossEntropyLoss()
    start = time.perf_counter()
    for _ in range(epochs):
        for indices, offsets, target in get_next_batch():
            with dist_autograd.context() as context_id:
                loss = criterion(model(indices, offsets), target)
                dist_autograd.backward(context_id, [loss])
                opt.step(context_id)
    return time.perf_counter() - start


def lead(trainers, epochs, results):
    remote_emb_module = RemoteModule("ps", torch.nn.EmbeddingBag, args=(NUM_EMBEDDINGS, EMBEDDING_DIM),
                                     kwargs={"mode": "sum"})
    futures = [rpc.rpc_async(f"trainer{rank}", run_trainer, args=(remote_emb_module, epochs), timeout=0)
               for rank in range(trainers)]
    results.put(epochs * BATCHES / max(future.wait() for future in futures))


def work(rank, trainers, ports, epochs, results):
    """Ranks as in the tutorial: trainers, then the master, then the parameter server."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{ports[1]}", rpc_timeout=120)
    options._transports = ["uv"]  # no shared memory, as weft's tcp provider has none
    options._channels = ["basic"]
    name = f"trainer{rank}" if rank < trainers else ("master", "ps")[rank - trainers]
    if rank < trainers:
        dist.init_process_group("gloo", rank=rank, world_size=trainers, init_method=f"tcp://127.0.0.1:{ports[0]}")
    rpc.init_rpc(name, rank=rank, world_size=trainers + 2, rpc_backend_options=options)
    if name == "master":
        lead(trainers, epochs, results)
    rpc.shutdown()


def free_ports():
    sockets = [socket.socket() for _ in range(2)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100, help="of 10 iterations")
    options = parser.parse_args()
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = mp.get_context("spawn")
    results, ports = context.Queue(), free_ports()
    workers = [context.Process(target=work, args=(rank, options.trainers, ports, options.epochs, results), daemon=True)
               for rank in range(options.trainers + 2)]
    for worker in workers:
        worker.start()
    try:
        print(json.dumps({"iterations_per_s": results.get(timeout=120)}))
    finally:
        for worker in workers:
            worker.join(timeout=10)
            worker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
