# SPDX-License-Identifier: Apache-2.0
"""The text of comments: paragraphs, lists and preformatted blocks, summaries, errors. A part of tools/man-pages."""
import re

WIDTH = 120  # the column at which comments of headers are filled
PROPER = {"Adam", "Adagrad", "Adadelta", "Adamax", "Rprop", "Prometheus", "I", "Python", "Philox"}



class Block:
    """A paragraph: its sentences, its list (items), or preformatted lines."""

    def __init__(self, text="", items=None, code=None):
        self.text, self.items, self.code = text, items or [], code or []


def begins_item(line, before):
    """Comments are filled: a word that would have fitted the line before begins something new."""
    if not before or len(before) + 1 + len(line.split()[0]) <= WIDTH - len(" * "):
        return True
    lead = r" *(WEFT_\w+(,| \()|weft_\w+|WEFT_\w+: |[A-Z]\w*( \w+){0,4}: )"
    return before.endswith(".") and re.match(lead, line) is not None


def blocks_of(lines):
    blocks, before = [], ""
    for number, line in enumerate(lines + [""]):
        indent = len(line) - len(line.lstrip(" "))
        last = blocks[-1] if blocks else None
        if not line:
            before = "" if not (last and last.code) else before
            if last and last.code:
                last.code.append("")
            else:
                blocks.append(Block())
        elif last and last.items and before and (indent >= 2):
            if indent == 2 and begins_item(line, before):
                last.items.append(line.strip())
            else:
                last.items[-1] += " " + line.strip()
            before = line
        elif indent >= 4 or (indent >= 2 and last is not None and not last.text and not last.items) \
                or (indent >= 2 and last and last.code):
            if not (last and last.code):
                blocks.append(Block())
            blocks[-1].code.append(line[4:] if line.startswith("    ") else line.lstrip(" "))
        elif indent >= 2 and last and last.text:
            last.items.append(line.strip())
            before = line
        else:
            if last is None or last.items or last.code:
                blocks.append(Block())
            blocks[-1].text = (blocks[-1].text + " " + line.strip()).strip()
            before = ""
    for block in blocks:
        while block.code and not block.code[-1]:
            block.code.pop()
    return [b for b in blocks if b.text or b.items or b.code]


def sentences(text):
    """Splits after a full stop that a capital, a name or a quoted parameter follows, outside of parentheses."""
    found, start, depth = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth <= 0 and char in ".:" and re.match(r"[.:] (?=[A-Z`*_\"]|weft|drop)", text[at:]) \
                and (char == "." or text[:at].endswith("rrors") or text[:at].endswith("ERRORS")) \
                and not text[:at].endswith((" e.g", " i.e", ".")):
            found.append(text[start:at + 1])
            start = at + 2
    return found + [text[start:]]


def cuts_of(text, *separators):
    """The places of these separators outside of parentheses."""
    found, depth = [], 0
    for at, char in enumerate(text):
        depth -= char in ")]"
        if depth == 0 and text.startswith(separators, at) and at and re.match(r"[\w)\]]", text[at - 1]):
            found.append(at)
        depth += char in "(["
    return found


def summary_of(text, limit=95):
    text = re.sub(r"^[A-Z]{2,}[A-Z ]*[.:] (?=[A-Z])", "", re.sub(r"\s+", " ", text))
    text = re.sub(r" \(weft/\w+\.h\)", "", re.sub(r"^These functions ", "", text))
    one = sentences(text)[0].rstrip(".:").replace("`", "")
    ends = [at for at in cuts_of(one, ": ", "; ") if at >= 10]
    one = one[:ends[0]] if ends else one
    if len(one) > limit:
        ends = [at for at in cuts_of(one, ", ", " (") if at <= limit]
        one = one[:ends[-1]] if ends else one
    first = one.split(" ")[0]
    if re.fullmatch(r"[A-Z][a-z']*(-[a-z]+)*[,:]?", first) and first.rstrip(",:") not in PROPER:
        one = one[0].lower() + one[1:]
    return one


CODES = r"WEFT_ERR_\w+(?: \((?:[^()]|\([^()]*\))*\))?"


def error_items(text):
    """The items of a sentence about errors: (code, its text), or nothing if it is another sentence."""
    text = text.rstrip(".")
    one = re.match(r"(WEFT_ERR_\w+(?:, WEFT_ERR_\w+)*(?:, (?:at once|on \w+ members?|on every member))?): (.*)$", text)
    if one:
        return [(one.group(1), one.group(2))]
    one = re.match(r"(WEFT_ERR_\w+)(?: or (WEFT_ERR_\w+))?,? ((?:if|when|while|past|for) .*)$", text)
    if one:
        return [(", ".join(filter(None, one.groups()[:2])), one.group(3))]
    if re.fullmatch(r"%s(?:(?:,|,? and|,? or) %s)*" % (CODES, CODES), text):
        found = []
        for code in re.findall(CODES, text):
            name, _, inside = code.partition(" (")
            found.append((name, inside[:-1] if inside else ""))
        return found
    return []


def take_errors(blocks):
    """Splits a comment into description, return value, errors and threads. An error is (codes, text) or a Block."""
    description, returned, errors, threads = [], [], [], []
    for number, block in enumerate(blocks):
        if re.match(r"ERRORS of", block.text):
            errors.append(Block("Errors" + block.text[6:]))
            errors += listed_errors(block.items)
            continue
        if block.code:
            description.append(block)
            continue
        kept, moved, back = [], [], []
        for sentence in sentences(block.text):
            if re.match(r"Any thread\b|One thread\b", sentence):
                threads.append(sentence)
            elif moved or re.match(r"WEFT_ERR_\w+|Errors\b", sentence):
                moved.append(sentence)
            elif back and re.match(r"After a failure|Any other status", sentence):
                back.append(sentence)
            elif re.match(r"(Returns (?!at once)|NULL (if|on|only|past)|NULL: )", sentence) and (kept or description):
                back.append(sentence)
            else:
                kept.append(sentence)
        items = block.items
        for sentence in moved:
            found = error_items(sentence)
            if not found and sentence != "Errors:":
                found = [Block(sentence)]
                if errors and isinstance(errors[-1], tuple) and not sentence.startswith(("Errors", "The error", "Other")):
                    errors[-1] = (errors[-1][0], errors[-1][1].rstrip(".") + ". " + sentence)
                    continue
            errors += found
        statuses = items and re.match(r"WEFT_(OK|ERR)", items[0])
        if items and moved:
            errors += listed_errors(items)
            items = []
        if back or (statuses and items):
            returned.append(Block(" ".join(back), items if statuses else []))
            items = [] if statuses else items
        if kept or items:
            description.append(Block(" ".join(kept), items))
    if not description:
        description, returned = returned, []
    return description, returned, errors, threads


def listed_errors(items):
    found = []
    for item in items:
        several = [error for sentence in sentences(item) for error in error_items(sentence)]
        whole = re.match(r"(WEFT_ERR_\w+(?:, WEFT_ERR_\w+)*(?:,? \(?[a-z][^:.]*)?): (.*)$", item)
        found += [whole.groups()] if whole else several if several else [Block(item)]
    return found
