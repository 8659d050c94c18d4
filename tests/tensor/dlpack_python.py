#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dlpack_python.py LIBRARY - tensors of libweft.so are shared with NumPy and PyTorch by DLPack, in both directions.

Exits 77 if neither NumPy nor PyTorch is installed. Libraries from before DLPack 1.0 exchange an older struct, for which weft has
functions of its own.
"""
import ctypes as c
import sys

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None
if numpy is None and torch is None:
    print("neither NumPy nor PyTorch is installed")
    sys.exit(77)


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


DELETER = c.CFUNCTYPE(None, c.c_void_p)


class Managed(c.Structure):  # since DLPack 1.0
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("manager", c.c_void_p), ("deleter", DELETER),
                ("flags", c.c_uint64), ("tensor", Tensor)]


class OldManaged(c.Structure):
    _fields_ = [("tensor", Tensor), ("manager", c.c_void_p), ("deleter", DELETER)]


weft = c.CDLL(sys.argv[1])
python = c.pythonapi
python.PyCapsule_New.restype = c.py_object
python.PyCapsule_New.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
python.PyCapsule_GetPointer.restype = c.c_void_p
python.PyCapsule_GetPointer.argtypes = [c.py_object, c.c_char_p]
python.PyCapsule_IsValid.argtypes = [c.py_object, c.c_char_p]
python.PyCapsule_SetName.argtypes = [c.py_object, c.c_char_p]
weft.weft_tensor_arange.argtypes = [c.c_int64, c.c_int, c.POINTER(c.c_void_p), c.c_void_p]
weft.weft_tensor_narrow.argtypes = [c.c_void_p, c.c_int, c.c_int64, c.c_int64, c.POINTER(c.c_void_p), c.c_void_p]
weft.weft_tensor_get_f64.restype = c.c_double
weft.weft_tensor_get_f64.argtypes = [c.c_void_p, c.c_int64]
weft.weft_tensor_numel.restype = c.c_int64
weft.weft_tensor_numel.argtypes = [c.c_void_p]
weft.weft_tensor_fill.restype = None
weft.weft_tensor_fill.argtypes = [c.c_void_p, c.c_double]
weft.weft_tensor_unref.restype = None
weft.weft_tensor_unref.argtypes = [c.c_void_p]
weft.weft_tensor_to_dlpack.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p), c.c_void_p]
weft.weft_tensor_from_dlpack.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p), c.c_void_p]
weft.weft_tensor_to_dlpack_unversioned.argtypes = weft.weft_tensor_to_dlpack.argtypes
weft.weft_tensor_from_dlpack_unversioned.argtypes = [c.c_void_p, c.POINTER(c.c_void_p), c.c_void_p]
FLOAT64 = 1
exchanged = []  # the names of the capsules


class Lender:
    """A tensor of weft as an object that from_dlpack of another library takes."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        versioned = max_version is not None and max_version[0] >= 1
        name = b"dltensor_versioned" if versioned else b"dltensor"
        lend = weft.weft_tensor_to_dlpack if versioned else weft.weft_tensor_to_dlpack_unversioned
        lent = c.c_void_p()
        assert lend(self.tensor, 0, c.byref(lent), None) == 0
        described = (Managed if versioned else OldManaged).from_address(lent.value).tensor
        assert (described.device_type, described.device_id) == self.__dlpack_device__()
        exchanged.append(name.decode())
        return python.PyCapsule_New(lent, name, None)


def borrow(capsule):
    """A tensor of weft over what the capsule lends."""
    tensor = c.c_void_p()
    if python.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        address = python.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        python.PyCapsule_SetName(capsule, b"used_dltensor_versioned")
        assert weft.weft_tensor_from_dlpack(address, 0, c.byref(tensor), None) == 0
        exchanged.append("dltensor_versioned")
    else:
        address = python.PyCapsule_GetPointer(capsule, b"dltensor")
        python.PyCapsule_SetName(capsule, b"used_dltensor")
        assert weft.weft_tensor_from_dlpack_unversioned(address, c.byref(tensor), None) == 0
        exchanged.append("dltensor")
    return tensor


def check(name, from_dlpack, to_capsule, arange):
    whole, part = c.c_void_p(), c.c_void_p()
    assert weft.weft_tensor_arange(10, FLOAT64, c.byref(whole), None) == 0
    assert weft.weft_tensor_narrow(whole, 0, 3, 4, c.byref(part), None) == 0
    there = from_dlpack(Lender(part))
    weft.weft_tensor_unref(part)
    assert [float(x) for x in there] == [3, 4, 5, 6], there
    weft.weft_tensor_fill(whole, 40)
    assert [float(x) for x in there] == [40, 40, 40, 40], there  # the same memory
    if not hasattr(there, "flags") or there.flags.writeable:  # NumPy before 2.1 lets nobody write
        there[0] = 50
        assert weft.weft_tensor_get_f64(whole, 3) == 50
    weft.weft_tensor_unref(whole)
    assert [float(x) for x in there][1:] == [40, 40, 40], there  # which outlives weft's tensors
    del there
    theirs = arange(12).reshape(3, 4).T[1:]
    ours = borrow(to_capsule(theirs))
    assert weft.weft_tensor_numel(ours) == 9
    assert [weft.weft_tensor_get_f64(ours, i) for i in range(9)] == [1, 5, 9, 2, 6, 10, 3, 7, 11]
    theirs[0][1] = 50
    assert weft.weft_tensor_get_f64(ours, 1) == 50
    del theirs
    assert weft.weft_tensor_get_f64(ours, 8) == 11
    weft.weft_tensor_unref(ours)
    print(f"{name}: {exchanged[-2]} to it, {exchanged[-1]} from it")


if numpy is not None and hasattr(numpy, "from_dlpack"):
    new = tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 1)
    check("NumPy " + numpy.__version__, numpy.from_dlpack,
          lambda a: a.__dlpack__(max_version=(1, 0)) if new else a.__dlpack__(), lambda n: numpy.arange(float(n)))
if torch is not None:
    check("PyTorch " + torch.__version__, torch.from_dlpack, torch.utils.dlpack.to_dlpack,
          lambda n: torch.arange(float(n), dtype=torch.float64))
