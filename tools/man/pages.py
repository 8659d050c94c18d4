# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/ as manual pages: weft_environment(7), and sections for programs. A part of tools/man-pages."""
import re

from man.roff import code_lines, literal

INLINE = re.compile(r"\[(?P<label>(?:`[^`]*`|[^\]`])+)\]\((?P<url>[^)]+)\)|\*\*(?P<bold>[^*]+)\*\*|`(?P<code>[^`]+)`")
PLAIN = ("meaning", "how")  # columns whose cells need no name


class Inline:
    """Sets a paragraph of Markdown: links become the names of pages."""

    def __init__(self, manual, mark):
        self.programs, self.mark = [p.name for p in manual.programs], mark

    def __call__(self, text):
        out, at = [], 0
        for match in INLINE.finditer(text):
            out += [self.plain(text[at:match.start()]), self.set(match)]
            at = match.end()
        text = "".join(out) + self.plain(text[at:])
        return "\\&" + text if text.startswith((".", "'")) else text

    def plain(self, text):
        found = self.mark(text)
        return found[2:] if found.startswith("\\&") else found

    def set(self, match):
        if match.group("bold"):
            return "\\fB%s\\fR" % literal(match.group("bold"))
        if match.group("code"):
            return self.code(match.group("code"))
        label, url = match.group("label"), match.group("url")
        page = re.match(r"((?:[\w-]+/)*[\w-]+\.md)", url)
        if page and not label.startswith("`"):
            return self.mark("docs/" + page.group(1))
        return self(label) if not url.startswith("#") else self.plain(label)

    def code(self, text):
        if text in self.programs:
            return "\\fB%s\\fR(1)" % literal(text)
        marked = self.mark(text) if re.fullmatch(r"weft_\w+|WEFT_[A-Z_]+", text) else ""
        return marked if marked.startswith("\\fB") else "\\fI%s\\fR" % literal(text)


def cells_of(row):
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def table(rows, inline):
    """A row becomes an item of a list. A cell after the first one has its column's name, except in columns of text."""
    heads, out = cells_of(rows[0]), []
    for row in rows[2:]:
        cells = cells_of(row)
        text = []
        for head, cell in zip(heads[1:], cells[1:]):
            cell = inline(cell)
            if cell:
                cell = cell if head in PLAIN else "%s: %s" % (head[0].upper() + head[1:], cell)
                text.append(cell.rstrip(".") + ".")
        out += [".TP 8", inline(cells[0]), " ".join(text) or "\\&"]
    return out


def blocks_of_page(text):
    """(kind, lines): a heading, a paragraph, a table or a block of code."""
    found = []
    for number, part in enumerate(re.split(r"^```.*$", text, flags=re.M)):
        if number % 2:
            found.append(("code", part.strip("\n").split("\n")))
            continue
        for block in re.split(r"\n{2,}", part.strip("\n")):
            lines = block.split("\n")
            kind = "heading" if lines[0].startswith("#") else "table" if lines[0].startswith("|") else "paragraph"
            if block:
                found.append((kind, lines))
    return found


def roff_page(text, inline):
    out = []
    for kind, lines in blocks_of_page(text):
        if kind == "heading":
            out.append(".SH %s" % literal(lines[0].lstrip("# ").upper()))
        elif kind == "code":
            out += code_lines(lines)
        elif kind == "table":
            out += table(lines, inline)
        elif lines[0].startswith("- "):
            items = re.split(r"\n- ", "\n" + "\n".join(lines))[1:]
            out += [line for item in items for line in (".IP \\(bu 3", inline(" ".join(item.split())))]
        else:
            text = " ".join(lines)
            title = re.match(r"\*\*([^*]+?)[.,]\*\* ", text)
            out += [".SS " + literal(title.group(1)), inline(text[title.end():])] if title else [".PP", inline(text)]
    return out


def section(text, pattern):
    """The sections of a page whose title matches: [(title, text)]."""
    parts = re.split(r"^## (.*)\n", text, flags=re.M)
    return [(title, body) for title, body in zip(parts[1::2], parts[2::2]) if re.search(pattern, title, re.I)]


class Environment:
    """docs/environment.md."""

    def __init__(self, text):
        self.text = re.sub(r"\A# .*\n", "", text)
        cells = [cells_of(line)[0] for line in text.split("\n") if line.startswith("| `")]
        self.names = [name for cell in cells for name in re.findall(r"`(WEFT_[A-Z_]+)`", cell)]

    def named_in(self, text):
        """The variables of weft that a text names, in its order."""
        return [n for n in dict.fromkeys(re.findall(r"(?:\\f.|\b)(WEFT_[A-Z_]+)\b", text)) if n in self.names]

    def refers(self, text):
        """The section ENVIRONMENT of a page with this text."""
        names = ", ".join("\\fB%s\\fR" % name for name in self.named_in(text))
        see = ": see \\fBweft_environment\\fR(7), which also has the variables of launchers."
        return [".SH ENVIRONMENT", names + see] if names else []

    def page(self, manual, mark):
        out = [manual.title("weft_environment", 7), ".SH NAME",
               "weft_environment \\- environment variables that weft reads, and those of launchers", ".SH DESCRIPTION"]
        body = roff_page(self.text, Inline(manual, mark))
        see = ["\\fB%s\\fR(1)," % literal(p.name) for p in manual.programs]
        return out + body + [".SH SEE ALSO", "\\fBweft_agent_options\\fR(3),"] + see + ["\\fBweft\\fR(7)"]


class Examples:
    """Which example calls a function: name -> files, the shortest first."""

    def __init__(self, files):
        self.calls = {}
        for name, text in sorted(files.items(), key=lambda item: len(item[1])):
            text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
            for function in set(re.findall(r"\b(weft_\w+)\(", text)):
                self.calls.setdefault(function, []).append(name)

    def refers(self, functions, most=4):
        """The section EXAMPLES of a page about these functions."""
        files = [f for n in functions for f in self.calls.get(n, [])]
        files = list(dict.fromkeys(files))[:most]
        if not files:
            return []
        listed = ", ".join("\\fI%s\\fR" % literal(f) for f in files)
        called = "\\fB%s\\fR()" % functions[0] if len(functions) == 1 else "one or more of these functions"
        return [".SH EXAMPLES", "Files of \\fIPREFIX/share/doc/weft/examples\\fR that call %s: %s." % (called, listed)]
