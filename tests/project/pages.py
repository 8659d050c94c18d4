#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pages.py [ROOT] - what the pages name is there: README, CONTRIBUTING, everything in docs/; and the files that comments name.

- A link leads to a file or folder of the tree.
- A path that begins with a folder of the root (src/rpc/client/async.c, tools/check) exists; `*` stands for anything. Programs may be
  named without .c. In `code` a file may be named by the end of its path (client/async.c).
- `PATH: name, name` in code says that the file at PATH, or with that end, defines these functions, types, macros, tables
  or tests (a header: declares them).
- A name in code (weft_agent, WEFT_FABRIC, bytes_held) stands somewhere in the sources. Not in docs/decisions, which tell what was;
  and on the pages about libfabric's inside those of weft alone.
- A comment of the C sources that names a path or a C file: the same.
- docs/tour.md: the path of a call has at most 20 files.
- docs/wire.md describes each function of weft's own: each string "weft:NAME" of the C sources in src/ stands there in `code`.
"""
import glob
import os
import re
import sys

TOUR, MOST, WIRE = "docs/tour.md", 20, "docs/wire.md"
FOLDERS = "src|providers|include|programs|bindings|tests|tools|examples|perf|docs|cmake"
PATH = re.compile(r"(?<![\w./<>-])((?:%s)/[\w./*-]*[\w*/])" % FOLDERS)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([^`]+)`")
PLACE = re.compile(r"([\w/.-]+\.(?:[chu]+|sh|py)): ?(\w+(?:, \w+)*)")
OURS = re.compile(r"\b(?:weft|wfi|wfofi|WEFT|WFI)_\w*[^\W_]\b(?!\*)")
NAMED = re.compile(r"(?<![\w/.%$-])[A-Za-z]+_\w*[^\W_]\b(?![*/.-])")
RESERVED = re.compile(r'"(weft:[a-z_]+:?)')
SOURCES = (".c", ".h", ".hpp", ".cu", ".f90", ".py", ".sh", ".in", ".txt", ".cmake")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def files_of(folders):
    for folder in folders:
        for at, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if name not in ("build", "__pycache__")]
            yield from (os.path.normpath(os.path.join(at, name)) for name in names)


def defines(path, name):
    """Whether a file defines that name, in column 0; in a header it may be declared, or be a constant."""
    forms = [r"^(?![\s#/*])[^;={}()]*\b%s\s*\([^;{}]*\)\s*(?:\{|$)", # a function
             r"^(?:typedef )?(?:struct|enum|union) %s \{", r"^\}\s*%s;", r"^typedef [^{};]*\b%s\b[^{};]*;", # a type
             r"^#\s*define %s\b", r"^(?![\s#/*])[^=;()]*\b%s(?:\[\w*\])? = ", # a macro, a table
             r"\bcmocka_unit_test\w*\(%s[,)]", r"^UNIT_MAIN(?:_WITH)?\([^()]*\b%s\b[^()]*\)"] # a test
    if path.endswith(".h"):
        forms += [r"^(?![\s#/*])[^;={}()]*\b%s\s*\(", r"^\s+%s(?: = [^,{}]*)?,"]
    return any(re.search(form % name, read(path), re.M) for form in forms)


class Tree:
    def __init__(self):
        self.files = set(files_of(FOLDERS.split("|"))) | {name for name in os.listdir(".") if os.path.isfile(name)}
        self.words = set()
        for path in self.files:
            if path.endswith(SOURCES):
                self.words |= set(re.findall(r"\w+", read(path)))

    def has(self, path):
        path = path.rstrip("/.")
        return any(glob.glob(path + end) for end in ("", ".c", "-*.md")) # docs/decisions/003 is a page, too

    def ending(self, path):
        return [path] if path in self.files else [file for file in self.files if file.endswith("/" + path)]


def check_line(tree, page, line):
    """What is wrong with a line."""
    for link in LINK.findall(line):
        if "://" not in link and not os.path.exists(os.path.join(os.path.dirname(page), link)):
            yield "a link to %s, which is not there" % link
    for path in PATH.findall(line):
        if not tree.has(path):
            yield "%s is not there" % path
    for code in CODE.findall(line):
        place = PLACE.fullmatch(code)
        if place:
            paths = tree.ending(place.group(1))
            if not paths:
                yield "no file's path ends in %s" % place.group(1)
            for name in place.group(2).split(", "):
                if paths and not any(defines(path, name) for path in paths):
                    yield "%s does not define %s" % (place.group(1), name)
        elif re.fullmatch(r"[\w/.-]+\.[ch]", code) and not tree.ending(code):
            yield "no file's path ends in %s" % code
        if not page.startswith("docs/decisions/"):
            for name in (OURS if re.match(r"docs/(libfabric|upstream)", page) else NAMED).findall(code):
                if name not in tree.words:
                    yield "%s is nowhere in the sources" % name


def check_comments(tree, text):
    """What is wrong with a C file: yields line numbers and words."""
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*#\s*include|[^/*]*\"[^\"]*/", line):
            continue
        for path in PATH.findall(line):
            if not tree.has(path):
                yield "%d: %s is not there" % (number, path)
        for name in re.findall(r"(?<![\w/.])([a-z_]+\.[ch])\b", line) if re.match(r"\s*\*|\s*//|.*/\*", line) else ():
            if not tree.ending(name):
                yield "%d: no file is called %s" % (number, name)


def check_tour(text):
    """A call's path may name only a few files."""
    files = set(re.findall(r"[\w/]+\.[ch]\b", text))
    if not files:
        yield "the path of a call names no file"
    if len(files) > MOST:
        yield "the path of a call has %d files, %d at most" % (len(files), MOST)


def check_reserved(page, text):
    """The functions of weft's own in a C file that docs/wire.md does not describe: yields line numbers and words."""
    for number, line in enumerate(text.split("\n"), 1):
        for name in RESERVED.findall(line):
            if not re.search("`" + name + "(?![a-z_])", page):
                yield "%d: %s does not describe `%s`" % (number, WIRE, name)


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    tree, said = Tree(), []
    pages = sorted(["README.md", "CONTRIBUTING.md"] + [file for file in tree.files if re.match(r"docs/.*\.md$", file)])
    for page in pages:
        text = read(page)
        wrong = ["%d: %s" % (number, what) for number, line in enumerate(text.split("\n"), 1) for what in check_line(tree, page, line)]
        if page == TOUR:
            wrong += ["1: " + what for what in check_tour(text)]
        said += ["%s:%s" % (page, what) for what in wrong]
    wire = read(WIRE) if WIRE in tree.files else ""
    for file in sorted(tree.files):
        if file.endswith((".c", ".h", ".cu")):
            said += ["%s:%s" % (file, what) for what in check_comments(tree, read(file))]
            said += ["%s:%s" % (file, what) for what in check_reserved(wire, read(file)) if file.startswith("src/")]
    for what in said:
        print(what)
    print("%d pages, and all comments; %d things that they name are not there" % (len(pages), len(said)))
    return bool(said)


sys.exit(main())
