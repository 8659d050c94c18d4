# SPDX-License-Identifier: Apache-2.0
"""weft in Python: remote calls that carry tensors, between processes in C, C++, Fortran and Python.

    import numpy, weft

    @weft.function
    def scale(x, factor):
        return x.numpy() * factor

    agent = weft.init_rpc()                  # rank and world size come from weft-run, mpirun or srun
    if agent.rank == 1:
        print(weft.rpc_sync(0, scale, (numpy.arange(3.0), 2.5)).numpy())
    weft.shutdown()                          # serves until all workers are done

docs/python.md describes the package.
"""
from weft._agent import (
    Agent,
    RRef,
    WorkerInfo,
    default_agent,
    function,
    get_worker_info,
    init_rpc,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
)
from weft._errors import Cancelled, Error, PeerError, RemoteError, Status, Timeout
from weft._future import Future
from weft._file import load, save
from weft._group import Group
from weft._library import ffi as _ffi
from weft._library import lib as _lib
from weft._tensor import Tensor, tensor, zeros

__version__ = _ffi.string(_lib.weft_version()).decode()
__all__ = [
    "Agent", "Cancelled", "Error", "Future", "Group", "PeerError", "RRef", "RemoteError", "Status", "Tensor", "Timeout",
    "WorkerInfo", "default_agent", "function", "get_worker_info", "init_rpc", "load", "remote", "rpc_async", "rpc_sync", "save", "shutdown",
    "tensor", "zeros",
]
