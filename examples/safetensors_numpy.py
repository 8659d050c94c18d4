# SPDX-License-Identifier: Apache-2.0
"""safetensors_numpy.py - reads and writes files of weft_module_save and weft_optimizer_save with numpy alone; docs/files.md.

bfloat16, which numpy does not have, is read as the uint16 of its bits.
"""
import json

import numpy

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
          "U8": "u1", "BOOL": "?", "C64": "<c8"}


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(data[slice(*t["data_offsets"])], DTYPES[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


def write(path, tensors):
    names = {numpy.dtype(code): name for name, code in DTYPES.items() if name != "BF16"}
    header, data = {}, b""
    for name, x in tensors.items():
        bytes_of_x = x.tobytes()
        header[name] = {"dtype": names[x.dtype], "shape": x.shape, "data_offsets": [len(data), len(data) + len(bytes_of_x)]}
        data += bytes_of_x
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
