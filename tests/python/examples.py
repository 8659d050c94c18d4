#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples.py WEFT_RUN SOURCES PROGRAMS HAS_FORTRAN - runs the programs of docs/python.md, docs/fortran.md and
docs/learned-field.md, and compares their output with that of the pages."""
import importlib.util
import os
import re
import subprocess
import sys

run, sources, programs, has_fortran = sys.argv[1:]
pages = os.path.join(sources, "..", "docs")
if importlib.util.find_spec("numpy") is None:
    print("NumPy is not installed")
    sys.exit(77)


def job(*command):
    env = {**os.environ, "WEFT_FABRIC": "host,tcp", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([run, "-n", "2", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, env=env)
    assert done.returncode == 0, done
    return done.stdout


def page(name):
    with open(os.path.join(pages, name), encoding="utf-8") as file:
        return file.read()


for name, file in (("python.md", "hello.py"), ("fortran.md", "hello.f90")):
    with open(os.path.join(sources, file), encoding="utf-8") as source:
        program = source.read()
    block = re.search(r"```(?:python|fortran)\n(.*?)```", page(name), re.S).group(1)
    shown = "\n".join(line for line in block.splitlines() if line.strip())
    whole = "\n".join(line for line in program.splitlines() if line.strip())
    assert shown in whole, f"{name} shows another program than {file}"

SUM = "[1] rank 1: the sum of 1000000 numbers is 499999500000\n"
assert job(sys.executable, os.path.join(sources, "hello.py")) == SUM
assert SUM in page("python.md") and SUM in page("fortran.md")
if has_fortran == "1":
    assert job(os.path.join(programs, "hello_f")) == SUM
if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed: learned_field is not run")
    sys.exit(0)
learner = f"exec {sys.executable} {sources}/learned_field.py"
out = job("sh", "-c", f"if [ $RANK = 0 ]; then exec {programs}/learned_field; else {learner}; fi")
errors = [float(one) for one in re.findall(r"prediction is ([0-9.]+) of the change", out)]
assert len(errors) == 8 and errors[-1] < 0.05 < errors[0], out
