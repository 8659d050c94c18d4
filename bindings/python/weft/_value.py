# SPDX-License-Identifier: Apache-2.0
"""Values of calls: what Python objects become, and what comes back. Nothing is pickled.

None, bool, int (64 bits), float, str, bytes, tensors (weft.Tensor, arrays of NumPy, tensors of PyTorch, objects with DLPack or
the buffer protocol), weft.RRef, and lists and tuples of these. A list of tensors only is C's list of tensors.
"""
import sys

from weft._library import Process, ffi, lib
from weft._tensor import Tensor, handle_of, is_tensor

(
    NULL_TYPE,
    BOOL,
    I64,
    F64,
    STRING,
    BYTES,
    TENSOR,
    TENSORS,
    RREF,
    LIST,
) = range(1, 11)


class Values:
    """A borrowed list for one call of C: `args`, and what its memory needs. release() after the call."""

    __slots__ = ("args", "_kept", "_tensors", "_process")

    def __init__(self, items, what="argument"):
        self._kept = []
        self._tensors = []
        self._process = Process.number
        try:
            self.args = self._list(items, what)
        except BaseException:
            self.release()
            raise

    def release(self, unref=lib.weft_tensor_unref, process=Process):
        tensors, self._tensors = self._tensors, []
        for one in tensors if self._process == process.number else ():
            unref(one)

    __del__ = release

    def _list(self, items, what):
        if len(items) > 1024:
            raise TypeError(f"{what}: {len(items)} values, where a list has at most 1,024: send an array")
        out = ffi.new("weft_value[]", len(items) or 1)
        args = ffi.new("weft_args *", (out, len(items)))
        self._kept += (out, args)
        for i, item in enumerate(items):
            try:
                self._fill(out[i], item, what, i)
            except (TypeError, ValueError, OverflowError, RuntimeError, BufferError) as error:
                if getattr(error, "_names", False):
                    raise
                named = type(error) if isinstance(error, (OverflowError, RuntimeError)) else TypeError
                told = named(f"{what} {i}: {error}")
                told._names = True
                raise told from None
        return args[0]

    def _fill(self, value, item, what, i):
        kind = type(item)
        if kind is float:
            value.type, value.as_.f64 = F64, item
        elif kind is int:
            value.type, value.as_.i64 = I64, item
        elif kind is bool:
            value.type, value.as_.boolean = BOOL, item
        elif item is None:
            value.type = NULL_TYPE
        elif isinstance(item, str):
            if "\0" in item:
                raise TypeError("a str with the character NUL: send bytes")
            self._bytes(value, STRING, item.encode(errors="surrogateescape"))
        elif isinstance(item, (bytes, bytearray)):
            self._bytes(value, BYTES, item)
        elif is_tensor(item):
            value.type, value.as_.tensor = TENSOR, self._tensor(item)
        elif isinstance(item, (list, tuple)):
            if what.count("item") >= 7:
                raise TypeError("lists nest at most 8 deep")
            self._items(value, item, f"{what} {i}, item")
        elif hasattr(item, "_rref"):
            value.type, value.as_.rref = RREF, item._live()
            self._kept.append(item)
        else:
            self._other(value, item)

    def _bytes(self, value, kind, data):
        memory = ffi.from_buffer(data)
        self._kept += (data, memory)
        value.type, value.as_.bytes.data, value.as_.bytes.size = kind, memory, len(data)

    def _tensor(self, item):
        handle = handle_of(item)
        self._tensors.append(handle)
        return handle

    def _items(self, value, items, what):
        if items and all(is_tensor(one) for one in items):
            handles = ffi.new("weft_tensor *[]", [self._tensor(one) for one in items])
            self._kept.append(handles)
            value.type, value.as_.tensors.items, value.as_.tensors.count = TENSORS, handles, len(items)
        else:
            value.type, value.as_.list = LIST, self._list(items, what)

    def _other(self, value, item):
        """Subclasses of numbers, and scalars of NumPy."""
        numpy = sys.modules.get("numpy")
        if numpy and isinstance(item, numpy.generic):
            item = item.item()
        if isinstance(item, bool):
            value.type, value.as_.boolean = BOOL, item
        elif isinstance(item, int):
            value.type, value.as_.i64 = I64, int(item)
        elif isinstance(item, float):
            value.type, value.as_.f64 = F64, float(item)
        else:
            raise TypeError(
                f"{type(item).__name__} is no value of weft: None, bool, int, float, str, bytes, tensors, RRefs and lists of these"
            )


def value_of(item, rref_of, read_only=False):
    """The Python object of one weft_value; tensors and references get a reference of their own."""
    kind = item.type
    if kind == TENSOR:
        return Tensor(lib.weft_tensor_ref(item.as_.tensor), read_only)
    if kind == F64:
        return item.as_.f64
    if kind == I64:
        return item.as_.i64
    if kind == BOOL:
        return item.as_.boolean
    if kind in (STRING, BYTES):
        data = ffi.buffer(ffi.cast("char *", item.as_.bytes.data), item.as_.bytes.size)[:] if item.as_.bytes.size else b""
        return data.decode(errors="surrogateescape") if kind == STRING else data
    if kind == TENSORS:
        tensors = item.as_.tensors
        return [Tensor(lib.weft_tensor_ref(tensors.items[i]), read_only) for i in range(tensors.count)]
    if kind == LIST:
        return values_of(item.as_.list, rref_of, read_only)
    if kind == RREF:
        return rref_of(lib.weft_rref_ref(item.as_.rref))
    return None


def values_of(args, rref_of, read_only=False):
    """The list of Python objects of a weft_args."""
    items = args.items
    return [value_of(items[i], rref_of, read_only) for i in range(args.count)]


def result_of(args, rref_of):
    """None, the value, or a tuple of several."""
    count = args.count
    if count == 1:
        return value_of(args.items[0], rref_of)
    return tuple(values_of(args, rref_of)) if count else None


def landing(places):
    """A weft_tensors for landing places, with what must live as long; each is writable."""
    if not isinstance(places, (tuple, list)):
        raise TypeError(f"land is a {type(places).__name__}: give a tuple of arrays")
    handles = []
    for i, place in enumerate(places):
        try:
            handles.append(Tensor(handle_of(place, writable=True)))
        except TypeError as error:
            raise TypeError(f"landing place {i}: {error}") from None
    items = ffi.new("weft_tensor *[]", [one._handle for one in handles])
    return items, handles
