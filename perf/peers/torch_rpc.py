# SPDX-License-Identifier: Apache-2.0
"""Calls of PyTorch RPC between two processes on loopback, for weft-perf. Reads lines "BYTES WINDOW MICROSECONDS WHAT", and answers each with
a line of samples, measured for so many microseconds: WHAT is "no-op executor", "one way", "echo" (microseconds of a call), or "executor"
(calls a second with WINDOW in flight)."""
import argparse
import ctypes
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

MOST = 2000  # samples of an answer


def nothing():
    pass


def take(_):
    pass


def echo(x):
    return x


def time_calls(call, seconds):
    """Microseconds of each call."""
    call()
    samples, end = [], time.perf_counter() + seconds
    while not samples or (time.perf_counter() < end and len(samples) < MOST):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e6)
    return samples


def time_rate(window, seconds):
    """Calls a second, with so many in flight."""
    flying = [rpc.rpc_async("worker1", nothing) for _ in range(window)]
    start, finished = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        flying[finished % window].wait()
        flying[finished % window] = rpc.rpc_async("worker1", nothing)
        finished += 1
    rate = finished / (time.perf_counter() - start)
    for future in flying:
        future.wait()
    return [rate]


def measure(size, window, seconds, what):
    if what == "executor":
        return time_rate(window, seconds)
    if what == "no-op executor":
        return time_calls(lambda: rpc.rpc_sync("worker1", nothing), seconds)
    x = torch.zeros(size, dtype=torch.uint8)
    return time_calls(lambda: rpc.rpc_sync("worker1", echo if what == "echo" else take, args=(x,)), seconds)


def work(rank, port, transport):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=30)
    if transport == "tcp":  # no shared memory, as weft's tcp provider has none
        options._transports = ["uv"]
        options._channels = ["basic"]
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    for line in sys.stdin if rank == 0 else ():
        size, window, us, what = line.rstrip("\n").split(" ", 3)
        print(*(f"{sample:.3f}" for sample in measure(int(size), int(window), float(us) / 1e6, what)), flush=True)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=("default", "tcp"), default="tcp",
                        help="tcp: PyTorch's uv transport; default: what it chooses on one host (shared memory)")
    options = parser.parse_args()
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    other = mp.get_context("spawn").Process(target=work, args=(1, port, options.transport), daemon=True)
    other.start()
    work(0, port, options.transport)


if __name__ == "__main__":
    main()
