#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""decisions.py [ROOT] - the form of docs/decisions: numbers, titles, dates, statuses, the index; and who refers to them.

A page is called NNN-words.md and begins so:

    # NNN: What was decided

    Date: 2026-11-23. Status: accepted.

A status is "accepted" or "accepted; superseded in part by LINK", where LINK is [NNN](NNN-words.md). README.md there has a row for each. Anywhere in the tree "decision NNN", "decisions/NNN" and "NNN-words.md" name one that is there, and a link's text has
its page's number. Each complaint says what should stand there.
"""
import datetime
import os
import re
import sys

FOLDER = "docs/decisions"
TITLE = re.compile(r"# (\d{3}): ((?:[A-Z]|weft ).{9,79}[^.])")
HEAD = re.compile(r"Date: (\d{4}-\d\d-\d\d)\. Status: (.+)\.")
LINK = r"\[(\d{3})\]\(([\w-]+\.md)\)"
STATUS = re.compile(r"accepted|accepted; superseded in part by %s" % LINK)
PLACES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CMakeLists.txt", "docs", "src", "include", "providers", "tests", "tools",
          "examples", "perf", "cmake")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def check_numbers(pages):
    for before, page in zip(pages, pages[1:]):
        if before[:3] == page[:3]:
            yield "%s: %s has that number: a new decision takes the next one" % (page, before)


def check_page(page, pages):
    """The complaints about a page, and its row of the index."""
    lines = read(os.path.join(FOLDER, page)).split("\n") + ["", "", ""]
    title, head, wrong = TITLE.fullmatch(lines[0]), HEAD.fullmatch(lines[2]), []
    if not title or title.group(1) != page[:3]:
        wrong.append("1: the first line should be '# %s: What was decided', 11 to 81 characters, without a full stop" % page[:3])
    status = STATUS.fullmatch(head.group(2)) if head else None
    if not status or lines[1]:
        wrong.append("3: the third line should be 'Date: YYYY-MM-DD. Status: accepted.' or another status (see tests/project/decisions.py)")
    elif any(target and target not in pages for target in status.groups()[1::2]):
        wrong.append("3: the status refers to a page that is not there")
    if head:
        try:
            datetime.date.fromisoformat(head.group(1))
        except ValueError:
            wrong.append("3: %s is no date" % head.group(1))
    row = "| [%s](%s) | %s | %s |" % (page[:3], page, title.group(2) if title else "", head.group(2) if head else "")
    return wrong, row


def check_index(rows):
    lines = read(os.path.join(FOLDER, "README.md")).split("\n")
    found = [line for line in lines if line.startswith("| [")]
    for row in rows:
        if row not in found:
            yield "README.md: there should be a row '%s'" % row
    for row in found:
        if row not in rows:
            yield "README.md: a row that belongs to no page: '%s'" % row
    if not set(rows) ^ set(found) and found != rows:
        yield "README.md: the rows are not in order"


def check_references(path, pages):
    numbers = {page[:3] for page in pages}
    for at, line in enumerate(read(path).split("\n"), 1):
        for number in re.findall(r"\b[Dd]ecisions?[ /](\d{3})\b", line):
            if number not in numbers:
                yield "%s:%d: there is no decision %s" % (path, at, number)
        for text, number, name in re.findall(r"(?:\[(?:decisions/)?(\d{3})\]\([\w./]*?)?(?<![\w-])(\d{3})(-[a-z][a-z0-9-]+\.md)\b", line):
            if number + name not in pages:
                yield "%s:%d: there is no %s in %s" % (path, at, number + name, FOLDER)
            elif text and text != number:
                yield "%s:%d: a link to %s says %s" % (path, at, number + name, text)


def text_files():
    for place in PLACES:
        if os.path.isfile(place):
            yield place
        for folder, inner, names in os.walk(place):
            inner[:] = [name for name in inner if name not in ("build", "data", "corpus", "__pycache__")]
            yield from (os.path.join(folder, name) for name in names if not name.endswith((".png", ".svg", ".csv")))


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    pages = sorted(name for name in os.listdir(FOLDER) if re.fullmatch(r"\d{3}-[a-z][a-z0-9-]*\.md", name))
    others = sorted(set(os.listdir(FOLDER)) - set(pages) - {"README.md"})
    said = ["%s: is no page's name: NNN-words.md" % name for name in others] + list(check_numbers(pages))
    rows = []
    for page in pages:
        wrong, row = check_page(page, pages)
        said += ["%s:%s" % (page, what) for what in wrong]
        rows.append(row)
    said += check_index(rows)
    said = ["%s/%s" % (FOLDER, what) for what in said]
    for path in sorted(text_files()):
        if os.path.basename(path) not in ("decisions_test.py", "pages_test.py"): # which have trees of their own
            said += check_references(path, pages)
    print("\n".join(said) if said else "%d decisions, all in form" % len(pages))
    return bool(said)


sys.exit(main())
