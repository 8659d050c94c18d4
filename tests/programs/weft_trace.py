#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft_trace.py PROGRAM - runs weft-trace as its users do. tests/rpc/test_rpc_trace.c merges real traces."""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])


def run(*args, code=0, **how):
    how = {"stdout": subprocess.PIPE, **how}
    done = subprocess.run([PROGRAM, *args], stderr=subprocess.PIPE, text=True, timeout=30, check=False, **how)
    assert done.returncode == code, (args, done)
    return done


def trace(path, host, rank, tail, **more):
    anchor = {"ph": "M", "name": "weft_anchor", "args": {"host": host, "clock_ns": "1000", "realtime_ns": f"{rank}000001000", **more}}
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + json.dumps(anchor) + ",\n" + json.dumps({"ph": "X", "name": "x", "ts": 5, "pid": rank}) + tail)
    return path


def check_usage():
    text = run("--help").stdout
    assert text == run("-h").stdout and text.startswith("weft-trace - ") and "\nusage: weft-trace [options] FILE...\n" in text
    assert run("--version").stdout.split()[1].replace(".", "").isdigit()
    for args, words in (((), "no file"), (("--out", "x"), "unknown option '--out'"), (("x", "-o"), "-o needs a value")):
        assert words in run(*args, code=2).stderr


def check_files(folder):
    a, b = trace(folder + "/a", "one", 1, "\n]\n"), trace(folder + "/b", "two", 4, ",\n{\"ph\":")  # the writer of b died
    merged = json.loads(run(a, b).stdout)
    assert [event["ts"] for event in merged if "ts" in event] == [5, 3000005.0], merged
    c = trace(folder + "/c", "one", 4, "\n]\n", clock="boot1/7")  # one name of a host, two machines; and the reverse
    d = trace(folder + "/d", "one", 5, "\n]\n", clock="boot2/7")
    e = trace(folder + "/e", "two", 6, "\n]\n", clock="boot1/7")
    assert [event["ts"] for event in json.loads(run(c, d, e).stdout) if "ts" in event] == [5, 1000005.0, 5]
    for option in (("--output", folder + "/all"), ("--output=" + folder + "/all",), ("-o", folder + "/all")):
        assert run(*option, a, b).stdout == ""
        with open(folder + "/all", encoding="utf-8") as file:
            assert json.load(file) == merged
        os.unlink(folder + "/all")
    assert "b has no end: its worker was killed" in run(a, b).stderr
    assert run(folder + "/nowhere", code=1).stderr == f"weft-trace: {folder}/nowhere: No such file or directory\n"
    for text in (b"[]\n", b"", b"hello\n", b'{"a":1}', b"\xea\x00]", b"[1]"):
        with open(folder + "/other", "wb") as file:
            file.write(text)
        assert "other is no trace of weft" in run(a, folder + "/other", code=1).stderr, text
    assert "is named twice" in run(a, a, code=2).stderr
    assert "is one of the traces" in run("-o", a, a, b, code=2).stderr
    assert "weft-trace: /dev/full: No space left on device" in run("-o", "/dev/full", a, code=1).stderr
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert run(a, code=1, stdout=full).stderr == "weft-trace: standard output: No space left on device\n"


if __name__ == "__main__":
    check_usage()
    with tempfile.TemporaryDirectory() as made:
        check_files(made)
