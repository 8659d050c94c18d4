#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""man_pages.py ROOT NM PROGRAMS LIBRARY - the manual pages that tools/man-pages writes.

Each function that the library exports, each other public name, each variable of docs/environment.md and each program has
a page. No page lacks a summary or a description, and what the pages refer to exists: other pages, and the examples that
call a function. groff, which man calls, formats them all without a warning. A header
without comments is refused. PROGRAMS is the folder of the programs. Exit code 77: groff is not here; the rest is checked.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def exported(nm, library):
    """The functions and constants that the library exports."""
    listed = subprocess.check_output([nm, "-D", "--defined-only", library], text=True)
    return set(re.findall(r" [A-Z] (weft_\w+)@@WEFT_0", listed))


def section_of(text, title):
    """The text of a section, without macros and fonts."""
    found = re.search(r"^\.SH %s\n(.*?)(?=^\.SH |\Z)" % title, text, re.S | re.M)
    body = re.sub(r"^\.(?!TP|IP).*$", "", found.group(1), flags=re.M) if found else ""
    return re.sub(r"\\f.|\\&", "", body).strip()


def check_pages(out, pages):
    wrong = []
    for path, text in sorted(pages.items()):
        link = re.fullmatch(r"\.so (\S+)\n", text)
        if link:
            if link.group(1) not in pages or pages[link.group(1)].startswith(".so"):
                wrong.append("%s refers to %s, which is no page" % (path, link.group(1)))
            continue
        name = section_of(text, "NAME")
        own = os.path.basename(path).rsplit(".", 1)[0]
        if not re.match(r"%s(, \w+)* \\- \S.*" % re.escape(own).replace("\\-", "\\\\?-"), name) or len(name) < len(own) + 10:
            wrong.append("%s: its line NAME is '%s'" % (path, name))
        if len(section_of(text, "DESCRIPTION")) < 10:
            wrong.append("%s has no DESCRIPTION" % path)
        for other, section in re.findall(r"\\fB(weft[\w.\\-]*)\\fR\((\d)\)", text):
            target = "man%s/%s.%s" % (section, other.replace("\\-", "-"), section)
            if target not in pages:
                wrong.append("%s refers to %s, which is no page" % (path, target))
    if not any(pages):
        wrong.append("no page in %s" % out)
    return wrong


def check_sections(root, pages):
    """weft_environment(7) has each variable; pages name variables and examples; the examples call the functions."""
    wrong = []
    variables = set(re.findall(r"^\| `(WEFT_\w+)`", read(os.path.join(root, "docs", "environment.md")), re.M))
    wrong += ["no variable in docs/environment.md"] if len(variables) < 15 else []
    environment = section_of(pages["man7/weft_environment.7"], "DESCRIPTION")
    wrong += ["weft_environment(7) lacks %s" % v for v in sorted(variables) if v not in environment]
    wrong += ["man %s finds nothing" % v for v in sorted(variables) if "man7/%s.7" % v not in pages]
    opening = "man3/weft_agent_open.3"
    for path, title, text in ((opening, "ENVIRONMENT", "WEFT_FABRIC"), (opening, "EXAMPLES", "hello.c"),
                              (opening, "RETURN VALUE", "*out is unchanged"), ("man1/weft-run.1", "SEVERAL HOSTS", "slots="),
                              ("man1/weft-run.1", "ENVIRONMENT", "WEFT_SECRET_FILE"),
                              ("man1/weft-info.1", "ENVIRONMENT", "WEFT_FABRIC"),
                              ("man7/weft.7", "HEADERS", "weft_rpc.h")):
        if text not in section_of(pages[path], title):
            wrong.append("%s of %s lacks %s: '%s'" % (title, path, text, section_of(pages[path], title)[:300]))
    named = 0
    for path, text in sorted(pages.items()):
        functions = re.findall(r"weft_\w+", section_of(text, "NAME").split(" \\- ")[0])
        examples = section_of(text, "EXAMPLES") if path.startswith("man3/") else ""
        for file in re.findall(r"\b[\w/]+\.(?:c|cpp|h)\b", examples):
            place, named = os.path.join(root, "examples", file), named + 1
            code = read(place) if os.path.exists(place) else ""
            if not any(re.search(r"\b%s\(" % f, code) for f in functions):
                wrong.append("%s names the example %s, which calls none of %s" % (path, file, ", ".join(functions)))
    return wrong + (["only %d examples are named" % named] if named < 100 else [])


