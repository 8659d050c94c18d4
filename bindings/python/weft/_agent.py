# SPDX-License-Identifier: Apache-2.0
"""Agents, functions that others call, calls, and remote references."""
import atexit
import collections
import inspect
import itertools
import logging
import math
import os
import sys
import threading
import time
import weakref

from weft import _wait
from weft._errors import Error, Status, check
from weft._future import Future
from weft._library import NULL, Process, ffi, lib
from weft._tensor import Lent, is_tensor
from weft._value import Values, landing, result_of, value_of
from weft._wait import interruptible

_log = logging.getLogger("weft")
WorkerInfo = collections.namedtuple("WorkerInfo", "name id")

# ---- Functions ----

_names = weakref.WeakKeyDictionary()  # callable -> name
_registered = {}  # name -> (number, callable, name, flags)
_by_number = {}
_numbers = itertools.count(1)
_agents = []  # open agents
_lock = threading.Lock()
_serving = threading.local()


def _module_of(function):
    """The module's name. For the running script: the name by which other programs would import it."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec:
        return spec.parent if spec.name.endswith("__main__") and spec.parent else spec.name
    return os.path.splitext(os.path.basename(getattr(main, "__file__", "__main__")))[0]


def function(target=None, *, name=None, ordered=False):
    """Makes a function callable by other workers, under its name: module.qualname, or `name`. Use it as a decorator:

        @weft.function
        def scale(x, factor): ...

    The function gets values of weft (tensors are weft.Tensor), and returns one, None, or a tuple. It runs on a thread of weft.
    ordered: the calls of one caller run one after another. A function of the same module and name replaces the old one."""

    def register(target):
        if not callable(target):
            raise TypeError(f"{target!r} cannot be called")
        if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
            raise TypeError(f"{target.__qualname__} is a coroutine or generator: weft calls plain functions")
        known = f"{_module_of(target)}.{target.__qualname__}" if name is None else name
        if not isinstance(known, str) or not 1 <= len(known.encode()) <= 127 or "\0" in known:
            raise ValueError(f"the name {known!r} is no text of 1 to 127 bytes without NUL: give the function a name=")
        with _lock:
            if known in _registered:
                number, old = _registered[known][:2]
                if (old.__module__, old.__qualname__) != (target.__module__, target.__qualname__) or old is target:
                    raise ValueError(f"a function {known!r} is registered already")
                _by_number[number] = target  # its module was loaded again
                _names[target] = known
                _registered[known] = (number, target, *_registered[known][2:])
                return target
            number = next(_numbers)
            _names[target] = known  # first: a callable without weak references is refused here
            spec = (number, target, known, lib.WEFT_FUNCTION_ORDERED if ordered else 0)
            _by_number[number] = target
            for agent in _agents:
                out, kept = _specs([spec])
                with agent._used() as handle:
                    check(lib.weft_agent_register_sized(handle, out, ffi.sizeof("weft_function")))
                del kept
            _registered[known] = spec
        return target

    return register if target is None else register(target)


def name_of(target):
    """The registered name of a function, as bytes for C."""
    if isinstance(target, str):
        if "\0" in target:
            raise ValueError(f"the name {target!r} has a NUL character")
        return target.encode()
    try:
        known = _names.get(target)
    except TypeError:
        known = None
    if known is None:
        raise TypeError(
            f"{getattr(target, '__qualname__', repr(target))} is not registered: put @weft.function before it, or pass the name of "
            "the other worker's function; code does not travel"
        )
    return known.encode()


def _specs(functions):
    out = ffi.new("weft_function[]", len(functions) or 1)
    kept = [out]
    for i, (number, _, known, flags) in enumerate(functions):
        text = ffi.new("char[]", known.encode())
        kept.append(text)
        out[i].name, out[i].run, out[i].user, out[i].flags = text, _run, ffi.cast("void *", number), flags
        out[i].takes[0] = out[i].gives[0] = lib.WEFT_TYPE_REST
    return out, kept


def _arguments(call):
    own = lib.weft_call_from(call) == lib.weft_agent_rank(lib.weft_call_agent(call))  # then arrays are the caller's own
    out = []
    value = ffi.new("weft_value *")
    for i in range(lib.weft_call_count(call)):
        kind = value.type = lib.weft_call_type(call, i)
        if kind == lib.WEFT_TYPE_TENSOR:
            value.as_.tensor = lib.weft_call_tensor(call, i)
        elif kind == lib.WEFT_TYPE_F64:
            value.as_.f64 = lib.weft_call_f64(call, i)
        elif kind == lib.WEFT_TYPE_I64:
            value.as_.i64 = lib.weft_call_i64(call, i)
        elif kind == lib.WEFT_TYPE_BOOL:
            value.as_.boolean = lib.weft_call_bool(call, i)
        elif kind == lib.WEFT_TYPE_STRING:
            value.as_.bytes.data = text = lib.weft_call_string(call, i)
            value.as_.bytes.size = len(ffi.string(text))
        elif kind == lib.WEFT_TYPE_BYTES:
            size = ffi.new("size_t *")
            value.as_.bytes.data = lib.weft_call_bytes(call, i, size)
            value.as_.bytes.size = size[0]
        elif kind == lib.WEFT_TYPE_TENSORS:
            value.as_.tensors = lib.weft_call_tensors(call, i)
        elif kind == lib.WEFT_TYPE_LIST:
            value.as_.list = lib.weft_call_list(call, i)
        elif kind == lib.WEFT_TYPE_RREF:
            value.as_.rref = lib.weft_call_rref(call, i)
        out.append(value_of(value, RRef._of, own))
    return out


def _give(call, result):
    items = () if result is None else result if isinstance(result, tuple) else (result,)
    try:
        values = Values(items, "result")
    except TypeError:
        if len(items) != 1 or is_tensor(result) or isinstance(result, (str, list, dict, int, float)):
            raise
        lib.weft_call_give_object_sized(call, *_object(result))  # C fails any call but one of remote()
        return
    lib.weft_call_give(call, values.args)
    values.release()


_CODES = {TypeError: Status.TYPE, MemoryError: Status.MEMORY, TimeoutError: Status.TIMEOUT, NotImplementedError: Status.UNSUPPORTED}


@ffi.callback("weft_handler_fn", error=int(Status.SYSTEM))
def _run(call, user):
    """A handler, on a thread of weft's executor."""
    target = _by_number[int(ffi.cast("uintptr_t", user))]
    before = getattr(_serving, "call", NULL)
    _serving.call = call
    try:
        _give(call, target(*_arguments(call)))
        return 0
    except BaseException as error:
        status = error.status if isinstance(error, Error) else _CODES.get(type(error), Status.INVALID)
        kind = type(error)
        named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        try:
            text = str(error)
        except Exception:
            text = "its text could not be made"
        _log.warning("%s failed: %s", _names.get(target, "?"), text, exc_info=True)
        lib.weft_call_fail(call, int(status) or -1, b"%s", ffi.new("char[]", f"{named}: {text}".encode(errors="replace")))
        return int(status) or -1
    finally:
        _serving.call = before


