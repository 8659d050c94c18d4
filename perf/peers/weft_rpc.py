# SPDX-License-Identifier: Apache-2.0
"""Calls of weft's Python package between two processes of this host, for weft-perf. Reads and answers lines as torch_rpc.py."""
import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import weft

try:
    import numpy
except ImportError:
    numpy = None
MOST = 2000  # samples of an answer


@weft.function(name="nothing")
def nothing():
    pass


@weft.function(name="take")
def take(_):
    pass


@weft.function(name="echo")
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
    flying = [weft.rpc_async(1, nothing) for _ in range(window)]
    start, finished = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        flying[finished % window].wait()
        flying[finished % window] = weft.rpc_async(1, nothing)
        finished += 1
    rate = finished / (time.perf_counter() - start)
    for future in flying:
        future.wait()
    return [rate]


def measure(size, window, seconds, what):
    if what == "executor":
        return time_rate(window, seconds)
    if what == "no-op executor":
        return time_calls(lambda: weft.rpc_sync(1, nothing), seconds)
    x = numpy.zeros(size, numpy.uint8) if numpy else weft.zeros((size,), "uint8")
    return time_calls(lambda: weft.rpc_sync(1, echo if what == "echo" else take, (x,)), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fabric", default="host", help="as WEFT_FABRIC")
    options = parser.parse_args()
    os.environ["WEFT_FABRIC"] = options.fabric
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if "RANK" in os.environ:
        weft.init_rpc(death_timeout=3600)  # weft-perf stops the processes in turns
        weft.shutdown()
        return
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_PORT=str(s.getsockname()[1]), WORLD_SIZE="2")
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": "1"}, stdin=subprocess.DEVNULL)
    os.environ["RANK"] = "0"
    weft.init_rpc(death_timeout=3600)
    for line in sys.stdin:
        size, window, us, what = line.rstrip("\n").split(" ", 3)
        print(*(f"{sample:.3f}" for sample in measure(int(size), int(window), float(us) / 1e6, what)), flush=True)
    weft.shutdown()
    other.wait()


if __name__ == "__main__":
    main()