def check_groff(out):
    """The warnings that man --warnings shows. man(1) itself formats one page a second and more; groff formats all at once."""
    wrong = []
    for section in ("man1", "man3", "man7"):
        folder = os.path.join(out, section)
        files = [os.path.join(folder, n) for n in sorted(os.listdir(folder))]
        files = [f for f in files if not read(f).startswith(".so ")]
        said = run("groff", "-Kutf8", "-man", "-ww", "-Tutf8", "-Z", "-P-c", "-rF0", "-z", *files).stdout
        wrong += said.splitlines()[:20]
    if shutil.which("man"):
        page = os.path.join(out, "man3", "weft_rpc_async.3")
        shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, check=False, env=dict(os.environ, LC_ALL="C.UTF-8"))
        wrong += ["man: " + line for line in shown.stderr.splitlines()] + (["man fails"] if shown.returncode else [])
    return wrong


HEADER = """/* weft/made_up.h - a header of this test. */
#ifndef WEFT_MADE_UP_H
#define WEFT_MADE_UP_H
/* Adds two numbers. WEFT_ERR_INVALID: they are too large. Any thread. */
WEFT_API WEFT_NODISCARD weft_status weft_made_add(int a, int b, int *out);

%sWEFT_API int weft_made_two(int number);
#endif
"""


def check_refusal(script, folder):
    """A function without a comment, in a header of this test, is refused by name."""
    os.makedirs(os.path.join(folder, "include", "weft"))
    wrong = []
    for comment, code in (("/* Doubles a number. */\n", 0), ("", 1), ("/* ---- Numbers ---- */\n", 1)):
        with open(os.path.join(folder, "include", "weft", "made_up.h"), "w", encoding="utf-8") as file:
            file.write(HEADER % comment)
        made = run(script, "--check", "--include", os.path.join(folder, "include"))
        if made.returncode != code or (code and "weft_made_two has no comment" not in made.stdout):
            wrong.append("with %r --check exits with %d: %s" % (comment, made.returncode, made.stdout))
    run(script, "--out", folder, "--include", os.path.join(folder, "include"))
    page = read(os.path.join(folder, "man3", "weft_made_add.3"))
    for title, text in (("NAME", "weft_made_add \\- adds two numbers"), ("DESCRIPTION", "Adds two numbers."),
                        ("ERRORS", "They are too large."), ("THREADS", "Any thread.")):
        if text not in section_of(page, title):
            wrong.append("%s of weft_made_add(3) lacks '%s': %s" % (title, text, section_of(page, title)))
    return wrong


def main():
    root, nm, programs, library = sys.argv[1:]
    script = os.path.join(root, "tools", "man-pages")
    os.environ.pop("LD_PRELOAD", None)  # of the tests, for programs that use a fabric
    checked = run(script, "--check")
    wrong = checked.stdout.splitlines() if checked.returncode else []
    with tempfile.TemporaryDirectory() as out:
        wrong += check_refusal(script, os.path.join(out, "small"))
        out = os.path.join(out, "man")
        made = run(script, "--out", out, "--programs", programs)
        if made.returncode:
            wrong.append("man-pages: " + made.stdout)
        pages = {os.path.join(s, n): read(os.path.join(out, s, n)) for s in os.listdir(out) for n in os.listdir(os.path.join(out, s))}
        wrong += check_pages(out, pages) + check_sections(root, pages)
        names = exported(nm, library)
        public = set()
        for header in os.listdir(os.path.join(root, "include", "weft")):
            text = re.sub(r"/\*.*?\*/", "", read(os.path.join(root, "include", "weft", header)), flags=re.S)
            text = re.sub(r"#ifdef __cplusplus.*?(#else|#endif)", "", text, flags=re.S)
            public.update(re.findall(r"\b(weft_\w+)\(|typedef \w+ (weft_\w+)|\(\*(weft_\w+)\)\(|\b(WEFT_\w+) = -?\d", text))
        public = {name for found in public for name in found if name}
        wrong += ["%s has no page" % name for name in sorted(names | public) if "man3/%s.3" % name not in pages]
        wrong += ["the program %s has no page" % name for name in sorted(os.listdir(programs))
                  if name.startswith("weft-") and "man1/%s.1" % name not in pages]
        if len(names) < 300 or len(public) < 500:
            wrong.append("only %d exported and %d public names are found" % (len(names), len(public)))
        groff = shutil.which("groff")
        wrong += check_groff(out) if groff else []
    print("\n".join(wrong) or "%d pages; %d exported functions and constants, %d public names" % (len(pages), len(names), len(public)))
    return 1 if wrong else 0 if groff else 77


if __name__ == "__main__":
    sys.exit(main())
