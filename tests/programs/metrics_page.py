#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""metrics_page.py PROGRAM FOLDER - runs the program of docs/metrics.md with weft-run and weft-trace of that folder."""
import json
import os
import subprocess
import sys
import tempfile

program, tools = (os.path.abspath(path) for path in sys.argv[1:3])
with tempfile.TemporaryDirectory() as folder:
    path = folder + "/trace.json"
    started = [tools + "/weft-run", "-n", "1", program]
    done = subprocess.run(started, env={**os.environ, "WEFT_TRACE": path}, stdout=subprocess.PIPE, text=True, timeout=50, check=True)
    assert "36.270\n" in done.stdout, done
    merged = subprocess.run([tools + "/weft-trace", path], stdout=subprocess.PIPE, timeout=50, check=True).stdout
    written = json.load(open(path, encoding="utf-8"))
anchor = [event["args"] for event in written if event["name"] == "weft_anchor"][0]
with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
    assert anchor["clock"] == f"{file.read().strip()}/{os.stat('/proc/self/ns/time').st_ino}", anchor
events = json.loads(merged)
spans = [event for event in events if event.get("cat") == "program"]
assert [span["name"] for span in spans] == ["step", "step", "step", "epoch"], spans
epoch = spans.pop()
for span in spans:
    assert span["ts"] >= epoch["ts"] and span["ts"] + span["dur"] <= epoch["ts"] + epoch["dur"] + 0.01, (span, epoch)
tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
assert all(tracks[span["tid"]].startswith("program ") for span in [*spans, epoch]), tracks
