#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""spack.py ROOT CMAKE - the Spack recipe, read with a small stand-in for Spack.

- Its configure lines, for each combination of variants, set only what CMake's files declare, with values that these take.
- Without CUDA, CMake configures with these lines, and warns of none that is not used.
- It asks for the versions that CMake's files ask for.
"""
import glob
import itertools
import os
import re
import subprocess
import sys
import tempfile
import types

RECIPE = "packaging/spack/spack_repo/weft/packages/weft/package.py"
VALUES = {"cuda_arch": [("80",), ("80", "90")]} # of variants that are not on or off
wrong = []


class Recipe:
    """What both Spack's base classes are here."""
    variants, depends = {"cuda": False, "cuda_arch": "none"}, [] # CudaPackage adds these two

    def __init__(self, chosen):
        self.chosen = chosen
        self.spec = self
        self.variants = {name: types.SimpleNamespace(value=value) for name, value in chosen.items()}

    def satisfies(self, condition):
        return self.chosen[condition[1:]] == {"+": True, "~": False}[condition[0]]

    @staticmethod
    def define(name, value):
        if isinstance(value, bool):
            return "-D%s:BOOL=%s" % (name, "ON" if value else "OFF")
        return "-D%s:STRING=%s" % (name, value if isinstance(value, str) else ";".join(value))

    def define_from_variant(self, name, variant):
        return self.define(name, self.chosen[variant])


class When:
    def __init__(self, condition):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def load():
    def module(name, **names):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(names)
    ignored = lambda *a, **k: None # noqa: E731
    for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        module(name)
    module("spack_repo.builtin.build_systems.cmake", CMakePackage=type("CMakePackage", (Recipe,), {}))
    module("spack_repo.builtin.build_systems.cuda", CudaPackage=type("CudaPackage", (Recipe,), {}))
    module("spack.package", version=ignored, license=ignored, conflicts=ignored, when=When,
           variant=lambda name, default, description: Recipe.variants.update({name: default}),
           depends_on=lambda spec, when="", type="": Recipe.depends.append(spec))
    names = {"__file__": os.path.abspath(RECIPE), "__name__": "package"}
    with open(RECIPE, encoding="utf-8") as file:
        exec(compile(file.read(), RECIPE, "exec"), names)
    return names["Weft"]


def combinations():
    switches = [name for name, default in Recipe.variants.items() if isinstance(default, bool)]
    for values in itertools.product((False, True), repeat=len(switches)):
        chosen = dict(zip(switches, values))
        for arch in VALUES["cuda_arch"] if chosen["cuda"] else ["none"]:
            yield dict(chosen, cuda_arch=arch)


def cmake_files():
    text = ""
    for path in ["CMakeLists.txt"] + glob.glob("cmake/*.cmake") + glob.glob("src/**/CMakeLists.txt", recursive=True):
        with open(path, encoding="utf-8") as file:
            text += file.read()
    return text


def check_names(args, text):
    for arg in args:
        name, kind, value = re.fullmatch(r"-D(\w+):(\w+)=(.+)", arg).groups()
        if not re.search(r"\boption\(%s\b|\bset\(%s [^)]* CACHE " % (name, name), text):
            wrong.append("%s: CMake's files declare no such variable" % arg)
        if kind == "STRING" and not re.fullmatch(r"[0-9;]+", value):
            wrong.append("%s: a strange value" % arg)


def configure(cmake, args):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([cmake, "-S", ".", "-B", folder, "-G", "Ninja"] + args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if done.returncode or "not used by the project" in done.stdout:
            wrong.append("cmake %s:\n%s" % (" ".join(args), done.stdout))


def check_versions(text):
    depends = dict((spec.split("@") + [""])[:2] for spec in Recipe.depends)
    asked = {"cmake": re.search(r"cmake_minimum_required\(VERSION ([\d.]+)", text).group(1) + ":",
             "onednn": re.search(r"find_package\(OneDNN ([\d.]+)", text).group(1) + ":3"}
    names = {"libcjson": "cjson"}
    for module, version in re.findall(r"pkg_check_modules\([A-Z]+ REQUIRED[A-Z_ ]* ([a-z]+)(?:>=([\d.]+))?\)", text):
        if module != "zlib": # of the examples and tests
            asked[names.get(module, module)] = version + ":" if version else None
    for name, version in asked.items():
        if name not in depends or version is not None and depends[name] != version:
            wrong.append("the recipe asks for %s@%s, CMake for %s" % (name, depends.get(name, "(nothing)"), version))
    if len(asked) < 7:
        wrong.append("CMake's files ask for %s: is this all?" % asked)


def main(root, cmake):
    os.chdir(root)
    recipe, text, seen = load(), cmake_files(), set()
    if not os.path.exists(os.path.join(recipe.git[len("file://"):], "CMakeLists.txt")):
        wrong.append("%s is no tree of weft" % recipe.git)
    for chosen in combinations():
        args = recipe(chosen).cmake_args()
        check_names(args, text)
        if not chosen["cuda"] and chosen["pmix"] and tuple(args) not in seen:
            seen.add(tuple(args))
            configure(cmake, args)
    check_versions(text)
    print("\n".join(wrong) or "%d configure lines" % len(seen))
    return bool(wrong) or len(seen) != 2


sys.exit(main(*sys.argv[1:]))