# ---- References ----


_rref_create = ffi.cast("int (*)(weft_agent *, weft_value_words, weft_rref **, weft_error **)", lib.weft_rref_create)
_types = {}  # name of a class -> its weft_object_type and the name for C


def _object(thing):
    """For C: the type of an object, the size of that struct, and the argument for `drop`."""
    name = type(thing).__qualname__
    if name not in _types:
        text = ffi.new("char[]", name.encode(errors="replace"))
        _types.setdefault(name, (ffi.new("weft_object_type *", {"name": text, "drop": Lent.drop}), text))
    return _types[name][0], ffi.sizeof("weft_object_type"), Lent.add(thing, named=True)


class RRef:
    """A counted handle to a value on one worker, its owner. RRef(value) makes one for a value of this worker, or for any object,
    which never leaves it. remote() makes one for the result of a call."""

    __slots__ = ("_rref", "_process", "__weakref__")

    def __init__(self, value, agent=None):
        agent = agent or default_agent()
        out = ffi.new("weft_rref **")
        error = ffi.new("weft_error **")
        try:
            values = Values((value,), "value")
        except TypeError:
            values = None
        with agent._used() as handle:
            if values is None:
                status = lib.weft_rref_create_typed_sized(handle, *_object(value), out, error)
            else:
                status = _rref_create(handle, ffi.cast("weft_value_words *", values.args.items)[0], out, error)
        check(status, error)
        self._rref, self._process = out[0], Process.number

    @classmethod
    def _of(cls, handle):
        """The new object owns the caller's reference to `handle`."""
        self = cls.__new__(cls)
        self._rref, self._process = handle, Process.number
        return self

    def __del__(self, unref=lib.weft_rref_unref, process=Process):
        if getattr(self, "_process", None) == process.number:
            unref(self._rref)

    def _live(self):
        if self._process != Process.number:
            raise RuntimeError("this reference was made before a fork()")
        return self._rref

    def __reduce__(self):
        raise TypeError("an RRef can be neither copied nor pickled: pass it as an argument")

    def owner(self):
        """The rank of the owner."""
        return lib.weft_rref_owner(self._live())

    def is_owner(self):
        return lib.weft_rref_is_owner(self._live())

    def confirmed_by_owner(self):
        return lib.weft_rref_confirmed(self._live())

    def to_here(self, timeout=None):
        """A copy of the value; on the owner the value itself."""
        return self.to_here_async(timeout).wait()

    def to_here_async(self, timeout=None):
        out = ffi.new("weft_future **")
        check(lib.weft_rref_to_here_async(self._live(), _ms(timeout), out))
        return Future(out[0], _first)

    def created(self):
        """A future that is done when the value exists."""
        handle = lib.weft_rref_created(self._live())
        if handle == NULL:
            raise MemoryError("no memory for a future")
        return Future(handle, lambda _: None)

    def local_value(self, timeout=None):
        """The value or object itself, on the owner."""
        if not self.is_owner():
            raise Error(Status.STATE, f"the owner of this reference is rank {self.owner()}: use to_here()")
        self.created().wait(timeout)
        out = ffi.new("void **")
        if lib.weft_rref_local_object(self._live(), out) == 0:
            return Lent.named(out[0])
        value = ffi.new("weft_value *")
        check(lib.weft_rref_local_value(self._live(), 0, value))
        return value_of(value, RRef._of)

    def rpc_async(self, func, args=(), timeout=None):
        """Calls a function on the owner, with this reference as its first argument."""
        out = ffi.new("weft_future **")
        with _Start(args, timeout) as start:
            rref, name = self._live(), name_of(func)
            status = start.run(lambda: lib.weft_rref_rpc_async_sized(rref, name, start.args, start.options, start.size, out))
        start.check(status)
        return Future(out[0], _results)

    def rpc_sync(self, func, args=(), timeout=None):
        return self.rpc_async(func, args, timeout).wait()

    def remote(self, func, args=(), timeout=None):
        out = ffi.new("weft_rref **")
        with _Start(args, timeout) as start:
            rref, name = self._live(), name_of(func)
            status = start.run(lambda: lib.weft_rref_rpc_remote_sized(rref, name, start.args, start.options, start.size, out))
        start.check(status)
        return RRef._of(out[0])


