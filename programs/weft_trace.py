#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft_trace.py - weft-trace: merges the trace files of a job's workers (WEFT_TRACE) into one (docs/weft-trace.md)."""
import errno
import json
import os
import sys

VERSION = "@PROJECT_VERSION@"  # the build puts it here
HELP = """weft-trace - merges the trace files of a job's workers into one, for Perfetto

usage: weft-trace [options] FILE...
  --output FILE               the merged file; also -o (default: standard output)
  --version                   the version of weft
  --help                      this text

Files of one clock (boot of a kernel, and time namespace) are not shifted. Other files are shifted by the time of day in each
file's anchor, so their alignment is as good as that of the hosts' clocks. A file without an
end, because its writer died, is read up to its last whole line.

Exit code: 0; 1 if a file cannot be read or written, or is no trace of weft; 2 for a wrong
option.

example: weft-trace --output all.json trace.0.json trace.1.json
"""


def load(path):
    with open(path, encoding="utf-8") as file:
        text = file.read().rstrip()
    if not text.endswith("]"):  # the writer died: whole lines up to here
        text = text[: text.rfind("\n") + 1].rstrip().rstrip(",") + "]"
        print(f"weft-trace: {path} has no end: its worker was killed, or still runs", file=sys.stderr)
    events = json.loads(text)
    anchors = [e["args"] for e in events if e.get("ph") == "M" and e.get("name") == "weft_anchor"]
    return events, anchors[0]


def offset_ns(anchor):
    """The time of day less the file's clock."""
    return int(anchor["realtime_ns"]) - int(anchor["clock_ns"])


def clock_of(anchor):
    """Older files have no clock, and of some it is not known."""
    return anchor.get("clock") or anchor["host"]


def merge(paths):
    merged, first, dropped = [], None, 0
    for path in paths:
        try:
            events, anchor = load(path)
        except OSError as problem:
            sys.exit(f"weft-trace: {path}: {problem.strerror}")
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):  # no UTF-8, no JSON, or other JSON
            sys.exit(f"weft-trace: {path} is no trace of weft (WEFT_TRACE), or it is empty: leave it out")
        first = first or anchor
        shift = 0 if clock_of(anchor) == clock_of(first) else (offset_ns(anchor) - offset_ns(first)) / 1000
        for event in events:
            if "ts" in event and shift:
                event["ts"] = round(event["ts"] + shift, 3)
            dropped += event["args"].get("dropped", 0) if event["name"] == "weft_end" else 0
        merged += events
    if dropped:
        print(f"weft-trace: the workers dropped {dropped} spans", file=sys.stderr)
    return merged


def refuse(what):
    print(f"weft-trace: {what} (--help lists the options)", file=sys.stderr)
    sys.exit(2)


def put(text, output):
    """Writes to the file, or to standard output. What cannot be written is an error."""
    try:
        if output:
            with open(output, "w", encoding="utf-8") as file:
                file.write(text)
        elif sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError as problem:
        sys.stderr.write(f"weft-trace: {output or 'standard output'}: {problem.strerror}\n")
        sys.stdout = None  # Python would try again
        sys.exit(1)


def read_arguments(words):
    """The files, and the name of the merged one; None: standard output."""
    files, output, words = [], None, list(words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in ("--help", "-h", "--version"):
            put(f"weft-trace {VERSION}\n" if word == "--version" else HELP, None)
            sys.exit(0)
        if name in ("--output", "-o"):
            if not equals and not words:
                refuse(f"{name} needs a value: FILE")
            output = value if equals else words.pop(0)
        elif word.startswith("-"):
            refuse(f"unknown option '{word}'")
        else:
            files.append(word)
    if not files:
        refuse("no file: weft-trace FILE...")
    for file in files:
        if files.count(file) > 1:
            refuse(f"{file} is named twice")
        if output and os.path.exists(output) and os.path.exists(file) and os.path.samefile(output, file):
            refuse(f"--output is {output}, which is one of the traces")
    return files, output


def main():
    files, output = read_arguments(sys.argv[1:])
    events = merge(files)
    lines = "[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in events) + "\n]\n"
    put(lines, output)


if __name__ == "__main__":
    main()
