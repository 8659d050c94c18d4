# SPDX-License-Identifier: Apache-2.0
"""What a header declares: a list of comments, declarations and macros, each with its lines. A part of tools/man-pages."""
import functools
import re



class Item:
    def __init__(self, kind, text, first, last):
        self.kind, self.text, self.first, self.last = kind, text, first, last  # lines of what c_only() leaves
        self.line = first  # in the file
        self.trailing = []  # lines of the comment that begins on its last line

    def names(self):
        """The names that this item declares; the first is its own, the others are enumerators."""
        if self.kind == "macro":
            return [re.match(r"#define (\w+)", self.text).group(1)]
        text = bare(self.text)
        if re.match(r"(typedef )?(struct|enum|union) \w* ?\{", text):
            own = re.search(r"(\w+) ?;$", text) if text.startswith("typedef") else re.match(r"\w+ (\w+)", text)
            return [own.group(1)] + (re.findall(r"\bWEFT_\w+(?= ?[=,}])", text) if " enum " in text[:14] else [])
        pointer = re.search(r"\(\*(\w+)\)", text) if text.startswith("typedef") else None
        name = pointer or re.search(r"(\w+) ?\(", text) or re.search(r"(\w+) ?;$", text)
        return [name.group(1)] if name else []

    def is_function(self):
        return self.kind == "declaration" and not self.text.startswith(("typedef", "struct")) and "(" in bare(self.text)

    def is_callback(self):
        return self.text.startswith("typedef") and "(*" in bare(self.text).split("{")[0]

    def is_type(self):
        return self.kind == "declaration" and ("{" in self.text or self.text.startswith("typedef")) \
            and not self.is_function()

    def is_opaque(self):
        return re.fullmatch(r"typedef struct (\w+) \1;", self.text) is not None


@functools.lru_cache(maxsize=None)
def bare(text):
    """A declaration without comments, attributes and line breaks."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"\bWEFT_(API|NODISCARD)\b|\bWEFT_PRINTF\(.*?\)|\bextern\b|\bstatic inline\b", " ", text)
    return re.sub(r"\s+([;,)])", r"\1", re.sub(r"\s+", " ", text)).strip()


def comment_lines(text):
    """The lines of a comment, without its marks. Indentation beyond the first column stays."""
    text = re.sub(r"\A/\*[ ]?|\s*\*/\Z", "", text)
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in text.split("\n")]
    if "\n * " not in "\n" + text and "\n" in text:  # without stars: the continuation is indented as the first line
        lines = [line.strip() for line in lines]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def end_of_declaration(text, at):
    depth = 0
    while at < len(text):
        if text.startswith("/*", at):
            at = text.index("*/", at) + 1
        elif text[at] in "({[":
            depth += 1
        elif text[at] in ")}]":
            depth -= 1
            if depth == 0 and text[at] == "}" and not re.match(r"\s*\w*\s*;", text[at + 1:]):
                return at + 1  # of an inline function
        elif text[at] == ";" and depth == 0:
            return at + 1
        at += 1
    raise ValueError("a declaration without an end")


def end_of_directive(text, at):
    while text[at] != "\n":
        if text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        at += 2 if text[at] == "\\" else 1
    return at


def c_only(text):
    """Leaves out what only C++ or only the macros of attributes need. Returns the text, and the number of each line."""
    lines, numbers, stack = [], [], []
    for number, line in enumerate(text.split("\n"), 1):
        word = re.match(r"# *(ifdef|ifndef|if|else|endif)\b(.*)", line)
        if word and word.group(1).startswith("if"):
            kind = "c++" if "__cplusplus" in line else "c" if "_H" in line else "neither"
            stack.append(kind)
        elif word and word.group(1) == "else":
            stack[-1] = "c" if stack[-1] == "c++" else stack[-1]
        elif word:
            stack.pop()
        if not word and all(kind == "c" for kind in stack):
            lines.append(line)
            numbers.append(number)
    return "\n".join(lines) + "\n", numbers


def items_of(text):
    text, numbers = c_only(text)
    items, at = [], 0
    while True:
        at += len(re.match(r"(\s|WEFT_BEGIN_C|WEFT_END_C)*", text[at:]).group(0))
        if at >= len(text):
            return items
        first = text.count("\n", 0, at) + 1
        if text.startswith("/*", at):
            end, kind = text.index("*/", at) + 2, "comment"
        elif text[at] == "#":
            end, kind = end_of_directive(text, at), "macro" if text.startswith("#define", at) else "include"
        else:
            end, kind = end_of_declaration(text, at), "declaration"
        item = Item(kind, text[at:end], first, text.count("\n", 0, end) + 1)
        item.line = numbers[first - 1]
        at = end
        if kind == "comment" and items and items[-1].last == first and items[-1].kind != "comment":
            items[-1].trailing = comment_lines(item.text)
            items[-1].last = item.last
            continue
        if kind == "macro" and "/*" in item.text:
            item.text, comment = item.text.split("/*", 1)
            item.trailing = comment_lines("/*" + comment)
        if kind != "include" and not re.match(r"#define WEFT_\w+_H$", item.text):
            items.append(item)