# ---- Calls ----


def _ms(seconds):
    """0: the default; -1: no limit."""
    if seconds is None:
        return 0
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"a timeout is a number of seconds, not {seconds!r}")
    if seconds == math.inf:
        return -1
    if not 0 < seconds < 1e15:
        raise ValueError(f"a timeout of {seconds} s: give seconds above 0, or None for the default, or math.inf for none")
    return max(1, math.ceil(seconds * 1000))


def _results(handle):
    return result_of(lib.weft_values_args(lib.weft_future_values(handle)), RRef._of)


def _first(handle):
    return value_of(lib.weft_values_args(lib.weft_future_values(handle)).items[0], RRef._of)


class _Start:
    """What C needs to start a call."""

    __slots__ = ("_values", "args", "options", "size", "kept", "_error")

    def __init__(self, args, timeout, land=None):
        if not isinstance(args, (tuple, list)):
            raise TypeError(f"args is a {type(args).__name__}: give a tuple")
        self._values = Values(args)
        self.args = self._values.args
        self.kept = None
        parent = getattr(_serving, "call", NULL)
        self._error = error = ffi.new("weft_error **")
        self.options = options = ffi.new("weft_rpc_options *")
        self.size = _OPTIONS
        options.error = error
        if timeout is not None:
            options.timeout_ms = _ms(timeout)
        if parent != NULL:
            options.parent = parent
        if land is not None:
            items, self.kept = landing(land)
            options.land.items, options.land.count = items, len(self.kept)
            self.kept.append(items)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._values.release()

    def check(self, status):
        check(status, self._error)

    def run(self, start):
        """start(), again while the queue to the worker is full."""
        end = None
        while True:
            status = start()
            if status != _AGAIN:
                return status
            now = time.monotonic()
            limit = self.options.timeout_ms or 60000
            end = now + (math.inf if limit < 0 else limit / 1000) if end is None else end
            if now > end:
                return status
            lib.weft_error_unref(self._error[0])
            self._error[0] = NULL
            time.sleep(0.001)


