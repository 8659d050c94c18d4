#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mutants.py ROOT - each entry of tests/mutants/*.txt finds its place in the tree, as moves make the
lists stale."""
import importlib.machinery
import importlib.util
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("mutants", str(root / "tools" / "long.d" / "mutants"))
mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
loader.exec_module(mutants)

listed = mutants.read_lists()
wrong = [] if listed else ["tests/mutants: no list has an entry"]
by_file = {}
for mutant in listed:
    by_file.setdefault(mutant.file, []).append(mutant)
for name, there in by_file.items():
    path = root / name
    if not path.is_file():
        wrong += [f"mutants: {m.name}: no file {name}" for m in there]
        continue
    text = path.read_text(encoding="utf-8")
    placed = []
    for mutant in there:
        try:
            begin, end = mutant.place(text)
        except SystemExit as stale:
            wrong.append(str(stale))
            continue
        if re.match(r"\w\w", text[begin - 1:begin + 1]) or re.match(r"\w\w", text[end - 1:end + 1]):
            wrong.append(f"mutants: {mutant.name}: '{mutant.old}' is only a part of a longer word in {name}")
        placed.append(mutant)
    try:
        mutants.with_mutants(text, placed)
    except SystemExit as overlap:
        wrong.append(str(overlap))
if wrong:
    sys.exit("\n".join(wrong))
