# SPDX-License-Identifier: Apache-2.0
"""Allreduce and barrier of PyTorch's Gloo between processes on this host, over tcp, for weft-perf. Reads lines "BYTES WINDOW MICROSECONDS WHAT",
and answers each with a line of the microseconds of single operations, as the first process sees them. 0 bytes: barriers."""
import argparse
import ctypes
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

MOST = 2000  # samples of an answer


def operate(x):
    if len(x):
        dist.all_reduce(x)
    else:
        dist.barrier()


def time_operations(x, count):
    dist.barrier()
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        operate(x)
        samples.append((time.perf_counter() - start) * 1e6)
    return samples


def follow(order):
    """Two operations are tried first. Their time says how many fill the slice."""
    dist.broadcast(order, 0)
    size, us = (int(value) for value in order)
    x = torch.zeros(size // 4)
    count = torch.tensor([us / min(time_operations(x, 2))])
    dist.broadcast(count, 0)
    return time_operations(x, min(max(int(count), 1), MOST))


def work(rank, processes, port):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    while rank > 0:
        follow(torch.zeros(2, dtype=torch.float64))
    for line in sys.stdin:
        size, _, us, _ = line.split(" ", 3)
        samples = follow(torch.tensor([float(size), float(us)], dtype=torch.float64))
        print(*(f"{sample:.3f}" for sample in samples), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for rank in range(1, options.processes):
        mp.get_context("spawn").Process(target=work, args=(rank, options.processes, port), daemon=True).start()
    work(0, options.processes, port)


if __name__ == "__main__":
    main()
