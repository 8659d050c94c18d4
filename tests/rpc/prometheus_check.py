#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""prometheus_check.py - reads metrics on standard input and checks them by the rules of text format 0.0.4, strictly.

The first thing that breaks one is printed, and the exit status is 1. Prints the samples by "name{labels}" otherwise.
"""
import re
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
VALUE = r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|$)')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? ({VALUE})$")
TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}


def fail(number, line, why):
    sys.exit(f"line {number}: {why}: {line!r}")


def read_labels(number, line, text):
    labels = {}
    while text:
        match = LABEL.match(text)
        if not match:
            fail(number, line, "malformed labels")
        if match[1] in labels:
            fail(number, line, f"label {match[1]} comes twice")
        labels[match[1]] = match[2]
        text = text[match.end():]
    return labels


def family_of(name, types):
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix) and types.get(name[: -len(suffix)]) == "histogram":
            return name[: -len(suffix)]
    return name


def check_histogram(name, series):
    """`series`: (suffix, labels, value) of one family."""
    groups = {}
    for suffix, labels, value in series:
        rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        group = groups.setdefault(rest, {"buckets": [], "sum": None, "count": None})
        if suffix == "_bucket":
            if "le" not in labels:
                sys.exit(f"{name}: a bucket without le")
            group["buckets"].append((float(labels["le"].replace("Inf", "inf")), value))
        elif suffix in ("_sum", "_count"):
            group[suffix[1:]] = value
        else:
            sys.exit(f"{name}: a histogram's sample without suffix")
    for rest, group in groups.items():
        bounds = [bound for bound, _ in group["buckets"]]
        counts = [count for _, count in group["buckets"]]
        if bounds != sorted(set(bounds)) or not bounds or bounds[-1] != float("inf"):
            sys.exit(f"{name}{rest}: bounds do not rise to +Inf")
        if counts != sorted(counts):
            sys.exit(f"{name}{rest}: buckets are not cumulative")
        if group["count"] != counts[-1] or group["sum"] is None:
            sys.exit(f"{name}{rest}: _count is not the last bucket, or there is no _sum")


def main():
    data = sys.stdin.buffer.read()
    text = data.decode("utf-8")
    if not text.endswith("\n") or "\r" in text:
        sys.exit("the text does not end with a newline, or has carriage returns")
    types, helps, closed, seen, series, current = {}, set(), set(), {}, {}, None
    for number, line in enumerate(text[:-1].split("\n"), 1):
        if not line:
            continue
        if line.startswith("#"):
            parts = line.split(" ", 3)
            if len(parts) < 4 or parts[1] not in ("HELP", "TYPE") or not re.fullmatch(NAME, parts[2]):
                fail(number, line, "malformed comment")
            family = parts[2]
            if parts[1] == "TYPE":
                if parts[3] not in TYPES or family in types or family in series:
                    fail(number, line, "unknown type, a second one, or one after samples")
                types[family] = parts[3]
            elif family in helps:
                fail(number, line, "a second HELP")
            else:
                helps.add(family)
        else:
            match = SAMPLE.match(line)
            if not match:
                fail(number, line, "malformed sample")
            family = family_of(match[1], types)
            labels = read_labels(number, line, match[2] or "")
            key = (match[1], tuple(sorted(labels.items())))
            if key in seen:
                fail(number, line, "a series comes twice")
            seen[key] = float(match[3].replace("Inf", "inf"))
            if family not in types or family not in helps:
                fail(number, line, "no TYPE or HELP before it")
            if types[family] == "counter" and not (match[1].endswith("_total") and seen[key] >= 0):
                fail(number, line, "a counter that is negative or has no _total")
            series.setdefault(family, []).append((match[1][len(family):], labels, seen[key]))
        if family != current:
            if family in closed:
                fail(number, line, "lines of one family are apart")
            closed.add(current)
            current = family
    for family, samples in series.items():
        if types[family] == "histogram":
            check_histogram(family, samples)
    for (name, labels), value in seen.items():
        print(name + "{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}", int(value) if value == int(value) else value)


if __name__ == "__main__":
    main()
