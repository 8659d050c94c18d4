# SPDX-License-Identifier: Apache-2.0
"""worker.py - the worker in Python; see worker.c."""
import gc
import os

import numpy as np
import weft
from weft import _tensor


@weft.function(name="echo")
def echo(*values):
    return values


@weft.function(name="fail")
def fail():
    raise ValueError("never on a Friday")


@weft.function(name="ramp")
def ramp(n):
    return np.arange(1.0, n + 1)


@weft.function(name="total")
def total(x):
    x = x.to_here() if isinstance(x, weft.RRef) else x
    return float(x.numpy().sum())


@weft.function(name="nothing")
def nothing():
    pass


def resident():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1])


def call_all(to, next_, calls):
    x = np.arange(200001.0)
    values = (True, -(2**63), 0.1, "grüß", x)
    got = weft.rpc_sync(to, "echo", values)
    assert got[:4] == values[:4] and (got[4].numpy() == x).all(), got
    assert weft.rpc_sync(to, "total", (x,)) == 20000100000
    try:
        weft.rpc_sync(to, "fail")
        raise AssertionError("no error")
    except weft.RemoteError as error:
        assert "never on a Friday" in error.text and error.worker == to
    far = weft.remote(to, "ramp", (100,))
    assert weft.rpc_sync(next_, "total", (far,)) == 5050
    before = resident()
    for _ in range(calls):
        weft.rpc_sync(to, "nothing")
    return before


agent = weft.init_rpc()
size, me = agent.world_size, agent.rank
for i in range(1, size):  # the memory of the last third, when all workers have called this one
    before = call_all((me + i) % size, (me + i + 1) % size, int(os.environ.get("CALLS", "100")))
assert resident() <= 1.02 * before, (before, resident())
with weft.Group("all") as group:
    group.barrier()
del group
weft.shutdown()
gc.collect()
assert not _tensor.Lent.count() and not _tensor.Lent._named
assert not [one for one in gc.get_objects() if isinstance(one, (weft.Tensor, weft.Future, weft.RRef))]
print("Python: all is well")