_OPTIONS = ffi.sizeof("weft_rpc_options")
_AGAIN = int(Status.AGAIN)


def _target(to):
    if isinstance(to, int) and not isinstance(to, bool):
        return (to, NULL, 0), None
    if isinstance(to, WorkerInfo):
        return (to.id, NULL, 0), None
    if isinstance(to, str) and "\0" not in to:
        text = ffi.new("char[]", to.encode())
        return (-1, text, 0), text
    raise TypeError(f"{to!r} is no worker: give a rank, a name or a WorkerInfo")


# ---- Agents ----


class _Use:
    __slots__ = ("_agent",)

    def __init__(self, agent):
        self._agent = agent

    def __enter__(self):
        agent = self._agent
        handle = agent._live()
        if getattr(_serving, "call", NULL) != NULL:
            self._agent = None
            return handle
        with agent._idle:
            if agent._ends:
                self._agent = None
                raise Error(Status.CLOSED, "the agent is closing")
            agent._users += 1
        return agent._live()

    def __exit__(self, *_):
        agent = self._agent
        if agent is not None:
            with agent._idle:
                agent._users -= 1
                if agent._ends and not agent._users:
                    agent._idle.notify_all()


class Agent:
    """This process's membership of a job. It opens when all workers of the job have opened theirs. Rank, world size and the address
    of rank 0 come from the launcher (weft-run, mpirun, srun) or from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, if the caller
    gives none. Times are in seconds. weft_agent_options in weft/agent.h describes the other options."""

    def __init__(self, name=None, rank=None, world_size=None, *, secret=None, call_timeout=None, rendezvous_timeout=None,
                 death_timeout=None, **options):
        kept = []

        def text(value):
            if not isinstance(value, (str, os.PathLike)) or "\0" in os.fspath(value):
                raise TypeError(f"{value!r} is no text without NUL")
            kept.append(ffi.new("char[]", os.fspath(value).encode()))
            return kept[-1]

        want = ffi.new("weft_agent_options *")
        if (rank is None) != (world_size is None):
            raise ValueError("give rank and world_size, or neither")
        if rank is not None:
            want.has_rank, want.rank, want.world_size = True, rank, world_size
        if name is not None:
            want.name = text(name)
        if secret is not None:
            kept.append(ffi.from_buffer(secret))
            want.secret, want.secret_size = kept[-1], len(secret)
        want.call_timeout_ms, want.rendezvous_timeout_ms = _ms(call_timeout), _ms(rendezvous_timeout)
        want.death_timeout_ms = _ms(death_timeout)
        for key, value in options.items():
            if key not in _SIMPLE:
                raise TypeError(f"Agent has no option {key!r}: there are {', '.join(sorted(_SIMPLE))}")
            setattr(want, key, text(value) if _SIMPLE[key] is str else _SIMPLE[key](value))
        out = ffi.new("weft_agent **")
        error = ffi.new("weft_error **")
        sizes = [ffi.sizeof(one) for one in ("weft_agent_options", "weft_function", "weft_bootstrap")]
        self._handle, self._process, self._ends, self._users = NULL, Process.number, False, 0
        self._idle = threading.Condition()
        with _lock:
            want.functions, kept_functions = _specs(list(_registered.values()))
            want.function_count = len(_registered)
            known = set(_registered)

        def undo(status):
            del kept[:]
            if status == 0:
                lib.weft_agent_stop(out[0])

        check(interruptible(lambda: lib.weft_agent_open_sized(want, *sizes, out, error), undo=undo), error)
        del kept_functions
        self._handle = out[0]
        with _lock:
            _agents.append(self)
            late = [spec for known_name, spec in _registered.items() if known_name not in known]
        for spec in late:
            more, kept_more = _specs([spec])
            check(lib.weft_agent_register_sized(self._handle, more, ffi.sizeof("weft_function")))
            del kept_more

    def _live(self):
        if self._process != Process.number:
            raise RuntimeError("this agent belongs to the parent of this process: open one after fork()")
        if self._handle == NULL:
            raise Error(Status.CLOSED, "the agent is closed")
        return self._handle

    def _used(self):
        """A context with the handle, for one short function of C: the agent is not freed meanwhile. Functions that others called
        need none: C waits for them."""
        return _Use(self)

    def __reduce__(self):
        raise TypeError("an Agent can be neither copied nor pickled")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self.stop()

    @property
    def rank(self):
        with self._used() as agent:
            return lib.weft_agent_rank(agent)

    @property
    def world_size(self):
        with self._used() as agent:
            return lib.weft_agent_world_size(agent)

    @property
    def name(self):
        return self.worker_name(self.rank)

    def worker_name(self, rank):
        """The name of a worker; None if there is none of that rank."""
        with self._used() as agent:
            found = lib.weft_agent_name(agent, rank)
            return None if found == NULL else ffi.string(found).decode()

    def find(self, name):
        """The rank of the living worker with that name; None if there is none."""
        with self._used() as agent:
            rank = lib.weft_agent_find(agent, name.encode())
        return None if rank < 0 else rank

    def get_worker_info(self, name=None):
        rank = self.rank if name is None else self.find(name)
        if rank is None:
            raise Error(Status.NOT_FOUND, f"no living worker has the name {name!r}")
        return WorkerInfo(name or self.name, rank)

    def rpc_async(self, to, func, args=(), timeout=None, land=None):
        """Calls a function of the worker `to` (a rank or a name), and returns a Future. func: its name, or a function that is
        registered here under the same name. land: writable arrays for the tensors of the result."""
        out = ffi.new("weft_future **")
        name = name_of(func)
        target, text = _target(to)
        with _Start(args, timeout, land) as start:

            def call():
                with self._used() as agent:
                    return lib.weft_rpc_async_sized(agent, target, name, start.args, start.options, start.size, out)

            status = start.run(call)
        start.check(status)
        return Future(out[0], _results, start.kept)

    def rpc_sync(self, to, func, args=(), timeout=None, land=None):
        """Like rpc_async, but waits for the result."""
        return self.rpc_async(to, func, args, timeout, land).wait()

    def remote(self, to, func, args=(), timeout=None):
        """Calls a function whose result stays on the worker that runs it, and returns an RRef to it at once."""
        out = ffi.new("weft_rref **")
        name = name_of(func)
        target, text = _target(to)
        with _Start(args, timeout) as start:

            def call():
                with self._used() as agent:
                    return lib.weft_rpc_remote_sized(agent, target, name, start.args, start.options, start.size, out)

            status = start.run(call)
        start.check(status)
        return RRef._of(out[0])

    def serve(self):
        """Serves calls until all workers are done: each has closed its agent, or serves too."""
        agent = self._live()
        check(
            interruptible(
                lambda: lib.weft_agent_serve(agent, -1),
                lambda: lib.weft_agent_wake(agent),
                lambda _: lib.weft_agent_clear_wake(agent),
            )
        )

    def _end(self, run):
        agent = self._live()
        if getattr(_serving, "call", NULL) != NULL:
            raise Error(Status.DEADLOCK, "a function that others called cannot end the agent")
        with self._idle:
            if self._ends:
                raise Error(Status.STATE, "another thread ends the agent")
            self._ends = True
            while self._users:
                self._idle.wait()

        def end():
            try:  # functions that run here may use it meanwhile
                return run(agent)
            finally:
                self._handle = NULL
                with _lock:
                    _agents.remove(self)

        return interruptible(end, lambda: lib.weft_agent_stop(agent))

    def close(self):
        """Leaves the job when no other worker needs this one. Serves calls until then."""
        check(self._end(lambda agent: lib.weft_agent_close(agent, -1)))

    def stop(self):
        """Leaves the job at once: calls in flight fail. Waits for functions that run here."""
        self._end(lib.weft_agent_stop)


