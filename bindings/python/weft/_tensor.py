# SPDX-License-Identifier: Apache-2.0
"""Tensors of weft, over memory of NumPy, PyTorch and other objects, and as objects for these."""
import collections
import ctypes
import os
import sys
import threading
import time

from weft._errors import check
from weft._library import NULL, Process, ffi, lib

# Names as in weft.h, with the code and bits of DLPack, the type of NumPy, and the format of the buffer protocol.
_DTYPES = {
    "float32": (0, 2, 32, "<f4", "f"),
    "float64": (1, 2, 64, "<f8", "d"),
    "int64": (2, 0, 64, "<i8", "q"),
    "int32": (3, 0, 32, "<i4", "i"),
    "uint8": (4, 1, 8, "|u1", "B"),
    "bool": (5, 6, 8, "|b1", "?"),
    "float16": (6, 2, 16, "<f2", "e"),
    "bfloat16": (7, 4, 16, None, None),
    "int8": (8, 0, 8, "|i1", "b"),
    "int16": (9, 0, 16, "<i2", "h"),
    "complex64": (10, 5, 64, "<c8", "Zf"),
    "complex128": (11, 5, 128, "<c16", "Zd"),
}
_NAMES = {row[0]: name for name, row in _DTYPES.items()}
_BY_NUMPY = {row[3]: (row[0], row[2] // 8) for row in _DTYPES.values() if row[3]}
_BY_FORMAT = {row[4]: row[0] for row in _DTYPES.values() if row[4]}
_BY_FORMAT.update({"l": 2 if ffi.sizeof("long") == 8 else 3, "c": 4})
_BY_DLPACK = {row[1:3]: row[0] for row in _DTYPES.values()}

_py = ctypes.pythonapi
_py.PyCapsule_New.restype = ctypes.py_object
_py.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_py.PyCapsule_GetPointer.restype = ctypes.c_void_p
_py.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_py.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _py))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _py))


# ---- What weft borrows of Python ----


class Lent:
    """Objects that C uses: the owners of memory, and objects that references name. A future is a flag that C can set without the
    GIL: to release an object, C cancels its future, on any thread. Python threads later drop the objects of such futures."""

    drop = ffi.cast("weft_drop_fn", lib.weft_future_cancel)
    _lock = threading.Lock()
    _objects = collections.deque()  # (future, object)
    _named = {}  # address of a future -> object
    _thread = None

    @classmethod
    def add(cls, thing, named=False):
        """The argument for `drop`. named: Lent.named(argument) is the object."""
        future = lib.weft_future_create(NULL)
        if future == NULL:
            raise MemoryError("no memory for a tensor")
        with cls._lock:
            cls._objects.append((future, thing))
            if named:
                cls._named[int(ffi.cast("uintptr_t", future))] = thing
            starts = cls._thread is None
            if starts:
                cls._thread = threading.Thread(target=cls._look, name="weft lent objects", daemon=True)
        if starts:
            try:
                cls._thread.start()
            except RuntimeError:  # the interpreter ends
                pass
        cls.collect(2)
        return future

    @classmethod
    def collect(cls, most):
        """Looks at the next `most` objects. Drops those that are no longer used."""
        done = []
        with cls._lock:
            for _ in range(min(most, len(cls._objects))):
                if lib.weft_future_done(cls._objects[0][0]):
                    done.append(cls._objects.popleft())
                    cls._named.pop(int(ffi.cast("uintptr_t", done[-1][0])), None)
                else:
                    cls._objects.rotate(-1)
        for future, _ in done:
            lib.weft_future_cancel(future)  # takes the future's lock: the thread that has cancelled it no longer uses it
            lib.weft_future_unref(future)

    @classmethod
    def named(cls, argument):
        return cls._named[int(ffi.cast("uintptr_t", argument))]

    @classmethod
    def count(cls):
        """The number of objects that C uses."""
        cls.collect(len(cls._objects))
        return len(cls._objects)

    @classmethod
    def _look(cls):
        while True:
            time.sleep(0.2)
            cls.collect(len(cls._objects))
            with cls._lock:
                if not cls._objects:
                    cls._thread = None
                    return

    @classmethod
    def forked(cls):
        cls._lock = threading.Lock()
        cls._kept = cls._objects, cls._named  # the parent's: never dropped here
        cls._objects, cls._named = collections.deque(), {}
        cls._thread = None


