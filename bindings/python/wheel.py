#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wheel.py - makes the wheel of the Python package, py3-none-any, without the library.

usage: wheel.py PACKAGE INCLUDE OUT
  PACKAGE  the folder weft with _declarations.py: build/release/python/weft, or an installed one
  INCLUDE  the folder with weft/base.h, which has the version
  OUT      the folder for the wheel

`pip install` then needs cffi, and libweft of the same version at run time.
"""
import base64
import hashlib
import os
import re
import sys
import zipfile


def version(include):
    with open(os.path.join(include, "weft", "base.h"), encoding="utf-8") as file:
        return ".".join(re.findall(r"#define WEFT_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", file.read()))


def main(package, include, out):
    number = version(include)
    info = f"weft-{number}.dist-info"
    files = {}
    for name in sorted(os.listdir(package)):
        if name.endswith(".py"):
            with open(os.path.join(package, name), "rb") as file:
                files[f"weft/{name}"] = file.read()
    if "weft/_declarations.py" not in files:
        sys.exit(f"wheel.py: {package} has no _declarations.py: build weft first, with python3-cffi")
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: weft\nVersion: {number}\nSummary: Remote calls that carry tensors, on libweft\n"
        "License: Apache-2.0\nRequires-Python: >=3.11\nRequires-Dist: cffi >=1.15\n\n"
        "The package loads libweft.so.0: set WEFT_LIBRARY to its path, if the loader does not find it.\n"
    ).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: wheel.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = os.path.join(out, f"weft-{number}-py3-none-any.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
