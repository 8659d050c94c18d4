# SPDX-License-Identifier: Apache-2.0
"""The manual: weft(7), a page for each header, function and type. A part of tools/man-pages."""
import itertools
import os
import re

from man.declarations import bare
from man.headers import header_page, is_sized
from man.roff import (code_lines, drop_first, escape, fields_of, literal, Marker, parameter_name, parameters_of,
                      prototype_lines, roff_blocks, roff_fields)
from man.text import Block, blocks_of, summary_of, take_errors

MANY = 12  # fields of a struct that the pages of functions name only
USERS = 8  # a type that more functions use does not list them


class Manual:
    def __init__(self, headers, programs, version, environment, examples):
        self.headers, self.programs, self.version = headers, programs, version
        self.environment, self.examples = environment, examples
        self.functions, self.where, self.types, self.pages = {}, {}, {}, {}
        self.wrong, self.statuses = [], {}
        for header in headers:
            self.pages[header_page(header.path)] = 7
            for page in header.pages:
                for item in page.items:
                    for name in item.names():
                        self.where[name] = page
                    if item.is_function():
                        self.functions[item.names()[0]] = page
                    elif item.is_type():
                        self.types[item.names()[0]] = item

        self.used_by = {}
        for name, page in self.functions.items():
            item = next(i for i in page.items if i.names()[0] == name)
            text = "" if is_sized(item) else bare(item.text)
            for word in sorted(set(re.findall(r"\bweft_\w+", text)) - {name}):
                self.used_by.setdefault(word, []).append(name)
        if "weft_status" in self.types:
            for names, comment in fields_of(self.types["weft_status"]):
                text = " ".join(comment)
                if names and text:
                    self.statuses[names[0].split(" ")[0]] = text[0].upper() + text[1:] + "."

    def users(self, name):
        return self.used_by.get(name, [])

    def wrong_at(self, page, what):
        self.wrong.append("%s: %s" % (page.place(), what))

    def summary(self, page):
        name = page.listed()[0]
        if page in page.header.pair.values() and not page.doc:
            return "take and drop references to a %s" % re.sub(r"_(un)?ref$", "", name)
        lines = page.text()
        if lines:
            return summary_of(" ".join(itertools.takewhile(bool, lines)))
        made_by = re.sub(r"_options$", "_create", name)
        users = self.users(name) or [made_by] * (made_by in self.functions)
        if page.items[0].is_type() and not page.items[0].is_callback():
            if users:
                return "%s of %s" % ("options" if name.endswith("_options") else "an argument", users[0])
            return "%s of weft/%s" % ("options" if name.endswith("_options") else "a type",
                                      os.path.basename(page.header.path))
        return ""

    def check(self):
        for header in self.headers:
            if not header.summary():
                self.wrong.append("include/%s: its first comment has no summary: weft/NAME.h - SUMMARY." % header.path)
            for page in header.pages:
                if page in header.pair.values():
                    continue
                shared = bool(page.doc)
                for item in page.items:
                    if (item.is_function() or item.is_callback()) and not shared and not item.trailing:
                        self.wrong.append("include/%s:%d: %s has no comment" %
                                          (header.path, item.line, item.names()[0]))
                summary = self.summary(page)
                if not summary and (page.doc or page.items[0].trailing):
                    self.wrong_at(page, "%s: no summary can be made of its comment" % page.listed()[0])
                elif re.match(r"NULL\b|all 0\b|[\"']", summary):
                    self.wrong_at(page, "%s: '%s' is no summary" % (page.listed()[0], summary))
        return self.wrong

    # Section 3.

    def title(self, name, section):
        return '.TH "%s" "%s" "" "weft %s" "weft"' % (name, section, self.version)

    def function_page(self, page):
        words = [parameter_name(p) for i in page.items for p in parameters_of(i.text)] + ["timeout_ms", "wait_ms"]
        mark = Marker(self, page.names(), [w for w in words if "_" in w])
        out = [self.title(page.listed()[0], 3), ".SH NAME",
               "%s \\- %s" % (", ".join(page.listed()), escape(self.summary(page)))]
        out += [".SH SYNOPSIS", ".nf", "\\fB#include <%s>\\fR" % page.header.path]
        alone = False
        for item in page.items:
            if item.kind == "macro":
                short = re.match(r"#define \w+(\([^)]*\)| \S+$)?", item.text.strip()).group(0)
                out += ["", "\\fB%s\\fR" % literal(short)]
            elif item.is_function() or item.is_callback() or not item.is_type():
                lines = prototype_lines(item)
                out += lines if len(lines) == 1 and alone else [""] + lines
                alone = len(lines) == 1
            else:
                out += ["", "\\fB%s\\fR" % literal(re.sub(r" \{.*\}", " { ... }", bare(item.text)))]
        out.append(".fi")
        description, returned, errors, threads = take_errors(blocks_of(page.doc))
        out.append(".SH DESCRIPTION")
        body = roff_blocks(description, mark, ".SS") + self.trailing_texts(page, mark)
        body += self.counting(page) if page in page.header.pair.values() else []
        body = body or self.undocumented(page, mark)
        out += body[1:] if body[:1] == [".PP"] else body
        for item in page.items:
            if item.is_type() and "{" in item.text:
                out += ([".SS %s" % literal(item.names()[0])] if len(page.items) > 1 else []) + roff_fields(item, mark)
        out += self.return_value(page, returned, errors, mark)
        common = any(line.startswith("ERRORS") for line in page.header.head)
        common = common and any(i.is_function() for i in page.items)
        if errors or common:
            out += [".SH ERRORS"] + drop_first(self.errors(errors, mark))
            out += [".PP", "\\fB%s\\fR(7) has the errors that the functions of this header have in common." %
                    header_page(page.header.path)] if common else []
        out += self.argument_types(page) + self.environment.refers(self.raw_text(page))
        out += self.examples.refers([n for n in page.names() if n in self.functions])
        for note in page.notes:
            blocks = blocks_of(note)
            if blocks and any(i.is_function() for i in page.items):
                out += [] if ".SH NOTES" in out else [".SH NOTES"]
                out += roff_blocks(blocks, mark, ".SS")
        if any(i.is_function() for i in page.items):
            threads = [" ".join(threads)] if threads else []
            threads += page.header.threads()
            if threads:
                out += [".SH THREADS"] + drop_first([x for t in threads for x in (".PP", mark(t))])
        out += self.see_also(page)
        return out

    def trailing_texts(self, page, mark):
        out = []
        for item in page.items:
            if not item.trailing:
                continue
            text = " ".join(item.trailing)
            if len(page.items) > 1:
                out += [".PP", "\\fB%s\\fR%s: %s" % (item.names()[0], "()" if item.is_function() else "", mark(text))]
            else:
                out += [".PP", mark(text[0].upper() + text[1:] + ("" if text.endswith((".", "...")) else "."))]
        return out

    def counting(self, page):
        out = []
        for item in page.items:
            name = item.names()[0]
            if name.endswith("_unref"):
                out += [".PP", "\\fB%s\\fR() drops a reference. The last one frees the object. NULL does nothing." %
                        name]
            else:
                out += [".PP", "\\fB%s\\fR() takes another reference, and returns its argument. Each reference needs "
                        "a call of \\fB%s\\fR()." % (name, re.sub(r"_ref$", "_unref", name))]
        return out

    def undocumented(self, page, mark):
        users = self.users(page.listed()[0])
        return [".PP", "Used by " + ", ".join("\\fB%s\\fR(3)" % n for n in users) + "."] if users else \
            [".PP", "\\fB%s\\fR(7) has the rules." % header_page(page.header.path)]

    def return_value(self, page, returned, errors, mark):
        out = drop_first(roff_blocks(returned, mark))
        checked = [i for i in page.items
                   if i.is_function() and "WEFT_NODISCARD weft_status" in " ".join(i.text.split())]
        if checked and not any("WEFT_OK" in b.text + " ".join(b.items) for b in returned):
            which = "" if all(i in checked for i in page.items if i.is_function()) else \
                ", ".join("\\fB%s\\fR()" % i.names()[0] for i in checked) + ": "
            out += ([".PP"] if out else []) + [which + "\\fBWEFT_OK\\fR, or a negative status: see "
                    + ("ERRORS, and " if errors else "") + "\\fBweft_status\\fR(3)."]
        return [".SH RETURN VALUE"] + out if out else []

    def errors(self, errors, mark):
        out = []
        for error in errors:
            if isinstance(error, Block):
                out += roff_blocks([error], mark)
                continue
            codes, text = error
            out += [".TP 8", mark(codes)]
            text = text or self.statuses.get(codes, "")
            if text and "_" not in text.split(" ")[0]:
                text = text[0].upper() + text[1:]
            out.append(mark(text + ("" if text.endswith(".") else ".")) if text else "\\&")
        return out

    def arguments(self, page):
        """The callbacks and structs that the functions take."""
        own = page.names()
        for item in page.items:
            if not item.is_function():
                continue
            for parameter in parameters_of(item.text):
                for name in re.findall(r"\bweft_\w+", parameter):
                    used = self.types.get(name)
                    if not used or name in own or self.where[name].header.path.endswith(("status.h", "base.h")):
                        continue
                    pointed = re.search(r"\b%s \*" % name, parameter) and "{" in used.text
                    if not used.is_callback() and not pointed:
                        continue
                    own = own + [name]
                    yield name, used

    def argument_types(self, page):
        out = [line for name, used in self.arguments(page) for line in self.type_section(name, used)]
        return ([".SH TYPES"] + out) if out else []

    def raw_text(self, page):
        """The comments of a page, and of the structs that its functions take."""
        texts = page.doc + [line for i in page.items for line in i.trailing]
        texts += [i.text for i in page.items if i.is_type()]
        return "\n".join(texts + [used.text for _, used in self.arguments(page)])

    def type_section(self, name, item):
        page = self.where[name]
        mark = Marker(self, [name])
        out = [".SS %s" % name]
        if item.is_callback():
            out += [".nf"] + prototype_lines(item) + [".fi"]
        if not any(i.is_function() for i in page.items):
            out += roff_blocks(blocks_of(page.doc), mark) + self.trailing_texts(page, mark)
        if "{" not in item.text:
            return out
        fields = [n for names, _ in fields_of(item) or [] for n in names or []]
        if len(fields) > MANY:
            listed = ", ".join("\\fI%s\\fR" % literal(parameter_name(field)) for field in fields)
            return out + [".PP", "\\fB%s\\fR(3) describes its fields: %s." % (name, listed)]
        return out + roff_fields(item, mark)

    def see_also(self, page):
        text = " ".join(page.doc) + " ".join(" ".join(i.trailing) for i in page.items)
        text += " ".join(bare(i.text) for i in page.items if i.is_function())
        names = [n for n in re.findall(r"\bweft_\w+\b", text) if n in self.where]
        near = [p for p in page.header.pages if p.section == page.section]
        at = near.index(page)
        near = sorted(sorted(near, key=lambda p: abs(near.index(p) - at))[:11], key=near.index)
        users = self.users(page.listed()[0]) if page.items[0].is_type() else []
        names += users if len(users) <= USERS else []
        names += [p.listed()[0] for p in near]
        found = []
        for name in names:
            first = self.where[name].listed()[0]
            if first not in found and self.where[name] is not page:
                found.append(first)
        lines = ["\\fB%s\\fR(3)," % n for n in found[:24]]
        lines += ["\\fB%s\\fR(7)," % header_page(page.header.path)]
        lines += ["\\fBweft_environment\\fR(7),"] if self.environment.named_in(self.raw_text(page)) else []
        return [".SH SEE ALSO"] + lines + ["\\fBweft\\fR(7)"]

    # Section 7.

    def header_text(self, header):
        name = header_page(header.path)
        mark = Marker(self)
        blocks = blocks_of(header.head)
        if blocks:
            blocks[0].text = re.sub(r"^weft/\w+\.h - ", "", blocks[0].text)
            blocks[0].text = blocks[0].text[:1].upper() + blocks[0].text[1:]
        out = [self.title(name, 7), ".SH NAME", "%s \\- %s" % (name, escape(header.summary()))]
        out += [".SH SYNOPSIS", "\\fB#include <%s>\\fR" % header.path, ".SH DESCRIPTION"]
        out += drop_first(roff_blocks(blocks, mark, ".SS"))
        for kind in ("FUNCTIONS", "TYPES"):
            listed = [p for p in header.pages if (kind == "FUNCTIONS") == p.is_called()]
            section = None
            out += [".SH " + kind] if listed else []
            for page in listed:
                if page.section != section and kind == "FUNCTIONS" and page.section:
                    out.append(".SS " + literal(page.section[0].upper() + page.section[1:]))
                section = page.section
                out += [".TP", ", ".join("\\fB%s\\fR(3)" % n for n in page.listed()), mark(self.summary(page))]
        macros = [".SH MACROS"] if header.macros else []
        for item, doc in header.macros:
            text = re.sub(r"\\\n\s*", " ", item.text).replace("#define ", "").strip()
            if len(text) >= 60:
                text = text.split(")")[0] + ")" if "(" in text.split(" ")[0] else text.split("(")[0]
            macros += [".TP", "\\fB%s\\fR" % literal(re.sub(r"\s+", " ", text)),
                       mark(" ".join(item.trailing or doc)) or "\\&"]
        return out + macros + [".SH SEE ALSO"] + \
            ["\\fB%s\\fR(7)," % header_page(h.path) for h in self.headers if "<%s>" % h.path in header.includes] + \
            ["\\fBweft\\fR(7)"]

    def overview(self, readme):
        mark = Marker(self)
        intro = re.search(r"^# weft\n\n(.*?)\n\n", readme, re.S)
        hello = re.search(r"```c\n(.*?)```", readme, re.S)
        out = [self.title("weft", 7), ".SH NAME", "weft \\- remote calls that carry tensors, on libfabric"]
        whole = any(h.path == "weft/weft.h" for h in self.headers)  # not with WEFT_RPC_ONLY
        out += [".SH SYNOPSIS", ".nf", "\\fB#include <weft/%s.h>\\fR" % ("weft" if whole else "rpc"), "",
                "\\fBcc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs weft)\\fR"]
        out += [".fi", ".SH DESCRIPTION", mark(" ".join(intro.group(1).split())) if intro else "\\&"]
        out += [".PP", "Each function, type, macro and enumerator has a page in section 3, each header a page in "
                "section 7. "
                "\\fBweft_base.h\\fR(7) has the rules of the whole API: arguments, lifetimes, references, failures. "
                "\\fBweft_environment\\fR(7) has the environment variables, each of which is a page too: "
                "\\fBman WEFT_FABRIC\\fR."]
        out.append(".SH HEADERS")
        for header in self.headers:
            out += [".TP", "\\fB%s\\fR(7)" % header_page(header.path), mark(header.summary())]
        out += [".SH PROGRAMS"] if self.programs else []
        for program in self.programs:
            out += [".TP", "\\fB%s\\fR(1)" % literal(program.name), mark(program.summary)]
        out += [".SH FILES", ".TP", "\\fIPREFIX/share/doc/weft/docs/\\fR",
                "The pages to which other pages refer as \\fIdocs/NAME.md\\fR; \\fIdocs/README.md\\fR lists them.",
                ".TP", "\\fIPREFIX/share/doc/weft/examples/\\fR", "Programs, with a Makefile that builds them."]
        if hello:
            out += [".SH EXAMPLES", "Rank 1 sends a tensor to a function of rank 0, which returns the sum of its "
                    "elements. The program starts both:"] + code_lines(hello.group(1).rstrip().split("\n"))
        see = ["\\fB%s\\fR(1)," % literal(p.name) for p in self.programs]
        see += ["\\fB%s\\fR(7)," % name for name in ("weft_environment", "weft_base.h", "weft_agent.h", "weft_rpc.h")]
        return out + [".SH SEE ALSO"] + see + ["\\fBfabric\\fR(7)"]

    def files(self, readme):
        """All files: path below the folder of the manual -> text."""
        files = {}
        for header in self.headers:
            files["man7/%s.7" % header_page(header.path)] = self.header_text(header)
            for item in header.opaque:
                place = re.search(r"weft/\w+\.h", " ".join(item.trailing))
                page = header_page(place.group(0) if place else header.path)
                if page in self.pages:
                    files["man3/%s.3" % item.names()[0]] = [".so man7/%s.7" % page]
            for item, _ in header.macros:
                files["man3/%s.3" % item.names()[0]] = [".so man7/%s.7" % header_page(header.path)]
        for header in self.headers:
            for page in header.pages:
                own = page.listed()[0]
                files["man3/%s.3" % own] = self.function_page(page)
                for name in page.names():
                    if name != own:
                        files["man3/%s.3" % name] = [".so man3/%s.3" % own]
        files["man7/weft.7"] = self.overview(readme)
        files["man7/weft_environment.7"] = self.environment.page(self, Marker(self))
        for name in self.environment.names:
            files["man7/%s.7" % name] = [".so man7/weft_environment.7"]
        for header in self.headers:  # weft_rpc(7) is weft_rpc.h(7), unless a function has that name
            page = header_page(header.path)
            if "man3/%s.3" % page[:-2] not in files:
                files.setdefault("man7/%s.7" % page[:-2], [".so man7/%s.7" % page])
        for program in self.programs:
            files["man1/%s.1" % program.name] = program.page(self)
        return {path: "\n".join(tidy(lines)) + "\n" for path, lines in files.items()}


def tidy(lines):
    """No paragraph macro before a heading, or after one; no empty lines outside of preformatted text."""
    out, fill = [], True
    for line in lines:
        if line in (".nf", ".EX"):
            fill = False
        elif line in (".fi", ".EE"):
            fill = True
        if not line and fill:
            continue
        if line == ".PP" and out and out[-1].startswith((".SH", ".SS", ".PP")):
            continue
        if line.startswith((".SH", ".SS")) and out and out[-1] == ".PP":
            out.pop()
        out.append(line)
        if line.startswith((".SH", ".SS", ".EE")) and line != ".SH NAME":
            out += [".nh", ".ad l"]  # names are not hyphenated; headings and examples switch both on again (groff 1.23)
    return out


