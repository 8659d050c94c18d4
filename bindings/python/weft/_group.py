# SPDX-License-Identifier: Apache-2.0
"""Groups: collective operations on arrays, in place."""
from weft._agent import RRef, _ms, default_agent
from weft._errors import Error, Status, check, error_of
from weft._future import Future, nothing
from weft._library import NULL, Process, ffi, lib
from weft._tensor import Tensor, handle_of
from weft._value import Values, values_of
from weft._wait import interruptible

_OPS = {"sum": lib.WEFT_OP_SUM, "avg": lib.WEFT_OP_AVG, "min": lib.WEFT_OP_MIN, "max": lib.WEFT_OP_MAX, "prod": lib.WEFT_OP_PROD}


def _op(name):
    if name not in _OPS:
        raise ValueError(f"no reduction {name!r}: one of {', '.join(_OPS)}")
    return _OPS[name]


def _members(handle):
    return values_of(lib.weft_values_args(lib.weft_future_values(handle)), RRef._of)


class Group:
    """Some workers of a job, which make the same operations in the same order (weft/group.h). Arrays are changed in place. Each
    operation waits; with wait=False it returns a Future. timeout: seconds."""

    def __init__(self, name, ranks=None, timeout=None, agent=None):
        """All members open the group, with the same name and ranks; None: all workers."""
        agent = agent or default_agent()
        ranks = list(ranks) if ranks is not None else []
        members = ffi.new("int[]", ranks) if ranks else NULL
        out = ffi.new("weft_group **")
        error = ffi.new("weft_error **")
        text = name.encode()
        self._handle, self._process = NULL, Process.number
        limit = _ms(timeout)
        with agent._used() as handle:
            run = lambda: lib.weft_group_open(handle, text, members, len(ranks), limit, out, error)  # noqa: E731
            check(interruptible(run, undo=lambda status: status or lib.weft_group_close(out[0])), error)
        self._agent, self._handle = agent, out[0]

    def __del__(self, close=lib.weft_group_close, process=Process):
        if getattr(self, "_process", None) == process.number and self._handle != NULL:
            close(self._handle)

    def __reduce__(self):
        raise TypeError("a Group can be neither copied nor pickled")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _live(self):
        if self._process != Process.number:
            raise RuntimeError("this group was opened before a fork()")
        if self._handle == NULL:
            raise Error(Status.CLOSED, "the group is closed")
        return self._handle

    def close(self):
        """Ends the group here. Operations in flight fail on all members."""
        handle, self._handle = self._live(), NULL
        lib.weft_group_close(handle)

    @property
    def size(self):
        return lib.weft_group_size(self._live())

    @property
    def index(self):
        """This worker's number in the group."""
        return lib.weft_group_index(self._live())

    @property
    def ranks(self):
        return [lib.weft_group_member(self._live(), i) for i in range(self.size)]

    @property
    def error(self):
        """Why the group ended, as an exception; None if it has not."""
        error = lib.weft_group_error(self._live())
        return None if error == NULL else error_of(error)

    def abort(self, why):
        """Ends the group on all members; their operations fail."""
        error = lib.weft_error_create(lib.WEFT_ERR_CANCELLED, b"%s", ffi.new("char[]", why.encode()))
        lib.weft_group_abort(self._live(), error)
        lib.weft_error_unref(error)

    def shrink(self, timeout=None):
        """A new group of the members that live, after this one has ended."""
        out = ffi.new("weft_group **")
        error = ffi.new("weft_error **")
        handle = self._live()
        limit = _ms(timeout)
        run = lambda: lib.weft_group_shrink(handle, limit, out, error)  # noqa: E731
        check(interruptible(run, undo=lambda status: status or lib.weft_group_close(out[0])), error)
        other = Group.__new__(Group)
        other._agent, other._handle, other._process = self._agent, out[0], Process.number
        return other

    def _run(self, function, arrays, more, timeout, wait, read=nothing):
        """arrays: (array or None, whether it is written)."""
        tensors = []
        for i, (array, writable) in enumerate(arrays):
            try:
                tensors.append(None if array is None else Tensor(handle_of(array, writable)))
            except TypeError as error:
                raise TypeError(f"array {i}: {error}") from None
        out = ffi.new("weft_future **")
        handles = [NULL if one is None else one._handle for one in tensors]
        status = function(self._live(), *handles, *more, _ms(timeout), out)
        if status:
            error = lib.weft_group_error(self._live())
            raise error_of(error, status)
        future = Future(out[0], read, tensors)
        return future.wait() if wait else future

    def barrier(self, timeout=None, wait=True):
        return self._run(lib.weft_group_barrier_async, (), (), timeout, wait)

    def allreduce(self, array, op="sum", timeout=None, wait=True):
        """Sets the array, on every member, to the reduction of all."""
        return self._run(lib.weft_group_allreduce_async, ((array, True),), (_op(op),), timeout, wait)

    def reduce(self, array, op="sum", root=0, timeout=None, wait=True):
        """Sets the array of member `root` to the reduction of all."""
        return self._run(lib.weft_group_reduce_async, ((array, True),), (_op(op), root), timeout, wait)

    def broadcast(self, array, root=0, timeout=None, wait=True):
        """Sets the array, on every member, to that of member `root`."""
        return self._run(lib.weft_group_broadcast_async, ((array, True),), (root,), timeout, wait)

    def allgather(self, array, out, timeout=None, wait=True):
        """Sets `out`, on every member, to the arrays of all, in the order of the members."""
        return self._run(lib.weft_group_allgather_async, ((array, False), (out, True)), (), timeout, wait)

    def reduce_scatter(self, array, out, op="sum", timeout=None, wait=True):
        """Sets `out` to this member's part of the reduction of all arrays."""
        return self._run(lib.weft_group_reduce_scatter_async, ((array, False), (out, True)), (_op(op),), timeout, wait)

    def gather(self, array, out=None, root=0, timeout=None, wait=True):
        """allgather, on member `root` only."""
        return self._run(lib.weft_group_gather_async, ((array, False), (out, True)), (root,), timeout, wait)

    def scatter(self, array, out, root=0, timeout=None, wait=True):
        """Sets `out` of member i to part i of the array of member `root`; others give None."""
        return self._run(lib.weft_group_scatter_async, ((array, False), (out, True)), (root,), timeout, wait)

    def all_to_all(self, array, out, timeout=None, wait=True):
        """Sets part j of `out` on member i to part i of the array of member j."""
        return self._run(lib.weft_group_all_to_all_async, ((array, False), (out, True)), (), timeout, wait)

    def send(self, array, to, timeout=None, wait=True):
        return self._run(lib.weft_group_send_async, ((array, False),), (to,), timeout, wait)

    def recv(self, array, source, timeout=None, wait=True):
        return self._run(lib.weft_group_recv_async, ((array, True),), (source,), timeout, wait)

    def allgather_values(self, *values, timeout=None, wait=True):
        """The values of all members: a list with a list for each."""
        mine = Values(values, "value")
        out = ffi.new("weft_future **")
        status = lib.weft_group_allgather_values_async(self._live(), mine.args, _ms(timeout), out)
        mine.release()
        check(status)
        future = Future(out[0], _members)
        return future.wait() if wait else future
