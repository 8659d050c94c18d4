#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate.py - makes what the Python package needs to know of the C headers.

usage: generate.py INCLUDE OUT.py       the module weft._declarations, which cffi reads without a compiler
       generate.py INCLUDE OUT.c        a C program that prints the size of each struct, the offset of each field and
                                        the value of each enumerator, for the test that compares them

INCLUDE is the folder with weft/. The headers are preprocessed by the C compiler (CC, default cc). Needs python3-cffi.
"""
import os
import re
import subprocess
import sys
import tempfile

HEADERS = ("weft.h", "job.h")
STANDARD = ("stdbool.h", "stddef.h", "stdint.h", "stdio.h")  # cffi knows their types
# A weft_value as a parameter: libffi passes no unions. Any struct of more than 16 bytes is passed in the same way.
BY_VALUE = "typedef struct { int64_t words[3]; } weft_value_words;\n"
PYTHON_NAMES = {"as": "as_"}  # fields whose names are keywords


def preprocess(include):
    """The declarations of the headers, without what only a C compiler can use."""
    with tempfile.TemporaryDirectory() as folder:
        for name in STANDARD:
            open(os.path.join(folder, name), "w", encoding="ascii").close()
        lines = "".join(f"#include <weft/{name}>\n" for name in HEADERS if os.path.exists(f"{include}/weft/{name}"))
        command = [os.environ.get("CC", "cc"), "-E", "-P", "-nostdinc", "-U__GNUC__", "-I", folder, "-I", include, "-"]
        text = subprocess.run(command, input=lines, stdout=subprocess.PIPE, check=True, text=True).stdout
    return without_bodies(text)


def without_bodies(text):
    """Drops the inline functions."""
    out, at = [], 0
    for found in re.finditer(r"static inline\b[^;{]*\{", text):
        if found.start() < at:
            continue
        out.append(text[at:found.start()])
        at, depth = found.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
    return "".join(out) + text[at:]


def constants(include):
    """The macros that are whole numbers, as cffi takes them."""
    found = {}
    for name in sorted(os.listdir(f"{include}/weft")):
        if name.endswith(".h"):
            with open(f"{include}/weft/{name}", encoding="utf-8") as file:
                found.update(re.findall(r"^#define (WEFT_\w+) (?:U?INT64_C)?\(?(-?\d+)\)?(?:\s*/\*.*)?$", file.read(), re.M))
    return "".join(f"#define {name} {value}\n" for name, value in found.items())


def for_python(text):
    for name, python in PYTHON_NAMES.items():
        text = re.sub(rf"\b{name};", f"{python};", text)
    return text


def write_declarations(include, out):
    import cffi

    ffi = cffi.FFI()
    ffi.set_source("weft._declarations", None)
    ffi.cdef(constants(include) + for_python(preprocess(include)) + BY_VALUE)
    ffi.emit_python_code(out)


def c_fields(ffi, kind, path=""):
    """Yields the fields of a struct, including those of unnamed members."""
    for name, field in kind.fields or ():
        yield path + name, field
        if field.type.kind in ("struct", "union") and field.type.cname.split()[-1].startswith("$"):
            yield from c_fields(ffi, field.type, path + name + ".")


def write_program(include, out):
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(preprocess(include))
    typedefs, _, _ = ffi.list_types()
    lines = []
    for name in typedefs:
        kind = ffi.typeof(name) if name.startswith("weft_") else None
        if kind is None:
            continue
        if kind.kind == "enum":
            lines += [f'    printf("{e} = %d\\n", (int){e});' for e in kind.relements]
        elif kind.kind == "struct" and kind.fields is not None:
            lines.append(f'    printf("{name} %zu\\n", sizeof({name}));')
            lines += [f'    printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for field, _ in c_fields(ffi, kind)]
    with open(out, "w", encoding="ascii") as file:
        file.write("".join(f"#include <weft/{name}>\n" for name in HEADERS))
        file.write("#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{\n" + "\n".join(lines) + "\n    return 0;\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].endswith((".py", ".c")):
        sys.exit(__doc__)
    (write_declarations if sys.argv[2].endswith(".py") else write_program)(*sys.argv[1:])