_SIMPLE = {"elastic": bool, "leaks_fail": bool, "master_addr": str, "master_port": int, "fabric": str, "iface": str, "ports": str,
           "threads": int, "no_binding": bool, "queue_limit_bytes": int, "memory_budget_bytes": int, "trace_file": str,
           "metrics_file": str}

_default = [None]


def _serving_agent(handle):
    """The agent with this handle. There is none yet if its Agent() has not returned: then one that is good for the call."""
    for agent in list(_agents):
        if agent._handle == handle:
            return agent
    agent = Agent.__new__(Agent)
    agent._handle, agent._process, agent._ends = handle, Process.number, True
    agent._users, agent._idle = 0, threading.Condition()
    return agent


def default_agent():
    """The agent that init_rpc() opened; in a function that another worker called, the agent that serves it."""
    call = getattr(_serving, "call", NULL)
    if call != NULL:
        return _serving_agent(lib.weft_call_agent(call))
    agent = _default[0]
    if agent is None:
        raise Error(Status.STATE, "there is no agent: call weft.init_rpc() first")
    return agent


def init_rpc(name=None, rank=None, world_size=None, **options):
    """Opens the agent that the functions of this module use. The options are those of weft.Agent."""
    if _default[0] is not None:
        raise Error(Status.STATE, "init_rpc() was called already")
    _default[0] = Agent(name, rank, world_size, **options)
    return _default[0]


