#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/trace-merge - merges the trace files of a job's workers (WEFT_TRACE=trace-%r.json) into one for Perfetto.

Files of one host share a clock. Files of other hosts are shifted by the time of day in each file's anchor, so their alignment is
as good as that of the hosts' clocks. Files without an end, because their writer died, are accepted.
"""
import argparse
import json
import sys


def load(path):
    with open(path, encoding="utf-8") as file:
        text = file.read().rstrip()
    if not text.endswith("]"):  # the writer died: whole lines up to here
        text = text[: text.rindex("\n") + 1].rstrip().rstrip(",") + "]"
    events = json.loads(text)
    anchors = [e["args"] for e in events if e.get("ph") == "M" and e.get("name") == "weft_anchor"]
    if not anchors:
        raise ValueError("it has no anchor: is it a trace of weft's?")
    return events, anchors[0]


def offset_ns(anchor):
    """The time of day less the file's clock."""
    return int(anchor["realtime_ns"]) - int(anchor["clock_ns"])


def merge(paths):
    merged, first, dropped = [], None, 0
    for path in paths:
        try:
            events, anchor = load(path)
        except (OSError, ValueError, KeyError) as problem:
            sys.exit(f"trace-merge: {path}: {problem}")
        first = first or anchor
        shift = 0 if anchor["host"] == first["host"] else (offset_ns(anchor) - offset_ns(first)) / 1000
        for event in events:
            if "ts" in event and shift:
                event["ts"] = round(event["ts"] + shift, 3)
            dropped += event["args"].get("dropped", 0) if event["name"] == "weft_end" else 0
        merged += events
    if dropped:
        print(f"trace-merge: the workers dropped {dropped} spans", file=sys.stderr)
    return merged


def main():
    parser = argparse.ArgumentParser(prog="trace-merge", description=__doc__.split("\n\n")[0],
                                     epilog=__doc__.split("\n\n")[1])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", "--output", help="the merged file; default: standard output")
    options = parser.parse_args()
    events = merge(options.files)
    lines = "[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in events) + "\n]\n"
    if not options.output:
        sys.stdout.write(lines)
        return
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(lines)


if __name__ == "__main__":
    main()
