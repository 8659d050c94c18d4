#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""variables.py ROOT - the variables WEFT_... that weft knows (src/base/text/variables.c), that docs/environment.md lists, and that
the library and the programs read are the same. So are the variables of launchers (src/base/launchers.c) and the table of that page."""
import os
import re
import sys

NAME = r"WEFT_[A-Z0-9_]+"


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def known(root):
    table = re.search(r"known\[\] = \{(.*?)\};", read(root, "src/base/text/variables.c"), re.S)
    return set(re.findall('"(%s)"' % NAME, table.group(1)))


def listed(root):
    rows = [line.split("|")[1] for line in read(root, "docs/environment.md").splitlines() if line.startswith("| `")]
    return set(re.findall("`(%s)`" % NAME, " ".join(rows)))


def enumerators(root):
    """Names that the headers declare: a string may have one of these."""
    folder = os.path.join(root, "include/weft")
    return set(re.findall(r"\b%s\b" % NAME, " ".join(read(folder, name) for name in os.listdir(folder)))) - known(root)


def used(root):
    """Strings that are such a name alone, in C, with the file."""
    for folder in ("src", "providers", "programs", "bindings", "examples", "perf"):
        for at, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(at, name), root)
                if name.endswith((".c", ".h", ".cpp", ".py")) and path != "src/base/text/variables.c":
                    for found in re.findall('"(%s)"' % NAME, read(root, path)):
                        yield found, path


def launchers(root):
    """For each launcher the variables of the page's columns: rank, size, local_size, local_rank."""
    table = re.search(r"wfi_launchers\[\] = \{(.*?)\{0\}\};", read(root, "src/base/launchers.c"), re.S).group(1)
    for row in table.split(".name = ")[1:]:
        fields = [re.search(r"\.%s = (\{.*?\}|\".*?\")" % field, row, re.S) for field in ("rank", "size", "local_size", "local_rank")]
        found = [set(re.findall(r"[A-Z0-9]+_?[A-Z0-9_]+", field.group(1))) if field else set() for field in fields]
        if "SLURM_PROCID" in found[0]:  # lists of numbers, which have a function of their own
            found[2] = set(re.findall(r'"(SLURM_\w+)"', read(root, "src/topo/quota.c")))
        yield found


def listed_launchers(root):
    lines = read(root, "docs/environment.md").split("| launcher |")[1].split("\n\n")[0].splitlines()[2:]
    return [[set(re.findall(r"`([A-Z0-9_]+)`", cell)) for cell in line.split("|")[2:6]] for line in lines]


def main():
    root = sys.argv[1]
    names, pages, declared = known(root), listed(root), enumerators(root)
    wrong = ["%s is known, and docs/environment.md has no row of it" % name for name in sorted(names - pages)]
    wrong += ["%s has a row in docs/environment.md, and is not known" % name for name in sorted(pages - names)]
    uses = {name: path for name, path in used(root) if name not in declared}
    wrong += ["%s: %s is not known" % (uses[name], name) for name in sorted(set(uses) - names)]
    wrong += ["%s is known, and nothing reads it" % name for name in sorted(names - set(uses))]
    known_launchers, page = list(launchers(root)), listed_launchers(root)
    wrong += ["launchers.c has %s, and docs/environment.md has %s in that row" % pair for pair in zip(known_launchers, page) if pair[0] != pair[1]]
    if len(known_launchers) != len(page) or len(page) < 5:
        wrong.append("launchers.c has %d launchers, and docs/environment.md has %d" % (len(known_launchers), len(page)))
    print("\n".join(wrong + ["%d variables, %d of which are read" % (len(names), len(set(uses) & names))]))
    return 1 if wrong or len(names) < 15 else 0


sys.exit(main())