def shutdown(graceful=True):
    """Waits until all workers have called shutdown(), then closes the agent of init_rpc(). graceful=False: stops at once."""
    agent = default_agent()
    try:
        agent.close() if graceful else agent.stop()
    finally:
        if _default[0] is agent and (agent._ends or agent._handle == NULL):
            _default[0] = None


def rpc_sync(to, func, args=(), timeout=None, land=None):
    return default_agent().rpc_async(to, func, args, timeout, land).wait()


def rpc_async(to, func, args=(), timeout=None, land=None):
    return default_agent().rpc_async(to, func, args, timeout, land)


def remote(to, func, args=(), timeout=None):
    return default_agent().remote(to, func, args, timeout)


def get_worker_info(name=None):
    return default_agent().get_worker_info(name)


def _exit():
    """Before the interpreter ends: afterwards no thread of weft may run Python."""
    for agent in list(_agents):
        try:
            agent.stop()
        except Error:  # another thread ends it
            lib.weft_agent_stop(agent._handle)
    for thread in _wait.left:
        thread.join()


def _forked():
    global _lock
    _lock = threading.Lock()
    _agents.clear()
    _wait.left.clear()
    _default[0] = None
    _serving.call = NULL


atexit.register(_exit)
os.register_at_fork(after_in_child=_forked)
