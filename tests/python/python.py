#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python.py CASE WEFT_RUN OFFSETS - tests of the Python package; the cases are the functions case_... below.

WEFT_RUN starts the workers of a case, which run worker_CASE in this file. OFFSETS is a C program that prints sizes and offsets.
Exits 77 without NumPy. PyTorch is used if it is there.
"""
import array
import asyncio
import concurrent.futures
import ctypes
import gc
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed")
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None
import weft
from weft import _library, _tensor

LIMIT_S = 120  # of one job


def job(workers, case, code=0, env=None):
    """Runs worker_CASE in so many workers; their exit codes must be 0. Returns their output."""
    command = [sys.argv[2], "-n", str(workers), "--no-prefix", sys.executable, __file__, "--worker", case]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
                          env={**os.environ, "WEFT_FABRIC": "host,tcp", **(env or {})})
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def raises(kind, run, *words):
    try:
        run()
    except kind as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}")


# ---- What others call ----


@weft.function
def echo(*values):
    return values[0] if len(values) == 1 else values


@weft.function(name="fail")
def fail(kind, text):
    raise {"ValueError": ValueError, "KeyError": KeyError, "Own": Own}[kind](text)


class Own(Exception):
    pass


@weft.function(name="relay")
def relay(rank, *args):
    return weft.rpc_sync(rank, "fail", args)


@weft.function(name="writable")
def writable(x):
    return bool(x.numpy().flags.writeable)


@weft.function(name="leave")
def leave():
    weft.shutdown()


@weft.function(name="gradient")
def gradient():
    return torch.ones(2, requires_grad=True)


@weft.function(name="hold")
def hold(seconds):
    time.sleep(seconds)
    return seconds


@weft.function(name="hold_gil")
def hold_gil(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # does not release the GIL


@weft.function(name="address")
def address(x):
    return x.data_ptr


@weft.function(name="make")
def make(kind):
    return {"counter": Counter, "array": lambda: np.arange(5.0)}[kind]()


class Counter:
    def __init__(self):
        self.count = 0


@weft.function(name="count")
def count(counter, more):
    own = counter.local_value()
    own.count += more
    return own.count


@weft.function(name="keep")
def keep(x):
    kept.append(x)


kept = []

# ---- Declarations ----


def case_declarations():
    """Every size, offset and enumerator is that of the C compiler."""
    lines = subprocess.run([sys.argv[3]], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    ffi, lib, checked = _library.ffi, _library.lib, 0
    for line in lines:
        name, *equals, value = line.split(" ")
        kind, _, field = name.partition(".")
        fields = [{"as": "as_"}.get(one, one) for one in field.split(".")]
        ours = getattr(lib, name) if equals else ffi.offsetof(kind, *fields) if field else ffi.sizeof(kind)
        assert ours == int(value), (line, ours)
        checked += 1
    assert checked > 400, checked


def case_library():
    """Another library than that of the package is refused, with what was found and what to do."""
    def load(path):
        return subprocess.run([sys.executable, "-c", "import weft"], env={**os.environ, "WEFT_LIBRARY": path}, stderr=subprocess.PIPE,
                              text=True, timeout=LIMIT_S).stderr

    assert "ImportError" in load("/no/such/libweft.so") and "WEFT_LIBRARY" in load("/no/such/libweft.so")
    assert "ImportError" in load("libc.so.6")
    with tempfile.TemporaryDirectory() as folder:
        source, other = os.path.join(folder, "other.c"), os.path.join(folder, "libother.so")
        with open(source, "w", encoding="ascii") as file:
            file.write('int weft_version_number(void) { return 990000; }\nconst char *weft_version(void) { return "99.0.0"; }\n')
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", other, source], check=True)
        assert "is weft 99.0.0, but this package is for 0." in load(other), load(other)


# ---- Values ----


def case_values():
    job(2, "values")


def worker_values():
    weft.init_rpc()
    if weft.default_agent().rank == 1:
        check_values()
    weft.shutdown()


def check_values():
    for value in (None, True, False, 0, -1, 2**63 - 1, -2**63, 0.0, -0.0, math.inf, 1e-320, "", "hé", b"", b"\0\xff" * 1000,
                  [], [[]], [1, [2.5, ["x", [None]]]], [1, 2]):
        got = weft.rpc_sync(0, echo, (value,))
        assert got == value and type(got) is type(value), (value, got)
    assert math.isnan(weft.rpc_sync(0, echo, (math.nan,)))
    assert weft.rpc_sync(0, echo) is None
    assert weft.rpc_sync(0, echo, ((1, 2),)) == [1, 2]
    assert weft.rpc_sync(0, echo, (1, "two", 3.0)) == (1, "two", 3.0)
    assert weft.rpc_sync(0, echo, (np.float32(1.5),)) == 1.5 and weft.rpc_sync(0, echo, (np.int16(-3),)) == -3
    assert weft.rpc_sync(0, echo, (bytearray(b"xy"),)) == b"xy"
    two = weft.rpc_sync(0, echo, ([np.ones(3), np.zeros((2, 2), np.int8)],))
    assert [one.dtype for one in two] == ["float64", "int8"] and two[0].numpy().tolist() == [1, 1, 1]
    deep = weft.rpc_sync(0, echo, ([1, np.arange(3)],))
    assert deep[1].numpy().tolist() == [0, 1, 2]
    raises(TypeError, lambda: weft.rpc_sync(0, echo, (1, {})), "argument 1", "dict")
    raises(TypeError, lambda: weft.rpc_sync(0, echo, ([1, object()],)), "argument 0, item 1", "object")
    raises(TypeError, lambda: weft.rpc_sync(0, echo, (Own(),)), "argument 0", "Own")
    raises(TypeError, lambda: weft.rpc_sync(0, echo, ("a\0b",)), "argument 0", "bytes")
    raises(OverflowError, lambda: weft.rpc_sync(0, echo, (2**63,)), "argument 0")
    raises(TypeError, lambda: weft.rpc_sync(0, echo, 5), "args")
    raises(TypeError, lambda: weft.rpc_sync(0, lambda x: x, (1,)), "not registered", "weft.function")
    raises(TypeError, lambda: weft.rpc_sync(0, check_values), "check_values is not registered")
    raises(TypeError, lambda: weft.rpc_sync(object(), echo), "no worker")
    raises(weft.Error, lambda: weft.rpc_sync(7, echo), "NOT_FOUND")
    raises(weft.Error, lambda: weft.rpc_sync("nobody", echo), "NOT_FOUND")
    raises(weft.Error, lambda: weft.rpc_sync(0, "no function"), "NOT_FOUND")
    raises(TypeError, lambda: weft.rpc_sync(0, echo, (list(range(2000)),)), "argument 0", "send an array")
    raises(TypeError, lambda: weft.rpc_sync(0, echo, ("\ud800",)), "argument 0")
    itself = []
    itself.append(itself)
    raises(TypeError, lambda: weft.rpc_sync(0, echo, (itself,)), "8 deep")
    raises(TypeError, lambda: weft.rpc_sync(0, echo, (1,), timeout="3"), "timeout")
    raises(ValueError, lambda: weft.rpc_sync(0, echo, (1,), timeout=math.nan), "timeout")
    raises(TypeError, lambda: weft.rpc_sync(True, echo), "no worker")
    mine = np.zeros(5)
    mine.flags.writeable = False
    assert not weft.rpc_sync(1, "writable", (mine,))
    raises(weft.RemoteError, lambda: weft.rpc_sync(0, "make", ("counter",)), "Counter")
    raises(ValueError, lambda: weft.rpc_sync(0, echo, (1,), timeout=-1), "timeout")
    raises(ValueError, lambda: weft.function(echo), "registered already")
    assert weft.rpc_sync("worker0", echo, (1,)) == 1 and weft.rpc_sync(weft.get_worker_info("worker0"), echo, (1,)) == 1
    assert weft.rpc_sync(1, echo, (7,)) == 7  # to itself


# ---- Tensors ----


def case_tensors():
    check_arrays()
    if torch:
        check_torch()
    job(2, "tensors")


def check_arrays():
    for dtype in ("f4", "f8", "i8", "i4", "u1", "?", "f2", "i1", "i2", "c8", "c16"):
        for shape in ((), (0,), (5,), (2, 3), (1,) * 8):
            a = np.ones(shape, dtype)
            t = weft.tensor(a)
            assert t.shape == shape and np.dtype(t.dtype) == a.dtype
            b = t.numpy()
            assert b.dtype == a.dtype and b.shape == shape and (b == a).all()
            assert a.size == 0 or b.ctypes.data == a.ctypes.data == t.data_ptr
    a = np.arange(24.0).reshape(4, 6)
    for view in (a.T, a[1:, ::2], np.asfortranarray(a), a[:, 2:3]):
        t = weft.tensor(view)
        assert t.data_ptr == view.ctypes.data and (t.numpy() == view).all() and t.numpy().strides == view.strides
    raises(TypeError, lambda: weft.tensor(a[::-1]), "negative")
    raises(TypeError, lambda: weft.tensor(np.zeros((1,) * 9)), "at most 8")
    raises(TypeError, lambda: weft.tensor(np.zeros(2, "u4")), "u4")
    raises(TypeError, lambda: weft.tensor(np.zeros(2, ">f4")), ">f4")
    raises(TypeError, lambda: weft.tensor(np.array(["x"])))
    raises(TypeError, lambda: weft.tensor(np.array([object()])))
    raises(TypeError, lambda: weft.tensor(np.zeros(3, [("a", "i1"), ("b", "f4")])["b"]))
    raises(TypeError, lambda: weft.tensor(memoryview(a)[::2]), "contiguous")
    raises(TypeError, lambda: weft.zeros((2,), "u4"), "u4")
    t = weft.tensor(a)
    t.numpy()[0, 0] = 5
    assert a[0, 0] == 5
    for made in (array.array("d", [1, 2, 3]), memoryview(bytearray(b"abc"))):
        t = weft.tensor(made)
        assert t.numpy().tolist() == list(made)
    view = weft.tensor(a).buffer()
    assert view.shape == (4, 6) and view[0, 0] == 5
    del a, t
    view[0, 0] = 6
    assert np.from_dlpack(weft.tensor(np.arange(3))).tolist() == [0, 1, 2]
    capsule = weft.tensor(np.arange(3)).__dlpack__()  # not used
    del capsule
    fixed = weft.tensor(np.frombuffer(b"abcd", np.uint8))
    assert not fixed.numpy().flags.writeable and fixed.buffer().readonly
    raises(TypeError, lambda: weft.tensor(np.float64(3.25)), "no array")
    half = weft.tensor(np.ones(3, "f2"))
    assert half.buffer().nbytes == 6
    if torch:
        raises(Exception, lambda: np.from_dlpack(weft.tensor(torch.ones(2, dtype=torch.bfloat16))))
    raises(TypeError, lambda: len(weft.tensor(np.float64(3) * np.ones(()))))
    owner = np.ones(1000)
    before = sys.getrefcount(owner)
    made = weft.tensor(owner)
    assert sys.getrefcount(owner) > before
    del made
    _tensor.Lent.collect(1 << 30)
    assert sys.getrefcount(owner) == before, "weft has ended with it"


def check_torch():
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16,
                  torch.int8, torch.int16, torch.complex64, torch.complex128):
        for shape in ((), (0,), (5,), (2, 3)):
            a = torch.ones(shape, dtype=dtype)
            b = weft.tensor(a).torch()
            assert b.dtype == dtype and b.shape == a.shape and torch.equal(a, b)
            assert not a.numel() or a.data_ptr() == b.data_ptr()
    a = torch.arange(12.0).reshape(3, 4)
    assert weft.tensor(a.t()).strides == (1, 4) and torch.from_dlpack(weft.tensor(a)).data_ptr() == a.data_ptr()
    raises(TypeError, lambda: weft.tensor(torch.ones(2, requires_grad=True)), "detach")
    raises(TypeError, lambda: weft.tensor(torch.ones(2, dtype=torch.complex64).conj()), "resolve_conj")
    raises(TypeError, lambda: weft.tensor(torch.ones(2, 2).to_sparse()), "layout")
    raises(TypeError, lambda: weft.tensor(torch.ones(2, dtype=torch.bfloat16)).numpy(), "bfloat16")


def worker_tensors():
    agent = weft.init_rpc()
    if agent.rank == 1:
        for size in (0, 1, 1000, 100_000, 1_000_000):
            a = np.arange(size, dtype=np.float32)
            b = weft.rpc_sync(0, echo, (a,)).numpy()
            assert (a == b).all() and b.shape == a.shape
            place = np.zeros(size, np.float32)
            got = weft.rpc_sync(0, echo, (a,), land=(place,))
            assert (place == a).all() and (size == 0 or got.data_ptr == place.ctypes.data)
        a = np.arange(24.0).reshape(4, 6).T[::2]
        assert (weft.rpc_sync(0, echo, (a,)).numpy() == a).all()
        constant = np.frombuffer(b"\0" * 80, np.float64)
        assert (weft.rpc_sync(0, echo, (constant,)).numpy() == 0).all()
        raises(TypeError, lambda: weft.rpc_sync(0, echo, (a,), land=(constant,)), "landing place 0", "read-only")
        raises(TypeError, lambda: weft.rpc_sync(0, echo, (a,), land=(weft.tensor(constant),)), "read-only")
        raises(TypeError, lambda: weft.rpc_sync(0, echo, (a,), land=np.zeros(3)), "land")
        raises(weft.Error, lambda: weft.rpc_sync(0, echo, (a,), land=(np.zeros(3),)), "SHAPE")
        mine = np.ones(100_000)
        assert weft.rpc_sync(1, "address", (mine,)) == mine.ctypes.data  # to itself: the same memory
        if torch:
            x = torch.arange(10).to(torch.bfloat16)
            assert torch.equal(weft.rpc_sync(0, echo, (x,)).torch(), x)
    weft.shutdown()


# ---- Errors ----


def case_errors():
    job(3, "errors")


def worker_errors():
    agent = weft.init_rpc(call_timeout=30)
    if agent.rank == 1:
        error = raises(weft.RemoteError, lambda: weft.rpc_sync(0, "fail", ("ValueError", "no: such")), "no: such")
        assert (error.type_name, error.text, error.worker, error.function) == ("ValueError", "no: such", 0, "fail"), vars(error)
        assert error.status == weft.Status.REMOTE and error.handler_status == weft.Status.INVALID
        error = raises(weft.RemoteError, lambda: weft.rpc_sync(0, "fail", ("Own", "x")))
        assert error.type_name.endswith("Own") and error.text == "x", vars(error)
        error = raises(weft.RemoteError, lambda: weft.rpc_sync(0, "relay", (2, "KeyError", "lost")), "lost")
        assert "RemoteError" in error.type_name, vars(error)
        raises(weft.RemoteError, lambda: weft.rpc_sync(0, "fail", ("too", "many", "arguments")), "TypeError")
        error = raises(weft.RemoteError, lambda: weft.rpc_sync(0, "leave"), "DEADLOCK")
        if torch:
            raises(weft.RemoteError, lambda: weft.rpc_sync(0, "gradient"), "detach")
        raises(TimeoutError, lambda: weft.rpc_sync(0, "hold", (1.0,), timeout=0.05))
        raises(TimeoutError, lambda: weft.rpc_async(0, "hold", (0.5,)).wait(0.01), "0.01")
        future = weft.rpc_async(0, "hold", (5.0,))
        assert future.cancel() and isinstance(future.exception(), weft.Cancelled) and future.cancelled() and not future.cancel()
        raises(weft.Cancelled, future.wait)
    weft.shutdown()
    raises(weft.Error, agent.serve, "closed")
    raises(weft.Error, lambda: weft.rpc_sync(0, echo), "init_rpc")


def case_death():
    """A worker that is killed: its calls fail as calls of a dead worker. Nothing ends the others."""
    env = {**os.environ, "WORLD_SIZE": "3", "MASTER_PORT": free_port(), "WEFT_FABRIC": "host,tcp"}
    workers = [subprocess.Popen([sys.executable, __file__, "--worker", "death"], env={**env, "RANK": str(i)}, stdout=subprocess.PIPE,
                                text=True) for i in range(3)]
    out = [one.communicate(timeout=LIMIT_S)[0] for one in workers]
    assert [one.returncode for one in workers] == [0, -signal.SIGKILL, 0] and "PEER_DEAD" in out[2], (workers, out)


@weft.function(name="die")
def die():
    os.kill(os.getpid(), signal.SIGKILL)


def worker_death():
    agent = weft.init_rpc(death_timeout=0.5)
    if agent.rank == 2:
        error = raises(weft.PeerError, lambda: weft.rpc_sync(1, "die", timeout=60))
        assert isinstance(error, ConnectionError)
        print(error.status.name, flush=True)
        raises(weft.PeerError, lambda: weft.rpc_sync(1, "hold", (100,), timeout=60))
    weft.shutdown()


# ---- Futures ----


def case_futures():
    job(2, "futures")


def worker_futures():
    weft.init_rpc()
    if weft.default_agent().rank == 1:
        futures = [weft.rpc_async(0, echo, (i,)) for i in range(200)]
        assert [one.wait() for one in futures] == list(range(200))
        done = concurrent.futures.as_completed([weft.rpc_async(0, echo, (i,)).concurrent() for i in range(50)], timeout=60)
        assert sorted(one.result() for one in done) == list(range(50))
        failed = weft.rpc_async(0, "fail", ("ValueError", "x")).concurrent()
        assert isinstance(failed.exception(60), weft.RemoteError)
        asyncio.run(in_a_loop())
        asyncio.run(in_a_loop())  # another loop
        seen = threading.Event()
        weft.rpc_async(0, echo, (3,)).add_done_callback(lambda it: seen.set() if it.result() == 3 else None)
        assert seen.wait(60)
        threads = [threading.Thread(target=call_often, args=(n,)) for n in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(right) == 8
    weft.shutdown()


right = []


def call_often(n):
    for i in range(200):
        assert weft.rpc_sync(0, echo, (n, i)) == (n, i)
    right.append(n)


async def in_a_loop():
    before = len(os.listdir("/proc/self/fd"))
    assert await asyncio.gather(*[weft.rpc_async(0, echo, (i,)) for i in range(300)]) == list(range(300))
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "one descriptor"
    try:
        await weft.rpc_async(0, "fail", ("ValueError", "x"))
        raise AssertionError("no error")
    except weft.RemoteError:
        pass
    future = weft.rpc_async(0, "hold", (30.0,))
    task = asyncio.ensure_future(wait_for(future))
    await asyncio.sleep(0.05)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    assert isinstance(future.exception(60), weft.Cancelled)
    try:
        await asyncio.wait_for(wait_for(weft.rpc_async(0, "hold", (1.0,))), 0.05)
        raise AssertionError("no limit")
    except asyncio.TimeoutError:
        pass


async def wait_for(future):
    return await future


# ---- References ----


def case_references():
    job(3, "references")


def worker_references():
    agent = weft.init_rpc()
    if agent.rank == 1:
        far = weft.remote(0, "make", ("array",))
        assert far.owner() == 0 and not far.is_owner() and far.to_here().numpy().tolist() == [0, 1, 2, 3, 4]
        assert weft.rpc_sync(2, "fetch", (far,)) == 10
        counter = weft.remote(0, "make", ("counter",))
        assert [counter.rpc_sync("count", (i,)) for i in (1, 2, 3)] == [1, 3, 6]
        assert weft.rpc_sync(0, "count", (counter, 4)) == 10
        raises(weft.Error, counter.to_here, "TYPE")
        raises(weft.Error, counter.local_value, "rank 0")
        bad = weft.remote(0, "fail", ("ValueError", "never"))
        raises(weft.RemoteError, bad.to_here, "never")
        own = weft.RRef(Counter())
        assert own.is_owner() and isinstance(own.local_value(), Counter)
        value = weft.RRef([1, "x"])
        assert value.local_value() == [1, "x"] == value.to_here() == weft.rpc_sync(0, echo, (value,)).to_here()
        assert weft.rpc_sync(0, "read", (value,)) == [1, "x"]
    weft.shutdown()
    gc.collect()


@weft.function(name="fetch")
def fetch(rref):
    return float(rref.to_here().numpy().sum())


@weft.function(name="read")
def read(rref):
    return rref.to_here()


# ---- Groups ----


def case_groups():
    job(3, "groups")


def worker_groups():
    agent = weft.init_rpc()
    size, me = agent.world_size, agent.rank
    with weft.Group("all") as group:
        assert (group.size, group.index, group.ranks) == (size, me, list(range(size))) and group.error is None
        group.barrier()
        for op, expected in (("sum", 6), ("prod", 6), ("min", 1), ("max", 3), ("avg", 2)):
            x = np.full(5, me + 1.0)
            group.allreduce(x, op)
            assert (x == expected).all(), (op, x)
        x = np.full(4, float(me))
        group.reduce(x, "sum", root=1)
        assert me != 1 or (x == 3).all()
        x = np.full(4, float(me))
        group.broadcast(x, root=2)
        assert (x == 2).all()
        out = np.zeros((size, 2))
        group.allgather(np.full(2, float(me)), out)
        assert out[:, 0].tolist() == [0, 1, 2]
        out = np.zeros(2)
        group.reduce_scatter(np.arange(2.0 * size), out)
        assert out.tolist() == [2.0 * me * size, (2.0 * me + 1) * size]
        out = np.zeros((size, 1)) if me == 0 else None
        group.gather(np.array([float(me)]), out)
        assert me or out[:, 0].tolist() == [0, 1, 2]
        out = np.zeros(1)
        group.scatter(np.arange(3.0) if me == 1 else None, out, root=1)
        assert out[0] == me
        out = np.zeros(size)
        group.all_to_all(np.full(size, float(me)), out)
        assert out.tolist() == [0, 1, 2]
        if me == 0:
            group.send(np.arange(3.0), 1)
        if me == 1:
            x = np.zeros(3)
            group.recv(x, 0)
            assert x.tolist() == [0, 1, 2]
        got = group.allgather_values(me, f"rank {me}", [np.full(2, me)])
        assert [one[:2] for one in got] == [[i, f"rank {i}"] for i in range(size)] and got[2][2][0].numpy()[0] == 2
        flying = [group.allreduce(np.ones(1000), wait=False) for _ in range(10)]
        [one.wait() for one in flying]
        if torch:
            x = torch.full((4,), me + 1.0)
            group.allreduce(x)
            assert torch.equal(x, torch.full((4,), 6.0))
        fixed = np.frombuffer(b"\0" * 16, np.float64)
        raises(TypeError, lambda: group.allreduce(fixed), "read-only")
        raises(ValueError, lambda: group.allreduce(x, "median"), "median")
        raises(TypeError, lambda: group.allreduce([1, 2]))
    raises(weft.Error, group.barrier, "closed")
    pair = weft.Group("pair", ranks=[2, 0]) if me != 1 else None
    if pair:
        assert pair.index == (0 if me == 2 else 1)
        if me == 0:
            pair.barrier()
            pair.abort("enough")
        error = raises(weft.Error, lambda: [pair.barrier() for _ in range(3)])
        assert "enough" in str(error) and "enough" in str(pair.error), error
        pair.close()
    weft.shutdown()


# ---- Processes ----


def case_interrupt():
    """Ctrl-C ends each wait, long before its time limit."""
    for wait in ("call", "serve", "close", "open", "group"):
        worker = subprocess.Popen([sys.executable, __file__, "--worker", "interrupt"], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "WAIT": wait, "WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": free_port()})
        peer = None
        if wait != "open":
            peer = subprocess.Popen([sys.executable, __file__, "--worker", "idle"], env={**os.environ, **port_of(worker, wait)})
        try:
            assert worker.stdout.readline() == "waits\n"
            time.sleep(0.3)
            start = time.monotonic()
            worker.send_signal(signal.SIGINT)
            line = worker.stdout.readline()
            took = time.monotonic() - start
            assert line == "interrupted\n", (wait, line)
            print(f"{wait}: {took * 1000:.0f} ms")
            assert took < 20, (wait, took)  # far below the limits of the waits; the page promises 0.2 s on a machine that is not busy
        finally:
            worker.kill()
            worker.wait()
            worker.stdout.close()
            if peer:
                peer.kill()
                peer.wait()


ports = {}


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        ports["last"] = str(s.getsockname()[1])
    return ports["last"]


def port_of(_, wait):
    return {"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": ports["last"], "WAIT": wait}


def worker_interrupt():
    wait = os.environ["WAIT"]
    agent = None

    def run():
        if wait == "call":
            weft.rpc_sync(1, "hold", (60.0,))
        elif wait == "serve":
            agent.serve()
        elif wait == "close":
            agent.close()
        elif wait == "group":
            weft.Group("all")

    if wait != "open":
        agent = weft.init_rpc()
    print("waits", flush=True)
    try:
        weft.init_rpc() if wait == "open" else run()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)


def worker_idle():
    weft.init_rpc()
    time.sleep(100)


def case_exit():
    """The interpreter ends with calls, functions, tensors, references and groups alive."""
    for _ in range(int(os.environ.get("EXITS", "10"))):
        done = job(2, "exit")
        assert "Traceback" not in done.stderr and "Fatal" not in done.stderr, done.stderr


def worker_exit():
    agent = weft.init_rpc(death_timeout=5)
    alive = [weft.rpc_async(1 - agent.rank, "hold", (0.02 * i,)) for i in range(5)]
    alive += [weft.tensor(np.ones(10)), weft.zeros((1000,)), weft.RRef(Counter()), weft.remote(1 - agent.rank, "make", ("array",))]
    alive.append(weft.rpc_async(1 - agent.rank, echo, (np.ones(100_000),)))
    alive[-1].add_done_callback(lambda it: None)
    globals()["alive"] = alive
    weft.Group("all").barrier()
    if os.getpid() % 2:
        sys.exit(0)


def case_threads():
    """Threads that call while the agent ends, or the interpreter: they get an error, and nothing crashes."""
    for way in ("stop", "end", "shutdown") * 3:
        job(1, "threads", env={"WAY": way})


def worker_threads():
    agent = weft.init_rpc()
    failed = []

    def call():
        try:
            while True:
                weft.rpc_sync(0, echo, (1,))
        except weft.Error as error:
            failed.append(error.status)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(8)]
    for one in threads:
        one.start()
    time.sleep(0.1)
    if os.environ["WAY"] == "end":
        return
    agent.stop() if os.environ["WAY"] == "stop" else weft.shutdown()
    for one in threads:
        one.join()
    assert len(failed) == 8, failed


def case_fork():
    job(1, "fork")


def worker_fork():
    agent = weft.init_rpc()
    t, ref = weft.tensor(np.ones(3)), weft.RRef(1)
    future = weft.rpc_async(0, echo, (1,))
    future.wait()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            raises(RuntimeError, lambda: agent.rank, "fork")
            raises(RuntimeError, future.wait, "fork")
            raises(RuntimeError, ref.owner, "fork")
            raises(weft.Error, lambda: weft.rpc_sync(0, echo, (1,)), "init_rpc")
            raises(RuntimeError, lambda: t.shape, "fork")
            raises(RuntimeError, lambda: t.numpy(), "fork")
            raises(RuntimeError, lambda: weft._agent.Values((t,)), "fork")
            del t, ref, future
            with weft.Agent(rank=0, world_size=1, master_port=-1) as own:
                assert own.rpc_sync(0, echo, (np.arange(3),)).numpy().tolist() == [0, 1, 2]
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert weft.rpc_sync(0, echo, (2,)) == 2
    weft.shutdown()


def case_gil():
    """A function that keeps the GIL for two seconds: its worker is not declared dead, and the others go on."""
    job(3, "gil")


def worker_gil():
    agent = weft.init_rpc(death_timeout=0.5)
    if agent.rank == 1:
        busy = weft.rpc_async(0, "hold_gil", (2.0,))
        for i in range(200):
            assert weft.rpc_sync(2, echo, (i,)) == i
        assert not busy.done()
        busy.wait()
    weft.shutdown()


def case_memory():
    job(2, "memory")


def resident():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1])


def worker_memory():
    """100,000 calls take no more memory than 10,000, and all is dropped at the end."""
    agent = weft.init_rpc()
    if agent.rank == 1:
        x = np.ones(100)
        large = np.ones(20_000)
        for i in range(100_000):
            weft.rpc_sync(0, echo, (x, i))
            if i % 100 == 0:
                weft.rpc_sync(0, echo, (large, [large, x]))
            if i == 10_000:
                before = resident()
        after = resident()
        print("pages", before, after, after / before)
        assert after <= 1.02 * before, (before, after)
    weft.shutdown()
    gc.collect()
    _tensor.Lent.collect(1 << 30)
    assert not _tensor.Lent.count() and not _tensor.Lent._named
    assert not [one for one in gc.get_objects() if isinstance(one, (weft.Tensor, weft.Future, weft.RRef))]


def case_files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.safetensors")
        weft.save(path, {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(0, np.int32)})
        back = weft.load(path)
        assert sorted(back) == ["a", "b"] and back["a"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]] and back["b"].shape == (0,)
        raises(TypeError, lambda: weft.save(path, {"a": "no array"}), "'a'")
        raises(weft.Error, lambda: weft.load(path + "no"), "NOT_FOUND")
        trace = os.path.join(folder, "t.json")
        with weft.Agent(rank=0, world_size=1, master_port=-1, trace_file=trace) as agent:
            agent.rpc_sync(0, echo, (1,))
        with open(trace, encoding="utf-8") as file:
            assert json.load(file)
        weft.save(path, {})
        assert weft.load(path) == {}


def case_names():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "solver.py")
        with open(path, "w", encoding="ascii") as file:
            file.write("import weft\n@weft.function\ndef step(): pass\nfrom weft._agent import name_of\nprint(name_of(step).decode())\n")
        for command in ([path], ["-m", "solver"], ["-c", "import solver"]):
            out = subprocess.run([sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, text=True, check=True,
                                 env={**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"] + ":" + folder}).stdout
            assert out == "solver.step\n", (command, out)
    raises(TypeError, lambda: weft.Agent(colour="red"), "colour", "elastic")
    raises(ValueError, lambda: weft.Agent(rank=0), "world_size")
    raises(TypeError, lambda: weft.function(5), "called")
    raises(ValueError, lambda: weft.function(lambda: 0, name="x" * 200), "127")
    raises(ValueError, lambda: weft.function(lambda: 0, name="a\0b"), "NUL")
    raises(ValueError, lambda: weft.function(lambda: 0, name=""), "127")
    raises(TypeError, lambda: weft.function(in_a_loop), "coroutine")
    raises(TypeError, lambda: weft.Agent(trace_file=5), "5")
    import copy

    for one in (weft.zeros(3, np.float32), weft.RRef):
        raises(TypeError, lambda one=one: copy.copy(one)) if one is not weft.RRef else None

    def again():
        pass

    first = weft.function(again, name="again")
    again2 = type(again)(again.__code__, globals(), "again")
    again2.__module__, again2.__qualname__ = first.__module__, first.__qualname__
    assert weft.function(again2, name="again") is again2  # as when its module is loaded again


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        globals()["worker_" + sys.argv[2]]()
    else:
        globals()["case_" + sys.argv[1]]()
