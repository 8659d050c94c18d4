#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""table.py ROOT - docs/conformance.md and the tests say the same.

Every item 1..84 stands in the list once; each test that the page names exists and is run; each test of tests/conformance is
named by the page.
"""
import pathlib
import re
import sys

ITEMS = range(1, 85)
root = pathlib.Path(sys.argv[1])
page = (root / "docs/conformance.md").read_text()
sources = {path.name: path.read_text() for path in root.glob("tests/*/*.c")}
problems = []


def run_by(text):
    """The tests that a program hands to cmocka."""
    mains = re.findall(r"^UNIT_MAIN(?:_WITH)?\(([^()]*)\)", text, re.MULTILINE)
    return set(re.findall(r"cmocka_unit_test\w*\(\s*(\w+)", text)) | set(re.findall(r"\w+", " ".join(mains)))


def check_items():
    rows = re.findall(r"^\| *(\d+) \|.*?\|(.*?)\|(.*?)\|$", page, re.MULTILINE)
    seen = [int(number) for number, _, _ in rows]
    for item in ITEMS:
        if seen.count(item) != 1:
            problems.append(f"item {item} stands in the list {seen.count(item)} times")
    for number, test, why in rows:
        if f":item_{number}_" not in test and not ("none" in test and why.strip()):
            problems.append(f"item {number}: neither a test of its own nor a reason for none")
    problems.extend(f"item {number} is none" for number in seen if number not in ITEMS)


def check_named():
    for file, name in re.findall(r"`(test_\w+\.c)(?::(\w+))?`", page):
        if file not in sources:
            problems.append(f"{file} is not there")
        elif name and name not in run_by(sources[file]):
            problems.append(f"{file} does not run {name}")


def check_complete():
    for path in sorted(root.glob("tests/conformance/*.c")):
        run = run_by(path.read_text())
        written = set(re.findall(r"\b(?:(?:CONTEXT_)?ITEM\(|static void )((?:item_\d+|case)_\w+)", path.read_text()))
        problems.extend(f"{path.name}: {name} is written and not run" for name in sorted(written - run))
        problems.extend(f"{path.name}:{name} is not on the page" for name in sorted(run)
                        if f"`{path.name}:{name}`" not in page)


check_items()
check_named()
check_complete()
print("\n".join(problems) or f"{len(ITEMS)} items, each with its test or its reason")
sys.exit(bool(problems))
