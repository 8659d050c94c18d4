#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""links.py FOLDER - each relative link of the pages in FOLDER leads to a file in FOLDER."""
import os
import re
import sys

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


def main(root):
    root = os.path.realpath(root)
    pages = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names if name.endswith(".md")]
    links = broken = 0
    for page in pages:
        with open(page, encoding="utf-8") as file:
            for target in LINK.findall(file.read()):
                links += 1
                path = os.path.realpath(os.path.join(os.path.dirname(page), target))
                if not path.startswith(root + "/") or not os.path.exists(path):
                    broken += 1
                    print("%s links to %s, which is not installed" % (os.path.relpath(page, root), target))
    if links < 100:
        broken += 1
        print("%s has %d links: are these the pages?" % (root, links))
    return broken > 0


sys.exit(main(sys.argv[1]))
