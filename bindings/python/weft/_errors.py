# SPDX-License-Identifier: Apache-2.0
"""Statuses of C as exceptions."""
import enum
import re

from weft._library import NULL, ffi, lib

Status = enum.IntEnum(
    "Status",
    {
        name[len("WEFT_"):].replace("ERR_", "", 1): value
        for value, name in ffi.typeof("weft_status").elements.items()
    },
)


class Error(RuntimeError):
    """A function of weft failed. `status` is a weft.Status. `function` and `worker` (a rank, or None) say what failed, and
    where; `hops` are the ranks of the workers through which the error came."""

    def __init__(self, status, text, function="", worker=None, hops=()):
        super().__init__(f"{text} ({Status(status).name})" if status else text)
        self.status, self.text, self.function, self.worker, self.hops = Status(status), text, function, worker, hops


class RemoteError(Error):
    """The function that was called failed. `type_name` is the class of its exception, such as "ValueError", and `text` its
    text; `type_name` is "" if the function is not in Python. `handler_status` is the status that it returned."""

    def __init__(self, status, text, function="", worker=None, hops=(), handler_status=0):
        super().__init__(status, text, function, worker, hops)
        found = re.match(r"([A-Za-z_][A-Za-z0-9_.]*(?:Error|Exception|Warning|Exit|Interrupt|[A-Z]\w*)): ", text)
        self.type_name = found.group(1) if found else ""
        self.text = text[found.end():] if found else text
        self.handler_status = Status(handler_status)


class Timeout(Error, TimeoutError):
    """The time limit passed."""


class Cancelled(Error):
    """The call was cancelled."""


class PeerError(Error, ConnectionError):
    """The other worker is dead, has left, or cannot be reached."""


_KINDS = {
    Status.REMOTE: RemoteError,
    Status.TIMEOUT: Timeout,
    Status.CANCELLED: Cancelled,
    Status.PEER_DEAD: PeerError,
    Status.PEER_LEFT: PeerError,
    Status.UNREACHABLE: PeerError,
    Status.PROTOCOL: PeerError,
}


def text_of(pointer):
    return ffi.string(pointer).decode(errors="replace")


def error_of(error, status=0):
    """The exception for a weft_error, which may be NULL; then `status` tells what failed."""
    if error == NULL:
        return _KINDS.get(status, Error)(status, text_of(lib.weft_status_text(status)))
    status = lib.weft_error_code(error)
    hops = tuple(lib.weft_error_hop(error, i) for i in range(lib.weft_error_hops(error)))
    worker = lib.weft_error_worker(error)
    more = (lib.weft_error_handler_code(error),) if status == Status.REMOTE else ()
    text = text_of(lib.weft_error_message(error)) or text_of(lib.weft_status_text(status))
    function = text_of(lib.weft_error_function(error))
    return _KINDS.get(status, Error)(status, text, function, None if worker < 0 else worker, hops, *more)


def check(status, error=None):
    """Raises if `status` is a failure. `error`: a weft_error ** (released here), or None."""
    if status == 0:
        return
    detail = error[0] if error is not None else NULL
    try:
        raise error_of(detail, status)
    finally:
        if detail != NULL:
            lib.weft_error_unref(detail)