os.register_at_fork(after_in_child=Lent.forked)


# ---- Tensors ----


class Tensor:
    """A tensor of weft. NumPy, PyTorch and others take it without a copy: numpy(), torch(), numpy.asarray(t),
    torch.from_dlpack(t), memoryview(t.buffer())."""

    __slots__ = ("_handle", "_process", "_read_only", "__weakref__")

    def __init__(self, handle, read_only=False):
        """The new object owns the caller's reference to `handle`. Use weft.tensor() to make one of another object."""
        self._handle, self._read_only = handle, read_only
        self._process = Process.number

    def __del__(self, unref=lib.weft_tensor_unref, process=Process):
        if getattr(self, "_process", None) == process.number:
            unref(self._handle)

    def __reduce__(self):
        raise TypeError("a weft.Tensor can be neither copied nor pickled: use numpy() or torch()")

    @property
    def shape(self):
        handle = self._live()
        return tuple(lib.weft_tensor_size(handle, i) for i in range(lib.weft_tensor_ndim(handle)))

    @property
    def strides(self):
        """In elements."""
        handle = self._live()
        return tuple(lib.weft_tensor_stride(handle, i) for i in range(lib.weft_tensor_ndim(handle)))

    @property
    def dtype(self):
        """Its name, such as "float32"."""
        return _NAMES[lib.weft_tensor_dtype(self._live())]

    @property
    def device(self):
        """"cpu" or "cuda:N"."""
        device = lib.weft_tensor_device(self._live())
        return f"cuda:{device.index}" if device.kind else "cpu"

    @property
    def data_ptr(self):
        """The address of the first element, on its device."""
        data = lib.weft_tensor_data(self._live())
        if data == NULL and self.device != "cpu":
            return self._with_dlpack(lambda m: int(ffi.cast("uintptr_t", m.tensor.data)) + m.tensor.byte_offset)
        return int(ffi.cast("uintptr_t", data))

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __repr__(self):
        return f"weft.Tensor({self.dtype} {list(self.shape)} on {self.device})"

    def _live(self):
        if self._process != Process.number:
            raise RuntimeError("this tensor was made before a fork()")
        return self._handle

    def _host_row(self):
        row = _DTYPES[self.dtype]
        if self.device != "cpu":
            raise TypeError(f"a tensor on {self.device} has no memory of the host: use torch()")
        if row[3] is None:
            raise TypeError(f"NumPy and buffers have no {self.dtype}: use torch()")
        return row

    @property
    def __array_interface__(self):
        row = self._host_row()
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": row[3],
            "strides": tuple(one * row[2] // 8 for one in self.strides),
            "data": (self.data_ptr, self._read_only),
        }

    def numpy(self):
        """A numpy.ndarray over the same memory."""
        import numpy

        return numpy.asarray(self)

    def buffer(self):
        """A memoryview over the same memory; bytes for float16 and complex dtypes. The tensor must be contiguous."""
        row = self._host_row()
        if not lib.weft_tensor_is_contiguous(self._handle):
            raise BufferError("the tensor is not contiguous: use numpy()")
        own = Tensor(lib.weft_tensor_ref(self._live()))
        data = ffi.gc(ffi.cast("char *", lib.weft_tensor_data(own._handle)), lambda _: own)  # lives as long as the buffer
        view = memoryview(ffi.buffer(data, lib.weft_tensor_nbytes(own._handle))).cast("B")
        if self._read_only:
            view = view.toreadonly()
        if row[4] in ("e", "Zf", "Zd") or not view.nbytes:  # memoryview.cast knows no such formats
            return view
        return view.cast(row[4], self.shape) if self.shape else view.cast(row[4])

    def torch(self):
        """A torch.Tensor over the same memory."""
        import torch

        if self.dtype == "bool":  # PyTorch reads no bool from DLPack before 2.1
            return torch.from_dlpack(self._capsule(as_uint8=True)).view(torch.bool)
        return torch.from_dlpack(self)

    def __dlpack_device__(self):
        device = lib.weft_tensor_device(self._live())
        return (2, device.index) if device.kind else (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy:
            raise BufferError("weft makes no copies for DLPack")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on {self.device}")
        return self._capsule()

    def _capsule(self, as_uint8=False):
        out = ffi.new("weft_dlpack_unversioned **")
        error = ffi.new("weft_error **")
        check(lib.weft_tensor_to_dlpack_unversioned(self._live(), lib.WEFT_DLPACK_READ_ONLY, out, error), error)
        if as_uint8:
            out[0].tensor.dtype.code = 1
        address = int(ffi.cast("uintptr_t", out[0]))
        _capsules[address] = Process.number
        return _py.PyCapsule_New(address, b"dltensor", _capsule_ended)

    def _with_dlpack(self, use):
        """use(the DLPack struct), which is valid until this returns."""
        out = ffi.new("weft_dlpack_unversioned **")
        check(lib.weft_tensor_to_dlpack_unversioned(self._live(), lib.WEFT_DLPACK_READ_ONLY, out, NULL))
        try:
            return use(out[0])
        finally:
            out[0].deleter(out[0])


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _capsule_ended(capsule):
    """If nobody took the capsule's tensor, releases it. An exception may be pending, which must stay."""
    saved = (ctypes.c_void_p * 3)()
    at = ctypes.addressof(saved)
    _fetch(at, at + _POINTER, at + 2 * _POINTER)
    if _valid(capsule, b"dltensor") and _capsules.pop(_pointer(capsule, b"dltensor"), None) == Process.number:
        managed = ffi.cast("weft_dlpack_unversioned *", _pointer(capsule, b"dltensor"))
        managed.deleter(managed)
    _restore(saved[0], saved[1], saved[2])


_POINTER = ctypes.sizeof(ctypes.c_void_p)
_fetch = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(("PyErr_Fetch", _py))
_restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(("PyErr_Restore", _py))
_capsules = {}  # address of a struct in a capsule -> Process.number when it was made


def _shape(sizes):
    if len(sizes) > 8:
        raise TypeError(f"{len(sizes)} dimensions: tensors of weft have at most 8")
    out = ffi.new("weft_shape *")
    out.ndim = len(sizes)
    out.dims[0:len(sizes)] = sizes
    return out


def _wrap(thing, dtype, address, shape, strides):
    """A handle of a tensor over memory that `thing` owns. Strides in elements, or None."""
    sizes = _shape(shape)
    out = ffi.new("weft_tensor **")
    error = ffi.new("weft_error **")
    steps = ffi.new("int64_t[]", strides) if strides else NULL
    if not address and 0 not in shape:
        raise TypeError("it has no memory")
    owner = Lent.add(thing)
    if lib.weft_tensor_wrap(sizes[0], dtype, ffi.cast("void *", address or 64), steps, Lent.drop, owner, out, error):
        text = ffi.string(lib.weft_error_message(error[0])).decode()
        lib.weft_error_unref(error[0])
        raise TypeError(text)
    return out[0]


def _of_array(thing, writable):
    """Of an object with __array_interface__, such as a numpy.ndarray."""
    face = thing.__array_interface__
    known = _BY_NUMPY.get(face["typestr"])
    if known is None:
        raise TypeError(f"weft has no tensors of the dtype {face['typestr']!r}")
    address, read_only = face["data"]
    if writable and read_only:
        raise TypeError("it is read-only")
    dtype, size = known
    strides = face.get("strides")
    if strides is not None:
        if any(one % size for one in strides):
            raise TypeError("its strides are no multiples of its elements")
        strides = [one // size for one in strides]
    return _wrap((thing, face), dtype, address, face["shape"], strides)


def _of_torch(thing, writable):
    if thing.device.type != "cpu":
        return _of_dlpack(thing, writable)
    if writable and 0 in thing.stride() and thing.numel() > 1:
        raise TypeError("several of its indices are one element")
    if thing.layout is not sys.modules["torch"].strided:
        raise TypeError(f"a PyTorch tensor of the layout {thing.layout}")
    row = _DTYPES.get(str(thing.dtype).partition(".")[2])
    if row is None or thing.is_conj() or thing.is_neg():
        raise TypeError(f"weft has no tensors of the dtype {thing.dtype}" if row is None else "call resolve_conj() first")
    if thing.requires_grad:
        raise TypeError("it requires a gradient, which does not travel: call detach()")
    return _wrap(thing, row[0], thing.data_ptr(), tuple(thing.shape), thing.stride())


def _of_dlpack(thing, writable):
    """Memory of the CPU stays with the capsule. That of a GPU goes to weft, ordered with the legacy stream."""
    kind, _ = thing.__dlpack_device__()
    if writable:
        raise TypeError("DLPack does not say whether it may be written: use an array of NumPy, PyTorch or weft")
    capsule = thing.__dlpack__(stream=1) if kind == 2 else thing.__dlpack__()
    managed = ffi.cast("weft_dlpack_unversioned *", _py.PyCapsule_GetPointer(capsule, b"dltensor"))
    if kind == 2:
        out = ffi.new("weft_tensor **")
        error = ffi.new("weft_error **")
        _py.PyCapsule_SetName(capsule, b"used_dltensor")
        check(lib.weft_tensor_from_dlpack_unversioned(managed, out, error), error)
        return out[0]
    tensor = managed.tensor
    dtype = _BY_DLPACK.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if kind not in (1, 3) or dtype is None:
        raise TypeError("weft has no tensors of its device or dtype")
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    strides = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides != NULL else None
    return _wrap(capsule, dtype, int(ffi.cast("uintptr_t", tensor.data)) + tensor.byte_offset, shape, strides)


def _of_buffer(thing, writable):
    view = memoryview(thing)
    if writable and view.readonly:
        raise TypeError("it is read-only")
    dtype = _BY_FORMAT.get(view.format.lstrip("@=<"))
    if dtype is None or view.format[0] in ">!" or view.itemsize != lib.weft_dtype_size(dtype):
        raise TypeError(f"weft has no tensors of the format {view.format!r}")
    if not view.c_contiguous:
        raise TypeError("a buffer must be contiguous: use an array of NumPy")
    memory = ffi.from_buffer(view)
    return _wrap((view, memory), dtype, int(ffi.cast("uintptr_t", memory)), view.shape, None)


def is_tensor(thing):
    """Whether the object can become a tensor."""
    if isinstance(thing, (Tensor, memoryview)) or hasattr(thing, "__array_interface__") or hasattr(thing, "__dlpack__"):
        numpy = sys.modules.get("numpy")
        return not (numpy and isinstance(thing, numpy.generic))
    return type(thing).__module__ == "array"


def handle_of(thing, writable=False):
    """A reference to a tensor over the object's memory, without a copy; TypeError if there is none. writable: weft will write
    to it."""
    if isinstance(thing, Tensor):
        if writable and thing._read_only:
            raise TypeError("it is read-only")
        return lib.weft_tensor_ref(thing._live())
    if not is_tensor(thing):
        raise TypeError(f"{type(thing).__name__} is no array")
    if type(thing).__module__.partition(".")[0] == "torch":
        return _of_torch(thing, writable)
    if hasattr(thing, "__array_interface__"):
        return _of_array(thing, writable)
    if hasattr(thing, "__dlpack__"):
        return _of_dlpack(thing, writable)
    return _of_buffer(thing, writable)


def _is_read_only(thing):
    if isinstance(thing, Tensor):
        return thing._read_only
    face = getattr(thing, "__array_interface__", None)
    if face is not None:
        return face["data"][1]
    return memoryview(thing).readonly if not hasattr(thing, "__dlpack__") else False


def tensor(thing):
    """A weft.Tensor over the memory of an array, a PyTorch tensor, or an object with DLPack or a buffer, without a copy."""
    return Tensor(handle_of(thing), _is_read_only(thing))


def zeros(shape, dtype="float32"):
    """A new tensor from weft's pool of memory. dtype: a name, or a dtype of NumPy or PyTorch."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    row = _DTYPES.get(dtype)
    if row is None:
        raise TypeError(f"no dtype {dtype!r}: one of {', '.join(_DTYPES)}")
    out = ffi.new("weft_tensor **")
    error = ffi.new("weft_error **")
    check(lib.weft_tensor_zeros(_shape(shape)[0], row[0], out, error), error)
    return Tensor(out[0])
