# SPDX-License-Identifier: Apache-2.0
"""Writing roff, the language of manual pages. A part of tools/man-pages."""
import re
import textwrap

from man.declarations import bare, comment_lines
from man.text import blocks_of



def escape(text):
    text = text.replace("\\", "\\e").replace("^", "\\(ha").replace("~", "\\(ti").replace("`", "\\(ga")
    return re.sub(r"(?<![A-Za-z0-9])-|-(?![A-Za-z0-9])|-(?=[0-9])", r"\\-", text)


def literal(text):
    text = escape(text).replace("\\-", "-").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith(".") else text


MARKED = re.compile(
    r"(?P<quoted>`[^`]+`)|(?P<header>\bweft/\w+\.h\b)|(?P<path>\b(?:docs|examples|perf|tools)/[\w./-]*\w)"
    r"|(?P<constant>\bWEFT_[A-Z0-9_]+\b)|(?P<name>\bweft_\w+\b)(?P<after>\(|\.\w+|\*)?|(?P<out>\*[a-z_]+\b(?!\*))"
    r"|(?P<word>\b[a-z]\w*_\w+\b|\b(?:out|error|options)\b(?=\[))")


class Marker:
    """Sets names in prose: functions bold with their section, parameters and fields italic, constants bold."""

    def __init__(self, manual, own=(), words=()):
        self.manual, self.own, self.words = manual, own, set(words)

    def __call__(self, text):
        out, at = [], 0
        for match in MARKED.finditer(text):
            out.append(escape(text[at:match.start()]))
            out.append(self.set(match))
            at = match.end()
        out.append(escape(text[at:]))
        text = "".join(out)
        return "\\&" + text if text.startswith((".", "'")) else text

    def set(self, match):
        kind, text = match.lastgroup if match.lastgroup != "after" else "name", match.group(0)
        if kind == "quoted":
            return "\\fI%s\\fR" % literal(text.strip("`"))
        if kind == "header":
            page = "weft_" + text[len("weft/"):]
            return "\\fB%s\\fR(7)" % page if page in self.manual.pages else escape(text)
        if kind == "constant":
            return "\\fB%s\\fR" % text
        if kind == "name":
            name, after = match.group("name"), match.group("after") or ""
            if name.endswith("_") or (after == "*" and self.manual.where.get(name) is None):
                return escape(text)
            if name in self.own:
                return "\\fB%s\\fR%s" % (name, "()" if not after and name in self.manual.functions else escape(after))
            return "\\fB%s\\fR%s" % (name, "(3)" if not after and name in self.manual.functions else escape(after))
        if text == "docs/environment.md":
            return "\\fBweft_environment\\fR(7)"
        if kind == "path" or kind == "out" or text in self.words:
            return "\\fI%s\\fR" % literal(text)
        return escape(text)


def code_lines(lines):
    return [".RS 4", ".EX"] + [literal(line) or "" for line in lines] + [".EE", ".RE"]


def roff_blocks(blocks, mark, heads=None):
    """`heads`: the macro for a paragraph that begins with a word in capitals, such as "THREADS."."""
    out = []
    for block in blocks:
        text = block.text
        head = re.match(r"([A-Z][A-Z' ]{3,})(?:( of the \w+)?[.:?]| (?=\w)) ?", text) if heads else None
        if head and not head.group(1).startswith("WEFT"):
            title = (head.group(1).strip() + (head.group(2) or "")).capitalize()
            out.append("%s %s%s" % (heads, escape(title), "?" if head.group(0).strip().endswith("?") else ""))
            if head.group(0).rstrip()[-1] in ".:?":
                text = text[head.end():]
                text = text[:1].upper() + text[1:] if text[:1].islower() and " " in text[:12] else text
            else:
                text = head.group(1).strip().capitalize() + " " + text[head.end():]
        elif text or block.code:
            out.append(".PP")
        if text:
            out.append(mark(text))
        for item in block.items:
            lead = re.match(r"((?:WEFT_\w+|\*?[a-z]\w*_\w+|\"[\w-]+\")(?:, (?:WEFT_\w+|\*?\w+_\w+))*(?:, [a-z][^:.()]*| \([^:]*\))?): ", item)
            if lead and len(lead.group(1)) < 90:
                out += [".TP 8", mark(lead.group(1)), mark(item[lead.end():])]
            else:
                out += [".IP \\(bu 3", mark(item)]
        if block.code:
            out += code_lines(block.code)
    return out


def parameters_of(text):
    """The parameters of a prototype, as texts."""
    text = bare(text).split("{")[0]
    inside = re.search(r"\(\*\w+\)\((.*)\)", text) if text.startswith("typedef") else re.search(r"\((.*)\)", text)
    found, depth, start = [], 0, 0
    inner = inside.group(1) if inside else ""
    for at, char in enumerate(inner + ","):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            found.append(inner[start:at].strip())
            start = at + 1
    return found


