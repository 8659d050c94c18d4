# SPDX-License-Identifier: Apache-2.0
"""Allreduce and barrier of PyTorch's Gloo between processes on this machine, over tcp. Prints one JSON object of microseconds: us_0 is the
barrier, us_N an allreduce of N bytes of float32; medians of slices."""
import argparse
import ctypes
import json
import os
import signal
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [0, 4, 256, 4096, 65536, 1 << 20, 16 << 20, 100 << 20]


def count_of(size, quick):
    count = 100 if size <= 65536 else 20 if size <= 1 << 20 else 4 if size <= 16 << 20 else 2
    return max(count // 4, 2) if quick else count


def one_slice(size, count):
    x = torch.zeros(size // 4)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(x) if size else dist.barrier()
    return 1e6 * (time.perf_counter() - start) / count


def work(rank, options, port, results):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=options.processes)
    taken = {size: [] for size in SIZES}
    for turn in range(-1, options.slices):
        for size in SIZES:
            us = one_slice(size, 2 if turn < 0 else count_of(size, options.quick))
            if turn >= 0:
                taken[size].append(us)
    if rank == 0:
        results.put({f"us_{size}": statistics.median(times) for size, times in taken.items()})
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    context = mp.get_context("spawn")
    results = context.Queue()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    workers = [context.Process(target=work, args=(rank, options, port, results), daemon=True)
               for rank in range(options.processes)]
    for worker in workers:
        worker.start()
    try:
        print(json.dumps(results.get(timeout=200)))
    finally:
        for worker in workers:
            worker.join(timeout=10)
            worker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
