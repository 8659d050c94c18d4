# SPDX-License-Identifier: Apache-2.0
"""Public headers: their sections, and the pages that these become. A part of tools/man-pages."""
import os
import re

from man.declarations import comment_lines, items_of
from man.text import blocks_of, summary_of


def header_page(path):
    return "weft_" + os.path.basename(path)


def is_sized(item):
    """Whether it is the exported function under an inline one, whose name is shorter by _sized."""
    return item.is_function() and item.names()[0].endswith("_sized")


class Page:
    """One page of section 3: items of a header that share a comment."""

    def __init__(self, header, section, items, doc, notes):
        self.header, self.section, self.doc = header, section, doc
        self.items = sorted(items, key=is_sized)
        self.notes = [n for n in notes if n]

    def names(self):
        functions = [n for i in self.items if i.is_function() for n in i.names()]
        others = [n for i in self.items if not i.is_function() for n in i.names()]
        return functions + others

    def listed(self):
        """The names for the line NAME: without enumerators, and without types if there are functions."""
        functions = [i.names()[0] for i in self.items if i.is_function()]
        types = [i.names()[0] for i in self.items if i.is_type()]
        return functions or types or [i.names()[0] for i in self.items if i.names()]

    def is_called(self):
        """Whether it is about functions, or macros that act as functions."""
        return any(i.is_function() or i.kind == "macro" and "(" in i.text.split(" ")[1] for i in self.items)

    def text(self):
        lines = list(self.doc)
        if not lines:
            lines = next((i.trailing for i in self.items if i.trailing), [])
        return lines

    def place(self):
        return "include/%s:%d" % (self.header.path, self.items[0].line)


class Header:
    """A public header: its first comment, and its sections with pages and macros."""

    def __init__(self, path, text):
        self.path, self.pages, self.macros, self.head, self.opaque = path, [], [], [], []
        self.pair = {}  # object: the page of its _ref and _unref
        items = items_of(text)
        self.read(items)

    def read(self, items):
        """Makes the pages. `notes` are comments that stand alone: they belong to all pages up to the next title.
        `shared` is the text of the title itself."""
        items = [i for i in items if "SPDX-License" not in i.text]
        if items and items[0].kind == "comment":
            self.head = comment_lines(items.pop(0).text)
        section, shared, notes, at = "", [], [], 0
        while at < len(items):
            item = items[at]
            at += 1
            doc, last = [], item.first - 1
            if item.kind == "comment":
                lines = comment_lines(item.text)
                title = re.match(r"-{3,} ([^.]*?)(?:\. (.*?))? -{3,}", " ".join(lines))
                follows = at < len(items) and items[at].first == item.last + 1
                if title:
                    section, notes = title.group(1), []
                    shared = [section[0].upper() + section[1:] + ".", "", title.group(2)] if title.group(2) else []
                    continue
                if not follows or items[at].kind == "comment":
                    notes = notes + [lines] if notes and notes[-1][0].isupper() else [lines]
                    continue
                doc, last, item = lines, item.last, items[at]
                at += 1
            run = [item]
            while at < len(items) and items[at].kind != "comment" and items[at].first == run[-1].last + 1:
                run.append(items[at])
                at += 1
            self.add_run(section, run, doc, shared, notes)

    def add_run(self, section, run, doc, shared, notes):
        """Makes the pages of declarations without an empty line between them. `doc` is the comment before the first.
        `counted` are functions _ref and _unref, which share a page; `rest` are the others. `alone` are those of `rest`
        that have pages of their own."""
        notes_here = notes + [[" ".join(filter(None, shared))]] if shared else notes
        self.opaque += [i for i in run if i.is_opaque()]
        run = [i for i in run if not i.is_opaque()]
        if run and all(i.kind == "macro" for i in run) and not (doc and re.match(r"#define \w+\(", run[0].text)):
            self.macros += [(i, doc if not i.trailing else []) for i in run]
            return
        counted = [i for i in run if i.is_function() and re.search(r"_(un)?ref$", i.names()[0])]
        if counted and counted[0] is run[0] and doc and len(counted) < len(run):
            counted = []
        rest = [i for i in run if i not in counted]
        for item in counted:
            thing = re.sub(r"_(un)?ref$", "", item.names()[0])
            text = doc if item is run[0] else []
            if thing in self.pair:
                self.pair[thing].items.append(item)
                self.pair[thing].doc = self.pair[thing].doc + ([""] if self.pair[thing].doc and text else []) + text
            else:
                self.pair[thing] = Page(self, section, [item], text, [])
                self.pages.append(self.pair[thing])
        if not rest:
            return
        if doc:  # a later function with a comment of its own stands for itself, unless the first comment is about both
            alone = [i for i in rest[1:] if i.is_function() and i.trailing and not doc[0].startswith("These functions")
                     and i.names()[0] not in " ".join(doc)]
            first = next((n for n, i in enumerate(rest) if i.is_function()), len(rest))
            alone += [i for i in rest[first:] if i.is_type()]
            self.pages.append(Page(self, section, [i for i in rest if i not in alone], doc, notes_here))
            rest = alone
        elif shared and all(i.is_function() for i in rest):  # of a section whose title explains them
            self.pages.append(Page(self, section, rest, shared, notes))
            return
        for item in rest:  # no comment before
            if item.kind != "macro":
                self.pages.append(Page(self, section, [item], [], notes_here))
            else:
                self.macros.append((item, []))

    def summary(self):
        text = " ".join(" ".join(self.head).split())
        found = re.match(r"weft/\w+\.h - (.*)", text)
        return summary_of(found.group(1), 110) if found else ""

    def threads(self):
        blocks = [b for b in blocks_of(self.head) if b.text.startswith("THREADS")]
        return [re.sub(r"^THREADS[.:]? ", "", b.text) for b in blocks]