def parameter_name(parameter):
    name = re.search(r"\(\*(\w+)\)", parameter) or re.search(r"(\w+)(?:\[\w*\])?$", parameter)
    return name.group(1) if name and name.group(1) != "void" else ""


def prototype_lines(item, width=72):
    """A prototype for SYNOPSIS, broken at parameters, with fonts."""
    text = bare(item.text).split(" {")[0].rstrip(";")
    if not item.is_function() and not item.is_callback():
        return ["\\fB%s;\\fR" % literal(text)]
    parameters = parameters_of(item.text)
    head = text[:text.index("(", text.index(item.names()[0])) + 1] if not item.is_callback() \
        else text[:text.index(")(") + 2]
    indent = len(head) if len(head) <= 34 else 8
    lines, line = [], head
    plain = len(head)
    for number, parameter in enumerate(parameters):
        piece = parameter + (", " if number + 1 < len(parameters) else ");")
        if plain + len(piece.rstrip()) > width and line.strip() != head.strip() or \
                (line == head and plain + len(piece.rstrip()) > width and indent < len(head)):
            lines.append(line.rstrip())
            line, plain = " " * indent, indent
        name = parameter_name(parameter)
        marked = piece
        if name:
            cut = piece.rindex(name) if "(*" not in piece else piece.index(name)
            marked = literal(piece[:cut]) + "\\fI" + name + "\\fB" + literal(piece[cut + len(name):])
        line += marked
        plain += len(piece)
    lines.append(line.rstrip())
    return ["\\fB%s\\fR" % line for line in lines]


def fields_of(item):
    """The fields of a struct or the enumerators of an enum: (names as declared, comment lines) or (None, note)."""
    body = item.text[item.text.index("{") + 1:item.text.rindex("}")]
    if "{" in re.sub(r"/\*.*?\*/", "", body, flags=re.S):
        return None
    enum = "enum" in item.text.split("{")[0]
    found, pending, at, last_leading = [], None, 0, False
    while True:
        gap = re.match(r"\s*", body[at:]).group(0)
        at += len(gap)
        if at >= len(body):
            return found
        if "\n\n" in gap:
            last_leading = False
            if pending:
                found.append((None, pending))
                pending = None
        if body.startswith("/*", at):
            end = body.index("*/", at) + 2
            if pending:
                found.append((None, pending))
            pending = comment_lines(re.sub(r"\n[ ]+\*", "\n *", body[at:end]))
            at = end
            continue
        end, depth = at, 0
        while end < len(body) and not (body[end] == ("," if enum else ";") and depth == 0):
            depth += (body[end] in "({") - (body[end] in ")}")
            end = body.index("*/", end) + 1 if body.startswith("/*", end) else end
            end += 1
        text = bare(body[at:end]).rstrip(",;")
        at = end + 1
        trailing = re.match(r"[ \t]*(/\*.*?\*/)", body[at:], flags=re.S)
        comment = []
        if trailing:
            at += trailing.end()
            comment = comment_lines(re.sub(r"\n +\*? ?", "\n * ", trailing.group(1)))
        if pending and comment:
            found.append((None, pending))
        elif pending:
            comment, last_leading = pending, True
        elif not comment and last_leading and related(found[-1][0], text):
            found[-1] = (found[-1][0] + [text], found[-1][1])
            continue
        if trailing:
            last_leading = False
        pending = None
        found.append(([text], comment))


def related(names, text):
    """Whether a field without a comment belongs to the one before: functions and function_count, fn and arg."""
    if not names:
        return False
    first, second = parameter_name(names[0]), parameter_name(text)
    stem = first.rstrip("s").split("_")[0]
    return second.startswith(stem) or second.endswith(("_arg", "_count", "_size"))


def roff_fields(item, mark):
    fields = fields_of(item)
    if fields is None:
        return [".PP"] + code_lines(textwrap.dedent(bare_lines(item.text)).split("\n"))
    out = []
    for names, comment in fields:
        if names is None:
            out += roff_blocks(blocks_of(comment), mark)
            continue
        for number, name in enumerate(names):
            out += [".TP 8" if number == 0 else ".TQ", "\\fB%s\\fR" % literal(name)]
        blocks = blocks_of(comment)
        body = roff_blocks(blocks, mark)
        out += body[1:] if body[:1] == [".PP"] else body
        out = [".IP" if line == ".PP" and at > len(out) - len(body) else line for at, line in enumerate(out)]
        if not body:
            kind = re.search(r"\bweft_\w+", names[0])
            out.append("See \\fB%s\\fR(3)." % kind.group(0) if kind and kind.group(0) in mark.manual.types else "\\&")
    return out


def bare_lines(text):
    return re.sub(r"[ ]*/\*.*?\*/", "", text, flags=re.S)


def drop_first(lines):
    return lines[1:] if lines[:1] == [".PP"] else lines
