#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""decisions_test.py - decisions.py itself, on a small tree: what it passes, and what it finds."""
import os
import subprocess
import sys
import tempfile

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "decisions.py")
ONE, TWO = "docs/decisions/001-one.md", "docs/decisions/002-two.md"
TREE = {ONE: "# 001: One lock guards all\n\nDate: 2026-11-21. Status: accepted; superseded in part by [002](002-two.md).\n\nText.\n",
        TWO: "# 002: Two locks guard it\n\nDate: 2026-11-22. Status: accepted.\n",
        "docs/decisions/README.md": "| [001](001-one.md) | One lock guards all | accepted; superseded in part by [002](002-two.md) |\n"
                                    "| [002](002-two.md) | Two locks guard it | accepted |\n",
        "README.md": "[why](docs/decisions/001-one.md), as decision 002 says.\n", "src/a.c": "/* docs/decisions/001 */\n"}


def said(changes):
    """What decisions.py says of the tree with some files changed, or without those that are None. None: all is well."""
    with tempfile.TemporaryDirectory() as root:
        for path, content in {**TREE, **changes}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            if content is not None:
                with open(os.path.join(root, path), "w") as file:
                    file.write(content)
        done = subprocess.run([CHECK, root], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout if done.returncode else None


def main():
    bad = 0
    for changes, wanted in [
            ({}, None),
            ({"docs/decisions/002-two-more.md": TREE[TWO]}, "002-two.md: 002-two-more.md has that number"),
            ({"docs/decisions/notes.md": ""}, "notes.md: is no page's name"),
            ({TWO: TREE[TWO].replace("# 002", "# 003")}, "002-two.md:1: the first line should be '# 002: "),
            ({TWO: TREE[TWO].replace("Two locks guard it", "locks")}, "002-two.md:1: "),
            ({TWO: TREE[TWO].replace("Date: 2026-11-22. ", "")}, "002-two.md:3: the third line should be"),
            ({TWO: TREE[TWO].replace("11-22", "13-22")}, "2026-13-22 is no date"),
            ({TWO: TREE[TWO].replace("accepted", "perhaps")}, "002-two.md:3: "),
            ({ONE: TREE[ONE].replace("002-two", "003-two")}, "001-one.md:3: the status refers to a page that is not there"),
            ({TWO: TREE[TWO].replace("Two", "Three")}, "there should be a row '| [002](002-two.md) | Three locks guard it | accepted |'"),
            ({"README.md": "decision 003"}, "README.md:1: there is no decision 003"),
            ({"README.md": "[001](docs/decisions/002-two.md)"}, "README.md:1: a link to 002-two.md says 001"),
            ({"README.md": "docs/decisions/002-one.md"}, "README.md:1: there is no 002-one.md"),
            ({"src/a.c": "/* docs/decisions/009 */"}, "src/a.c:1: there is no decision 009")]:
        got = said(changes)
        if (got is None) != (wanted is None) or wanted and wanted not in got:
            print("with %s: expected '%s', got: %s" % (changes, wanted, got))
            bad += 1
    return bad > 0


sys.exit(main())
