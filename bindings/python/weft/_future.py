# SPDX-License-Identifier: Apache-2.0
"""Futures: to wait for, to await, and as those of concurrent.futures."""
import asyncio
import collections
import concurrent.futures
import itertools
import math
import os
import time
import weakref

from weft._errors import Cancelled, Status, Timeout, check, error_of
from weft._library import NULL, Process, ffi, lib
from weft._wait import SLICE_MS

_DEADLOCK = int(Status.DEADLOCK)
_waiting = {}  # number of a callback -> function
_numbers = itertools.count(1)


@ffi.callback("weft_done_fn")
def _done(_, number):
    """On a thread of weft's executor."""
    _waiting.pop(int(ffi.cast("uintptr_t", number)))()


class _Bridge:
    """Wakes an event loop: one descriptor for all its futures."""

    _of = weakref.WeakKeyDictionary()

    def __init__(self, loop):
        self._ready = collections.deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.add_reader(self._fd, self._wake)

    def __del__(self):
        os.close(self._fd)

    @classmethod
    def of(cls, loop):
        bridge = cls._of.get(loop)
        if bridge is None:
            bridge = cls._of[loop] = cls(loop)
        return bridge

    def put(self, waiter):
        self._ready.append(waiter)
        os.eventfd_write(self._fd, 1)

    def _wake(self):
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass
        while self._ready:
            waiter = self._ready.popleft()
            if not waiter.done():
                waiter.set_result(None)


class Future:
    """The result of a call or of an operation of a group, which may come later. Any thread may wait. `await future` works in an
    event loop; cancelling the task cancels the call."""

    __slots__ = ("_handle", "_process", "_read", "_kept", "__weakref__")

    def __init__(self, handle, read, kept=None):
        """Takes over a reference. read(handle) makes the result. `kept` lives until the future is dropped."""
        self._handle, self._read, self._kept = handle, read, kept
        self._process = Process.number

    def __del__(self, unref=lib.weft_future_unref, process=Process):
        if getattr(self, "_process", None) == process.number:
            unref(self._handle)

    def __reduce__(self):
        raise TypeError("a Future can be neither copied nor pickled")

    def _live(self):
        if self._process != Process.number:
            raise RuntimeError("this future was made before a fork()")
        return self._handle

    def done(self):
        return lib.weft_future_done(self._live())

    def _wait(self, timeout):
        handle = self._live()
        end = None if timeout is None or timeout == math.inf else time.monotonic() + timeout
        left = SLICE_MS
        while True:
            if end is not None:
                left = min(SLICE_MS, max(0, math.ceil((end - time.monotonic()) * 1000)))
            status = lib.weft_future_wait(handle, left)
            if status == 0 or lib.weft_future_done(handle):
                return
            if status == _DEADLOCK:
                check(status)
            if end is not None and time.monotonic() >= end:
                raise Timeout(Status.TIMEOUT, f"no result within {timeout} s")

    def _result(self):
        error = lib.weft_future_error(self._handle)
        if error != NULL:
            raise error_of(error)
        return self._read(self._handle)

    def wait(self, timeout=None):
        """Returns the result, or raises the call's error. weft.Timeout after `timeout` seconds; the result may still come."""
        self._wait(timeout)
        return self._result()

    result = wait

    def exception(self, timeout=None):
        """Why there is no result, as an exception; None if there is one."""
        self._wait(timeout)
        error = lib.weft_future_error(self._handle)
        return None if error == NULL else error_of(error)

    def cancel(self):
        """Requests cancellation. Returns False if the call is already complete. Until it is, C may still use its arrays."""
        return lib.weft_future_cancel(self._live()) == 0

    def cancelled(self):
        return self.done() and isinstance(self.exception(), Cancelled)

    def _then(self, run):
        number = next(_numbers)
        _waiting[number] = run
        status = lib.weft_future_add_done_callback(self._live(), _done, ffi.cast("void *", number), NULL)
        if status:
            del _waiting[number]
            check(status)

    def add_done_callback(self, function):
        """Calls function(future) when it is done, on a thread of weft's executor."""
        if not callable(function):
            raise TypeError(f"{function!r} cannot be called")
        self._then(lambda: function(self))

    def concurrent(self):
        """The same as a concurrent.futures.Future. Cancelling that one cancels the call."""
        other = concurrent.futures.Future()

        def finish():
            if other.cancelled() or not other.set_running_or_notify_cancel():
                return
            try:
                other.set_result(self._result())
            except BaseException as error:
                other.set_exception(error)

        other.add_done_callback(lambda it: self.cancel() if it.cancelled() else None)
        self._then(finish)
        return other

    def __await__(self):
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            bridge = _Bridge.of(loop)
            self._then(lambda: bridge.put(waiter))
            try:
                yield from waiter
            except BaseException:
                self.cancel()
                raise
        return self._result()


def nothing(_):
    """The result of an operation without one."""
