#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trace_check.py FILE... - checks trace files by the rules of the trace event format, and that calls and servings fit.

Of calls to oneself both ends must be there; of others the caller's file may not be given.
--cut: the file's writer died: its end may be missing. --chain: the files show one call 0 -> 1 -> 2, nested by ids and time; --self: one call
0 -> 0 -> 0.
--passes N: they show so many parts of workers in passes; prints how many of these failed. Else prints the number of spans.
"""
import argparse
import json
import sys


def load(path, cut):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if cut and not text.rstrip().endswith("]"):
        text = text[: text.rindex("\n")].rstrip().rstrip(",") + "]"
    return json.loads(text)


def need(condition, event, why):
    if not condition:
        sys.exit(f"{why}: {event}")


def check_event(event):
    need(isinstance(event.get("name"), str) and event["name"], event, "no name")
    need(event.get("ph") in ("X", "s", "f", "b", "e", "M"), event, "unknown phase")
    need(isinstance(event.get("pid"), int) and event["pid"] > 0, event, "no pid")
    need(isinstance(event.get("tid"), int), event, "no tid")
    need(isinstance(event.get("cat"), str), event, "no category")
    if event["ph"] == "M":
        need(isinstance(event.get("args"), dict), event, "metadata without args")
        return
    need(isinstance(event.get("ts"), (int, float)) and event["ts"] >= 0, event, "no ts")
    if event["ph"] == "X":
        need(isinstance(event.get("dur"), (int, float)) and event["dur"] >= 0, event, "no dur")
    else:
        need(isinstance(event.get("id"), str), event, "no id")
    if event["ph"] == "f":
        need(event.get("bp") == "e", event, "a flow's end that is not bound to the slice around it")


def ns(microseconds):
    return round(microseconds * 1000)


def check_nesting(events):
    """Slices of one track are either apart or one within the other."""
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for track in tracks.values():
        open_ends = []
        for event in sorted(track, key=lambda e: (ns(e["ts"]), -ns(e["dur"]))):
            begin, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            need(not open_ends or end <= open_ends[-1], event, "a slice crosses the one before")
            open_ends.append(end)


def check_names(events):
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "X":
            need(event["pid"] in processes and (event["pid"], event["tid"]) in threads, event, "a track without name")


def check_flows(events):
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    for event in events:
        if event["ph"] == "f":
            need(event["id"] in starts, event, "a flow that begins nowhere")
            start = starts[event["id"]]
            need((start["cat"], start["name"]) == (event["cat"], event["name"]), event, "the two ends differ")
        if event["ph"] in "sf":
            need((event["pid"], event["tid"], event["ts"]) in slices, event, "a flow without a slice")


def check_servings(events, spans):
    calls = {s["args"]["span"]: s for s in spans if s["cat"] == "call"}
    arrows = {e["id"] for e in events if e["ph"] == "f"}
    for span in spans:
        if span["cat"] != "serve":
            continue
        call = calls.get(span["args"].get("parent"))
        need(call, span, "served, but nobody's call")
        need(call["args"]["trace"] == span["args"]["trace"], span, "another trace than its caller's")
        need(span["name"] in (call["name"], "(unknown)"), span, "another function")
        need(call["args"]["call"] == span["args"]["call"], span, "another call")
        need(call["pid"] == span["args"]["peer"] + 1 and call["args"]["peer"] + 1 == span["pid"], span, "other workers")
        need(call["args"]["span"] in arrows, span, "no flow from its caller")


def is_to_itself(span):
    return span["args"]["peer"] + 1 == span["pid"]


def check_calls(spans):
    served = [s["args"].get("parent") for s in spans if s["cat"] == "serve"]
    numbers = set()
    for call in spans:
        if call["cat"] != "call":
            continue
        number = (call["pid"], call["args"]["call"])
        need(number[1] > 0 and number not in numbers, call, "no number of its own")
        numbers.add(number)
        need(not is_to_itself(call) or "control_fabric" not in call["args"], call, "a fabric of a call to oneself")
        if call["args"]["status"] == "WEFT_OK" and not is_to_itself(call):
            need(call["args"].get("control_fabric") in ("tcp", "sim"), call, "no fabric of the control lane")
        if is_to_itself(call):
            need(served.count(call["args"]["span"]) == 1, call, "a call to oneself that was not served once")


def only(spans, category, pid, name):
    found = [s for s in spans if (s["cat"], s["pid"], s["name"]) == (category, pid, name)]
    need(len(found) == 1, found, f"not one span {category} {name} of process {pid}")
    return found[0]


def check_links(chain):
    for parent, child in zip(chain, chain[1:]):
        need(child["args"]["parent"] == parent["args"]["span"], child, "not below its parent")
        need(child["args"]["trace"] == parent["args"]["trace"], child, "another trace")
        # Between workers the anchors of clocks differ by little; a reply may be on its way out when its call is complete.
        need(ns(child["ts"]) >= ns(parent["ts"]), child, "begins before its parent")


def check_self(spans):
    check_links([only(spans, side, 1, name) for name in ("nest", "inner") for side in ("call", "serve")])


def check_chain(events, spans):
    check_links([only(spans, "call", 1, "outer"), only(spans, "serve", 2, "outer"), only(spans, "call", 2, "inner"),
                 only(spans, "serve", 3, "inner")])
    stages = {e["name"] for e in events if e["ph"] == "X" and e["cat"] == "stage"}
    for stage in ("send", "arguments", "queue", "handler", "reply", "results"):
        need(stage in stages, sorted(stages), f"no {stage}")
    need(any(e["ph"] == "b" and e["name"] == "wire" for e in events), "", "no wire")


def check_passes(spans, count):
    """Each part in a pass is within what began it, down from the root's; and so are the calls of that part."""
    by_id = {s["args"]["span"]: s for s in spans}
    passes = [s for s in spans if s["cat"] == "pass"]
    need(len(passes) == count, [p["args"] for p in passes], f"not {count} passes")

    def which(span):
        return tuple(span["args"][key] for key in ("opener", "context", "root", "pass"))

    for span in passes:
        above = by_id.get(span["args"].get("parent"))
        if above:
            need(above["pid"] == span["pid"] and above["cat"] == "serve", span, "within no served call of its worker")
            check_links([above, span])
        if span["args"]["root"] + 1 == span["pid"]:
            need(not above or above["name"] == "weft:backward", span, "a root within something else")
            continue
        need(above and above["name"] == "weft:pass", span, "a part that nobody called for")
        call = by_id[above["args"]["parent"]]
        caller = by_id[call["args"]["parent"]]
        need(caller["cat"] == "pass" and which(caller) == which(span), span, "called for by another pass")
        check_links([caller, call, above, span])
    for span in spans:
        if (span["cat"], span["name"]) == ("call", "weft:pass"):
            caller = by_id.get(span["args"].get("parent"))
            need(caller and caller["cat"] == "pass" and caller["pid"] == span["pid"], span, "a message of no pass")
    return sum(p["args"]["status"] != "OK" for p in passes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--self", action="store_true", dest="itself")
    parser.add_argument("--passes", type=int)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    events = [event for path in options.files for event in load(path, options.cut)]
    for event in events:
        check_event(event)
    spans = [e for e in events if e["ph"] == "X" and e["cat"] in ("call", "serve", "pass")]
    check_nesting(events)
    check_names(events)
    if not options.cut:
        check_flows(events)
        check_servings(events, spans)
        check_calls(spans)
    if options.chain:
        check_chain(events, spans)
    if options.itself:
        check_self(spans)
    failed = check_passes(spans, options.passes) if options.passes is not None else None
    print(len(spans) if failed is None else failed)


if __name__ == "__main__":
    main()
