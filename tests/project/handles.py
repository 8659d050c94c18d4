#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""handles.py ROOT - every public function that is given objects begins with WFI_CHECK_HANDLE of them (src/base/handle.h), and
weft.hpp has an owner of each kind of object."""
import os
import re
import sys

API = re.compile(r"WEFT_API\b[^;]*?\b(weft_\w+)\s*\(")
DEFINITION = re.compile(r"^(?!static|typedef|#|/)[A-Za-z_][\w\s\*]*?\b(weft_\w+)\(([^;{}]*?)\)\s*\n\{\n", re.M)
KINDS = set("""agent batch call context data_parallel dist_optimizer error future group hooks job module optimizer rref sim
stream tape tensor values""".split())
PARAMETER = re.compile(r"\s*(?:const\s+)?(?:struct\s+)?weft_(\w+)\s*\*\s*(\w+)\s*")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def files(root, folders, ending):
    for folder in folders:
        for at, _, names in os.walk(os.path.join(root, folder)):
            yield from (os.path.join(at, name) for name in sorted(names) if name.endswith(ending))


def objects(parameters):
    """The names of the parameters that are pointers to objects. A callback's own parameters do not count."""
    flat = re.sub(r"\([^()]*\)", "", parameters)
    found = (PARAMETER.fullmatch(one) for one in flat.split(","))
    return [one.group(2) for one in found if one and one.group(1) in KINDS]


def main():
    root = sys.argv[1]
    public = {name for path in files(root, ["include/weft"], ".h") for name in API.findall(read(path))}
    seen, wrong = 0, 0
    for path in files(root, ["src", "providers"], ".c"):
        text = read(path)
        for function in DEFINITION.finditer(text):
            given = objects(function.group(2)) if function.group(1) in public else []
            if not given:
                continue
            seen += 1
            line = "    WFI_CHECK_HANDLE(%s);\n" % ", ".join(given)
            if not text.startswith(line, function.end()):
                wrong += 1
                print("%s: %s should begin with %s" % (os.path.relpath(path, root), function.group(1), line.strip()))
    owners = read(os.path.join(root, "include/weft/weft.hpp"))
    for kind in sorted(KINDS):
        if not re.search(r"\b(?:owned|counted|deferred)<weft_%s, " % kind, owners):
            wrong += 1
            print("include/weft/weft.hpp: there is no owner of a weft_%s" % kind)
    print("%d public functions are given objects, %d do not check them" % (seen, wrong))
    return 1 if wrong or seen < 200 else 0


sys.exit(main())
