#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pages_test.py - pages.py itself, on a small tree: what it passes, and what it finds."""
import os
import subprocess
import sys
import tempfile

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pages.py")
TOUR = "`src/rpc/call.c: weft_call, start, table, part, MOST` and `include/weft/call.h: weft_call`\n"
CODE = """\
/* call.c - calls; the queue is in src/rpc/call.c. */
#include "rpc/call.h"
#define MOST 3
struct part {
    int size;
};
static const part table[] = {{1}};
static void start(part *one,
                  part *other)
{
    one->size = stop(other);
}
int weft_call(part *one)
{
    return register("weft:fetch") || register(one, "weft:kind:%s");
}
"""
WIRE = "`weft:fetch` takes a name, `weft:kind:NAME` makes one.\n"
HEADER = "/* call.h */\nint weft_call(part *one); /* docs/decisions/001 says why */\n"
TREE = {"README.md": "See [the tour](docs/tour.md) and `tools/check`, `rpc/call.c`, `weft_call`, src/*/call.c.\n",
        "CONTRIBUTING.md": "", "docs/tour.md": TOUR, "docs/wire.md": WIRE, "docs/decisions/001-one.md": "`weft_gone` was there.\n",
        "src/rpc/call.c": CODE, "include/weft/call.h": HEADER, "tools/check": ""}


def said(page, text):
    """What pages.py says of the tree where a page has a text besides; None: all is well."""
    with tempfile.TemporaryDirectory() as root:
        for path, content in TREE.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w") as file:
                file.write((text + content if page == path else content))
        done = subprocess.run([CHECK, root], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout if done.returncode else None


def main():
    bad = 0
    for page, text, wanted in [
            ("README.md", "", None),
            ("README.md", "[this](docs/none.md)\n", "a link to docs/none.md"),
            ("README.md", "src/rpc/queue.c\n", "src/rpc/queue.c is not there"),
            ("README.md", "`rpc/queue.c`\n", "no file's path ends in rpc/queue.c"),
            ("README.md", "`src/rpc/call.c: stop`\n", "does not define stop"),
            ("README.md", "`src/rpc/call.c: one`\n", "does not define one"),
            ("README.md", "`weft_gone`\n", "weft_gone is nowhere"),
            ("docs/decisions/001-one.md", "src/gone.c\n", "src/gone.c is not there"),
            ("docs/tour.md", "".join("src/%d.c " % i for i in range(20)), "the path of a call has 22 files"),
            ("src/rpc/call.c", 'static const char name[] = "weft:made";\n', "docs/wire.md does not describe `weft:made`"),
            ("src/rpc/call.c", 'static const char name[] = "weft:fetch_all";\n', "does not describe `weft:fetch_all`"),
            ("src/rpc/call.c", 'static const char name[] = "weft:fetch";\n', None),
            ("src/rpc/call.c", 'static const char name[] = "weft:other:";\n', "does not describe `weft:other:`"),
            ("src/rpc/call.c", 'log("weft: %s");\n', None),
            ("tools/call.c", 'static const char name[] = "weft:test";\n', None),
            ("src/rpc/call.c", "/* src/rpc/queue.c has it */\n", "src/rpc/queue.c is not there"),
            ("src/rpc/call.c", "/* queue.c has it */\n", "no file is called queue.c"),
            ("include/weft/call.h", "/* docs/decisions/002 */\n", "docs/decisions/002 is not there")]:
        got = said(page, text)
        if (got is None) != (wanted is None) or wanted and wanted not in got:
            print("%s with '%s': expected '%s', got: %s" % (page, text.strip(), wanted, got))
            bad += 1
    return bad


sys.exit(main() > 0)
