# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: files in the format safetensors."""
import os

from weft._errors import check
from weft._library import NULL, ffi, lib
from weft._tensor import Tensor, handle_of


def load(path):
    """The tensors of a safetensors file of any program, by name."""
    out = ffi.new("weft_named_tensors **")
    error = ffi.new("weft_error **")
    check(lib.weft_tensors_load(os.fsencode(path), out, error), error)
    found = out[0]
    try:
        return {
            ffi.string(found.names[i]).decode(): Tensor(lib.weft_tensor_ref(found.tensors.items[i]))
            for i in range(found.tensors.count)
        }
    finally:
        lib.weft_tensors_free(found)


def save(path, tensors):
    """Writes a dict of arrays by name. An old file is unchanged until the new one is whole."""
    kept, handles = [ffi.new("char[]", name.encode()) for name in tensors], []
    for name, array in tensors.items():
        try:
            handles.append(Tensor(handle_of(array)))
        except TypeError as error:
            raise TypeError(f"{name!r}: {error}") from None
    items = ffi.new("weft_tensor *[]", [one._handle for one in handles] or [NULL])
    names = ffi.new("char *[]", kept or [NULL])
    error = ffi.new("weft_error **")
    check(lib.weft_tensors_save(os.fsencode(path), names, (items, len(handles)), error), error)
