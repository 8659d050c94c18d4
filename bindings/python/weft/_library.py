# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libweft."""
import os
import subprocess

from weft._declarations import ffi

_SONAME = "libweft.so.0"  # for which _declarations was generated


def _candidates():
    if os.environ.get("WEFT_LIBRARY"):
        yield os.environ["WEFT_LIBRARY"]
        return
    yield _SONAME
    try:
        command = ["pkg-config", "--variable=libdir", "weft"]
        folder = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout
        yield os.path.join(folder.strip(), _SONAME)
    except (OSError, subprocess.CalledProcessError):
        pass


def _load():
    reasons = []
    for path in _candidates():
        try:
            found = ffi.dlopen(path)
            version = found.weft_version_number()
        except (OSError, AttributeError, ffi.error) as error:
            reasons.append(f"{path}: {error}")
            continue
        wanted = found.WEFT_VERSION_MAJOR * 10000 + found.WEFT_VERSION_MINOR * 100
        if version // 100 != wanted // 100:  # another minor version may have another ABI before 1.0
            raise ImportError(
                f"{path} is weft {ffi.string(found.weft_version()).decode()}, but this package is for "
                f"{found.WEFT_VERSION_MAJOR}.{found.WEFT_VERSION_MINOR}: install both from one release, or set WEFT_LIBRARY"
            )
        return found
    raise ImportError(
        f"no {_SONAME} ({'; '.join(reasons)}): install weft, or set WEFT_LIBRARY to the path of the library"
    )


lib = _load()
NULL = ffi.NULL


class Process:
    """Tells objects that were made in this process from those of its parent. A child of fork() has a new `number`."""

    number = 0


def _forked():
    Process.number += 1


os.register_at_fork(after_in_child=_forked)
