#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""architecture_test.py ARCHITECTURE - tools/architecture itself, on a small tree: which arrows it draws, and what it finds amiss."""
import os
import shutil
import subprocess
import sys
import tempfile

TREE = {"tests/project/layers.txt": "# a comment\nbase:\nmem: base\nproviders: mem\nnet/low: providers\nnet/high: net/low\nrpc: net/high\n",
        "src/base/log.h": "", "src/mem/mem.h": '#include "base/log.h"\n#include <weft/base.h>\n',
        "providers/fabric.h": '#include "mem/mem.h"\n#include "base/log.h"\n',
        "src/net/low/low.h": '#include "fabric.h"\n', "src/net/low/low.c": '#include "low.h"\n#include "net/high/high.h"\n',
        "src/net/high/high.h": '  #  include "net/low/low.h"\n', "src/rpc/rpc.c": '#include "net/high/high.h"\n#include "mem/mem.h"\n',
        "docs/architecture.md": "```mermaid\n```\n" + "".join("**`%s`**\n" % name for name in (
            "src/base", "src/mem", "providers", "src/net/low", "src/net/high", "src/rpc"))}
ARROWS = "net/high > net/low\nmem > base\nnet > providers\nproviders > mem\nrpc > net\n"  # up, and what follows from others: left out


def run(root, *options):
    done = subprocess.run([os.path.join(root, "tools/architecture"), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env={**os.environ, "PYTHONHASHSEED": str(len(options))})
    return done.returncode, done.stdout


def write(root, path, text):
    os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    with open(os.path.join(root, path), "w") as file:
        file.write(text)


def main():
    wrong = []

    def expect(what, got, code, text):
        if got[0] != code or text not in got[1]:
            wrong.append("%s: expected exit %d and '%s', got %d and '%s'" % (what, code, text, *got))

    with tempfile.TemporaryDirectory() as root:
        for path, text in TREE.items():
            write(root, path, text)
        os.makedirs(os.path.join(root, "tools"))
        shutil.copy(sys.argv[1], os.path.join(root, "tools/architecture"))
        expect("the arrows", run(root, "--list"), 0, ARROWS)
        expect("without a figure", run(root, "--check"), 1, "not current")
        expect("drawing", run(root), 0, "")
        expect("the figure just drawn", run(root, "--check"), 0, "is current, and docs/architecture.md has all 6 folders")
        write(root, "src/net/low/more.c", '#include "mem/mem.h"\n')
        expect("an include that follows from others", run(root, "--check"), 0, "is current")
        write(root, "src/optim/optim.c", "")
        expect("a folder that the page lacks", run(root, "--check"), 1, "has no paragraph **`src/optim`**")
        write(root, "tests/project/layers.txt", TREE["tests/project/layers.txt"] + "coll: net/high\nnet/low: coll\n")
        write(root, "src/coll/coll.h", '#include "net/high/high.h"\n')
        write(root, "src/net/low/more.c", '#include "coll/coll.h"\n')
        expect("boxes that rest on each other", run(root), 1, "rests on itself")
    print("\n".join(wrong))
    return bool(wrong)


sys.exit(main())
