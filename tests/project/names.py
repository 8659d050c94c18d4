#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""names.py ROOT - names of the public headers: each enumerator begins with the name of its type, and a test calls each function.

The type weft_member_event may have enumerators WEFT_MEMBER_EVENT_... or WEFT_MEMBER_...: the last word may be missing. The
exception is weft_status. A function has a test if its name stands in a C, C++ or Python file under tests/. A test
of the inline function `name` is one of name_sized.
"""
import os
import re
import sys

ENUM = re.compile(r"typedef enum (weft_\w+) \{(.*?)\} \1;", re.S)
FUNCTION = re.compile(r"^WEFT_API\b[^;(]*?\b(weft_\w+?)(?:_sized)?\(", re.M)
COMMENT = re.compile(r"/\*.*?\*/", re.S)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def prefixes(name):
    words = name.upper().split("_")
    return ("_".join(words) + "_",) + (("_".join(words[:-1]) + "_",) if len(words) > 2 else ())


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) == 2 else 2
    root, bad = sys.argv[1], []
    tested = set()
    for folder, _, names in os.walk(os.path.join(root, "tests")):
        for name in names:
            if name.endswith((".c", ".h", ".cc", ".cu", ".py")):
                tested.update(re.findall(r"\bweft_\w+", read(os.path.join(folder, name))))
    include = os.path.join(root, "include", "weft")
    functions = 0
    for header in sorted(os.listdir(include)):
        text = COMMENT.sub("", read(os.path.join(include, header)))
        for name, body in ENUM.findall(text):
            for enumerator in re.findall(r"\b(WEFT_\w+)\s*=", body):
                if name != "weft_status" and not enumerator.startswith(prefixes(name)):
                    bad.append(f"{header}: {enumerator} of {name} should begin with {prefixes(name)[-1]}")
        for name in FUNCTION.findall(text):
            functions += 1
            if name not in tested:
                bad.append(f"{header}: no test names {name}")
    print("\n".join(bad) or f"{functions} functions, all in tests; all enumerators have the names of their types")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
