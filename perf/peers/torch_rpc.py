# SPDX-License-Identifier: Apache-2.0
"""What weft-perf measures of calls, in PyTorch RPC: two processes on loopback."""
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
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

SIZES = [8, 64, 512, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
WINDOWS = [1, 4, 16, 64, 256]


def nothing():
    pass


def take(_):
    pass


def echo(x):
    return x


def time_slice(call, seconds, least=3):
    samples, end = [], time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e6)
    return samples


def measure_latency(seconds):
    time_slice(lambda: rpc.rpc_sync("worker1", nothing), 0.2)
    s = sorted(time_slice(lambda: rpc.rpc_sync("worker1", nothing), seconds))
    return {"noop_min_us": s[0], "noop_p50_us": statistics.median(s), "noop_p99_us": s[len(s) * 99 // 100]}


def measure_bandwidth(seconds, sizes):
    out = {}
    for size in sizes:
        x = torch.zeros(size, dtype=torch.uint8)
        for name, function in (("one_way", take), ("echo", echo)):
            s = time_slice(lambda: rpc.rpc_sync("worker1", function, args=(x,)), seconds)
            out[f"{name}_{size}_us"] = statistics.median(s)
            out[f"{name}_{size}_min_us"] = min(s)
    return out


def measure_rate(seconds):
    out = {}
    for window in WINDOWS:
        flying = [rpc.rpc_async("worker1", nothing) for _ in range(window)]
        start, finished = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            flying[finished % window].wait()
            flying[finished % window] = rpc.rpc_async("worker1", nothing)
            finished += 1
        rpc_seconds = time.perf_counter() - start
        for future in flying:
            future.wait()
        out[f"window_{window}_per_s"] = finished / rpc_seconds
    return out


def work(rank, port, seconds, transport, sizes, only, results):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=30)
    if transport == "tcp":  # no shared memory, as weft's tcp provider has none
        options._transports = ["uv"]
        options._channels = ["basic"]
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        out = {}
        if "latency" in only:
            out.update(measure_latency(4 * seconds))
        if "rate" in only:
            out.update(measure_rate(seconds))
        if "latency" in only:
            out.update(measure_bandwidth(seconds / 4, sizes))
        results.put(out)
    rpc.shutdown()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there (else to the output)")
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a measurement")
    parser.add_argument("--transport", choices=("default", "tcp"), default="tcp",
                        help="tcp: PyTorch's uv transport; default: what it chooses on one host (shared memory)")
    parser.add_argument("--sizes", default="", help="bytes of tensors, with commas (default: the usual ones)")
    parser.add_argument("--only", default="latency,rate", help="latency, rate or both, with a comma")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",") if size] or SIZES
    only = options.only.split(",")
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    context = mp.get_context("spawn")
    results = context.Queue()
    port = free_port()
    workers = [context.Process(target=work,
                               args=(rank, port, options.seconds, options.transport, sizes, only, results), daemon=True)
               for rank in range(2)]
    for worker in workers:
        worker.start()
    try:
        out = results.get(timeout=120)
    finally:
        for worker in workers:
            worker.join(timeout=10)
            worker.kill()
    out["torch"] = torch.__version__
    text = json.dumps(out, indent=1)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
