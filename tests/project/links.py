#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""links.py FOLDER - the installed pages in FOLDER: each relative link leads to a file in FOLDER, and the pages that
users read first name no file that is only in the source tree. README.md begins with a program of FOLDER/examples."""
import os
import re
import sys

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
# A path of the source tree, in the text or in a command.
FOLDERS = "src|providers|tests|tools|perf|cmake|packaging|build"
SOURCE = re.compile(r"(?<![\w./<>-])(?:(?:%s)/[\w.*/-]+|CONTRIBUTING\.md)" % FOLDERS)
FIRST = ("README.md", "docs/README.md", "docs/deployment.md", "docs/environment.md", "docs/from-mpi.md",
         "docs/weft-run.md", "docs/weft-info.md", "docs/weft-perf.md", "docs/weft-trace.md", "docs/troubleshooting.md")


def named_sources(root):
    """Paths of the source tree on the first pages, unless the paragraph, or the one before, says that they are there."""
    for page in FIRST:
        with open(os.path.join(root, page), encoding="utf-8") as file:
            paragraphs = file.read().split("\n\n")
        for before, text in zip([""] + paragraphs, paragraphs):
            found = SOURCE.findall(text)
            if found and "source tree" not in before + text:
                yield "%s names %s, which is not installed" % (page, ", ".join(found))
        if "<!--" in "".join(paragraphs):
            yield "%s has a mark of the source tree" % page


def begins_with_program(root):
    """The first commands of README.md compile an example that is there."""
    with open(os.path.join(root, "README.md"), encoding="utf-8") as file:
        commands = re.search(r"```console\n(.*?)```", file.read(), re.S).group(1)
    source = re.search(r"^\$ cc (\S+) -o", commands, re.M)
    if not source or not os.path.isfile(os.path.join(root, "examples", os.path.basename(source.group(1)))):
        yield "README.md begins with other commands: %s" % commands


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
    for wrong in [*named_sources(root), *begins_with_program(root)]:
        broken += 1
        print(wrong)
    if links < 100:
        broken += 1
        print("%s has %d links: are these the pages?" % (root, links))
    return broken > 0


sys.exit(main(sys.argv[1]))
