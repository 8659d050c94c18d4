# SPDX-License-Identifier: Apache-2.0
"""The pages of programs, from --help. A part of tools/man-pages."""
import os
import re
import subprocess
import sys

from man.pages import Inline, roff_page, section
from man.roff import code_lines, drop_first, escape, literal, Marker
from man.text import summary_of



ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Program:
    def __init__(self, path):
        self.name = os.path.basename(path)
        run = subprocess.run([os.path.abspath(path), "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, timeout=60, text=True, check=False)
        if run.returncode:
            sys.exit("man-pages: %s --help: exit code %d: %s" % (path, run.returncode, run.stdout[:300]))
        self.text = run.stdout
        self.lines = [line.rstrip() for line in run.stdout.split("\n")]
        first = re.match(r"[\w-]+ - (.*)", self.lines[0])
        if first:
            self.lines.pop(0)
        described = first.group(1) if first else next(
            (p for p in "\n".join(self.lines).split("\n\n") if p and not p.startswith(("usage", "Usage"))), self.name)
        self.summary = summary_of(" ".join(re.sub(r"^\S+ - ", "", described).split()), 110).rstrip(".")

    def page(self, manual):
        mark = Marker(manual)
        out = [manual.title(self.name, 1), ".SH NAME", "%s \\- %s" % (literal(self.name), escape(self.summary))]
        usage, options, rest, exits, examples = [], [], [], [], []
        place = rest
        for paragraph in "\n".join(self.lines).strip("\n").split("\n\n"):
            lines = paragraph.split("\n")
            number = 0
            while number < len(lines):
                line = lines[number]
                number += 1
                if re.match(r"usage: ", line, re.I):
                    usage.append(line[7:])
                    place = usage
                elif place is usage and re.match(r" {6,}\S", line):
                    usage.append(line.strip())
                elif re.match(r" +-", line):
                    place = options
                    options.append(line)
                elif re.match(r"(Exit code|Exit status)s?: ", line, re.I):
                    place = exits
                    exits.append(re.sub(r"^[^:]*: ", "", line))
                elif re.match(r"examples?:", line, re.I):
                    place = examples
                    examples.append(re.sub(r"^[^:]*: ?", "", line))
                elif place is options and re.match(r" {8,}\S", line):
                    options.append(line)
                elif place is exits and line and not line.startswith("docs/"):
                    exits.append(line)
                elif place is examples and re.match(r" +\S", line):
                    examples.append(line)
                else:
                    place = rest
                    rest.append(line)
            rest.append("")
            place = rest
        out += [".SH SYNOPSIS", ".nf"] + ["\\fB%s\\fR" % literal(u) for u in usage] + [".fi", ".SH DESCRIPTION"]
        text = plain_blocks(rest, mark)
        out += drop_first(text) if text else [mark(self.summary[0].upper() + self.summary[1:] + ".")]
        out += [".SH OPTIONS"] + option_list(options, mark) if options else []
        out += [".SH EXIT STATUS", mark(" ".join(" ".join(exits).split()))] if exits else []
        out += [".SH EXAMPLES"] + code_lines([e.strip() for e in examples if e.strip()]) if examples else []
        out += self.more(manual, mark) + manual.environment.refers(self.text)
        others = ["\\fB%s\\fR(1)," % literal(p.name) for p in manual.programs if p is not self]
        page = "docs/%s.md" % self.name
        has_page = os.path.exists(os.path.join(ROOT, page))
        pages = ["\\fIPREFIX/share/doc/weft/%s\\fR," % literal(page)] if has_page else []
        return out + [".SH SEE ALSO"] + others + pages + ["\\fBweft_environment\\fR(7),", "\\fBweft\\fR(7)"]

    def more(self, manual, mark):
        """Files that the program reads: the sections about hosts of its page."""
        path = os.path.join(ROOT, "docs", self.name + ".md")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            found = section(file.read(), r"\bhosts\b")
        return [line for title, text in found
                for line in [".SH " + literal(title.upper())] + roff_page(text, Inline(manual, mark))]


def option_list(lines, mark):
    out = []
    for line in lines:
        found = re.match(r" +(-.*?)(?:  +(.*))?$", line) if re.match(r" +-", line) else None
        if found:
            text = "a summary of the usage" if found.group(2) == "this text" else found.group(2)
            out += [".TP 12", "\\fB%s\\fR" % literal(found.group(1))] + ([mark(text)] if text else [])
        else:
            out.append(mark(line.strip()))
    fixed = []
    for number, line in enumerate(out):  # an option without a text of its own
        fixed.append(line)
        if line.startswith("\\fB\\-") and (number + 1 == len(out) or out[number + 1].startswith(".TP")):
            fixed.append("\\&")
    return fixed


def plain_blocks(lines, mark):
    """Paragraphs; lines such as "word   its explanation" become a list."""
    out, tagged = [], False
    for line in lines:
        row = re.match(r" *(\S(?:\S| (?! ))*?)  +(\S.*)$", line)
        if not line:
            tagged = False
            out.append(".PP")
        elif row:
            out += [".TP", "\\fB%s\\fR" % literal(row.group(1)), mark(row.group(2))]
            tagged = True
        elif tagged and line.startswith(" "):
            out.append(mark(line.strip()))
        elif line in ("options:", "optional arguments:", "positional arguments:"):
            continue
        else:
            tagged = False
            out.append(mark(line.strip()))
    while out and out[-1] == ".PP":
        out.pop()
    return out


