#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft_perf.py PROGRAM EMULATED - runs weft-perf small, and checks what it prints: the form and the sanity of results, not their speed.

Two processes over loopback, sides that are killed, wrong options, comparisons, and peers that are missing or faked. EMULATED has the
emulated driver of GPUs.
"""
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

PROGRAM, EMULATED = sys.argv[1:]
FIELDS = ["measure", "program", "fabric", "what", "bytes", "workers", "window", "unit", "is_rate", "p50", "p90", "p99", "best",
          "samples", "floor", "floor_name", "of_floor", "of_weft", "control", "bulk"]
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "OMPI_", "PMI", "SLURM_", "MV2_", "WEFT_")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
LIMIT_S = 240


def run(*args, code=0, env=None):
    done = subprocess.run([PROGRAM, *args], env={**ENV, **(env or {})}, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == code, (args, done)
    return done


def start(*args, env=None):
    return subprocess.Popen([PROGRAM, *args], env={**ENV, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process, code):
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, (process.args, process.returncode, out, err)
    return out, err


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-3)


def check_result(one):
    """What holds for each result, however fast the machine is."""
    assert list(one) == FIELDS, one
    assert one["p50"] is not None and math.isfinite(one["p50"]) and one["samples"] >= 1, one
    assert one["p50"] > 0 or one["measure"] == "memory", one
    worse = [one[k] for k in ("p50", "p90", "p99") if one[k] is not None]
    assert worse == sorted(worse, reverse=one["is_rate"]), one
    assert one["best"] >= one["p50"] if one["is_rate"] else one["best"] <= one["p50"], one
    assert (one["p90"] is not None) == (one["samples"] >= 10) and (one["p99"] is not None) == (one["samples"] >= 100), one
    if one["floor"] is None:
        assert one["of_floor"] is None and one["floor_name"] == "", one
    else:
        ratio = one["p50"] / one["floor"] if one["is_rate"] else one["floor"] / one["p50"]
        assert close(one["of_floor"], ratio) and one["floor_name"], one
    assert one["unit"] in ("us", "GB/s", "calls/s", "KiB", "count", "times") and one["is_rate"] == one["unit"].endswith("/s"), one
    assert one["workers"] >= 2 and (one["of_weft"] is None) == (one["program"] == "weft"), one


def find(found, measure, what, **keys):
    rows = [one for one in found if one["measure"] == measure and one["what"] == what and all(one[k] == v for k, v in keys.items())]
    assert len(rows) == 1, (measure, what, keys, rows)
    return rows[0]


def check_everything(folder):
    """All measurements over tcp, small; then the same results in each form."""
    old, picture = os.path.join(folder, "old.json"), os.path.join(folder, "old.svg")
    done = run("--fabric", "tcp", "--seconds", "0.01", "--sizes", "64 B,64KiB", "--workers", "3", "--idle-peers", "2", "--json",
               "--svg", picture)
    with open(old, "w", encoding="utf-8") as file:
        file.write(done.stdout)
    whole = json.loads(done.stdout)
    assert whole["weft_perf"] == 1 and whole["version"] and re.fullmatch(r"\d+\.\d+", whole["libfabric"]), whole
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", whole["date"]), whole["date"]
    assert whole["host"] == socket.gethostname() and 0 <= whole["busy"] <= 1, whole
    assert any("do not quote" in note for note in whole["notes"]) == (whole["busy"] > 0.15) == ("do not quote" in done.stderr), whole
    assert all(whole["load_" + over] >= 0 for over in ("1_minute", "5_minutes", "15_minutes")), whole
    found = whole["results"]
    for one in found:
        check_result(one)
        assert one["fabric"] == one["control"] == one["bulk"] == "tcp" and one["program"] == "weft", one
    measures = list(dict.fromkeys(one["measure"] for one in found))
    assert measures == ["latency", "bandwidth", "rate", "incast", "beside", "collectives", "memory"], measures
    first = find(found, "latency", "first call")
    assert first["samples"] == 1 and first["floor"] is None, first
    for what in ("no-op inline", "no-op executor"):
        assert find(found, "latency", what)["floor_name"].endswith("tcp messages")
    for size, kind in ((64, "messages"), (65536, "remote reads")):
        for what in ("one way", "echo"):
            assert find(found, "latency", what, bytes=size)["floor_name"].endswith(kind)
        find(found, "bandwidth", "both ways", bytes=size)
        for what in ("allreduce", "broadcast, barrier", "allgather", "reduce_scatter", "all_to_all", "reduce, barrier",
                     "gather, barrier", "scatter, barrier"):
            find(found, "collectives", what, bytes=size, workers=2)
    assert find(found, "incast", "no-op inline")["workers"] == 3
    for window in (1, 4, 16, 64, 256):
        find(found, "rate", "inline", window=window)
    beside, alone = find(found, "beside", "small calls beside"), find(found, "beside", "small calls alone")
    assert beside["bytes"] == 65536 and alone["bytes"] == 0
    assert 0 < find(found, "memory", "agent")["p50"] < 1 << 20
    assert 0 <= find(found, "memory", "idle peer, descriptors")["p50"] <= 4
    assert find(found, "memory", "payload bytes copied")["p50"] == 0
    check_picture(picture, whole)
    check_forms(old, found)
    return old


def check_picture(path, whole):
    """A plot for each operation that has two places on its axis: a title, titles of both axes, a mark for each median and each floor, a name for
    each line; and one caption."""
    drawn = xml.etree.ElementTree.parse(path).getroot()
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    places = {}
    for one in whole["results"]:
        at = one["window"] if one["measure"] == "rate" else one["bytes"]
        if at and one["measure"] != "memory":
            places.setdefault(f"{one['measure']}: {one['what']}", []).append((at, one))
    plots = {title: points for title, points in places.items() if len({at for at, _ in points}) > 1}
    titles = [text for text in texts if text in places]
    assert sorted(titles) == sorted(plots) and "latency: echo" in titles and "collectives: allreduce" in titles, (titles, plots.keys())
    assert texts.count("size of the tensor") + texts.count("calls in flight") == len(plots) == len([text for text in texts if text.endswith(", median")])
    for unit in ("microseconds, median", "calls a second, median", "GB/s, median"):
        assert unit in texts, (unit, texts)
    points = [one for title in plots for _, one in plots[title]]
    values = len(points) + len([one for one in points if one["floor"] is not None])
    names = len([text for text in texts if text.startswith(("weft tcp", "floor of tcp"))])
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == values + names, (values, names)
    captions = [text for text in texts if "libfabric" in text]
    assert len(captions) == 1 and all(word in captions[0] for word in (whole["host"], whole["date"][:10], whole["version"], "load ")), captions


def check_forms(old, found):
    whole = json.loads(lines_of(old))
    assert json.loads(run("--from", old, "--json").stdout) == whole
    elsewhere = old + ".elsewhere"  # from another machine: its fields stay
    there = {**whole, "version": "0.0.9", "libfabric": "9.9", "kernel": "k", "processors": 99, "seconds": 7, "date": "d", "host": "<h&>", "busy": 0.5,
             "load_1_minute": 5.25, "load_15_minutes": None, "notes": ["a \"note\"", "b"]}
    with open(elsewhere, "w", encoding="utf-8") as file:
        json.dump(there, file)
    assert json.loads(run("--from", elsewhere, "--json", "--svg", elsewhere + ".svg").stdout) == there
    check_picture(elsewhere + ".svg", there)
    assert "<h&>, 99 processors, d, weft 0.0.9, libfabric 9.9, load 5.2, others used 50 %: busy, do not quote" in run("--from", elsewhere).stdout
    for choice, chosen in ((["--only", "rate,incast"], lambda one: one["measure"] in ("rate", "incast")), (["--fabric", "tcp"], lambda _: True),
                           (["--sizes", "64"], lambda one: one["bytes"] in (0, 64))):
        assert json.loads(run("--from", old, *choice, "--json").stdout)["results"] == [one for one in found if chosen(one)], choice
    assert json.loads(run("--from", old, "--json", env={"WEFT_FABRIC": "host"}).stdout)["results"] == found
    assert "--fabric" in run("--from", old, "--fabric", "host", code=2).stderr
    table = run("--from", old).stdout.splitlines()
    assert len([line for line in table if line.startswith("| tcp ")]) == len(found), table


def check_compare(folder, old):
    with open(old, encoding="utf-8") as file:
        whole = json.load(file)

    def changed(name, change):
        path = os.path.join(folder, name)
        copy = json.loads(json.dumps(whole))
        change(copy["results"])
        with open(path, "w", encoding="utf-8") as file:
            json.dump(copy, file, indent=2)  # another layout than ours
        return path

    def faster(results):
        for one in results:
            one["p50"] = one["p50"] * 3 if one["is_rate"] else one["p50"] / 3

    def slower(results):
        for one in results:
            one["p50"] = one["p50"] / 3 if one["is_rate"] else one["p50"] * 3

    def other(results):
        for one in results:
            one["fabric"] = "pigeon"

    same = run("--from", old, "--compare", old).stdout
    count = len([one for one in whole["results"] if one["p50"] > 0])
    assert f"{count} results in both runs, 0 more than 1.5 times as slow" in same and "SLOWER" not in same, same
    found = run("--from", old, "--compare", changed("fast.json", faster), "--bound", "2", code=3).stdout
    assert found.count("SLOWER") == count and f"{count} more than 2 times" in found, found
    assert "SLOWER" not in run("--from", old, "--compare", changed("fast.json", faster), "--bound", "4").stdout
    assert "SLOWER" not in run("--from", old, "--compare", changed("slow.json", slower)).stdout
    assert "no result is in both" in run("--from", old, "--compare", changed("other.json", other), code=1).stderr
    broken = os.path.join(folder, "broken.json")
    for text, words in (('{"results": [{"measure": "latency"', "at byte"), ("[" * 40 + "]" * 40, "too deeply"), ("{}", "no results"),
                        ('{"results": [{"what": "x', "no end"), ("", "at byte 0"), ("measure what p50", "a value is expected at byte 0"),
                        ('{"results": [inf]}', "a value is expected"), ("{} {}", "something follows")):
        with open(broken, "w", encoding="utf-8") as file:
            file.write(text)
        done = run("--from", old, "--compare", broken, code=2)
        assert words in done.stderr and "broken.json" in done.stderr and not done.stdout, done


def check_host():
    """The default measures what opens: host at least says why it does not carry large tensors, if it does not."""
    found = json.loads(run("--fabric", "host", "--seconds", "0.01", "--sizes", "64,64K", "--only", "latency", "--json").stdout)
    for one in found["results"]:
        check_result(one)
        assert one["control"] == "host" and one["bulk"] in ("host", "tcp") and one["fabric"] == "host", one
    mixed = json.loads(run("--fabric", "host+tcp", "--seconds", "0.01", "--only", "beside", "--sizes", "64K", "--json").stdout)
    assert {one["fabric"] for one in mixed["results"]} == {"host+tcp"}, mixed


def serve(env=None, fabric="tcp"):
    """A side that waits on a free port; and the arguments that it tells to type on the other."""
    side = start("--serve", "--address", "127.0.0.1", "--port", "0", "--fabric", fabric, env=env)
    for line in side.stdout:
        found = re.fullmatch(r"\s+(?:WEFT_SECRET_FILE=\S+ )?weft-perf (--to 127\.0\.0\.1:\d+)\n", line)
        if found:
            return side, found.group(1).split()
    raise AssertionError(end(side, 0))


def check_two_sides():
    side, to = serve()
    done = run(*to, "--fabric", "tcp", "--seconds", "0.01", "--sizes", "64,1M", "--json")
    whole = json.loads(done.stdout)
    for one in whole["results"]:
        check_result(one)
        assert one["control"] == one["bulk"] == "tcp" and one["workers"] == 2, one
    assert {one["measure"] for one in whole["results"]} == {"latency", "bandwidth", "rate", "beside", "collectives"}
    assert find(whole["results"], "latency", "one way", bytes=1 << 20) and all(one["bytes"] in (0, 64, 1 << 20) for one in whole["results"])
    assert any("incast" in note for note in whole["notes"]) and any("memory" in note for note in whole["notes"]), whole["notes"]
    end(side, 0)


def check_mismatch():
    """The sides have different fabrics: the other side's are named, and what both have is measured."""
    small = ("--only", "rate", "--seconds", "0.004", "--json")
    side, to = serve(fabric="host")
    for fabric in ("tcp", "tcp,host"):
        done = run(*to, *small, "--fabric", fabric, code=1)
        assert "weft-perf: tcp does not reach the other side, which has only host: " in done.stderr, done
        assert json.loads(done.stdout)["results"] == [], done
    done = run(*to, *small)
    assert {one["fabric"] for one in json.loads(done.stdout)["results"]} == {"host"} and "which has only host" in done.stderr, done
    end(side, 0)


def check_secret(folder):
    """The side that waits takes only one with its secret; a wrong one does not end it."""
    secrets = []
    for name in ("ours", "theirs"):
        secrets.append(os.path.join(folder, name))
        with open(secrets[-1], "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(name * 8)
    ours, theirs = ({"WEFT_SECRET_FILE": path} for path in secrets)
    side, to = serve(env=ours)
    small = (*to, "--fabric", "tcp", "--only", "rate", "--seconds", "0.004", "--json")
    for env, words in ((theirs, "secret"), ({}, "no secret")):
        done = run(*small, env=env, code=1)
        assert words in done.stderr and json.loads(done.stdout)["results"] == [], done
    assert json.loads(run(*small, env=ours).stdout)["results"]
    end(side, 0)


def check_environment():
    """Variables that a launcher, or the user's own job, has set change nothing."""
    found = json.loads(run("--fabric", "tcp", "--only", "rate", "--seconds", "0.004", "--no-floor", "--json", env={
        "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "WEFT_NAME": "x", "WEFT_ELASTIC": "1", "WEFT_FABRIC": "verbs"}).stdout)
    assert {one["control"] for one in found["results"]} == {"tcp"}, found
    small = ("--only", "rate", "--seconds", "0.004", "--no-floor", "--json")
    for fabric, name, control in (("tcp", "tcp", "tcp"), ("host,tcp", "host+tcp", "host")):
        found = json.loads(run(*small, env={"WEFT_FABRIC": fabric}).stdout)["results"]
        assert {(one["fabric"], one["control"]) for one in found} == {(name, control)}, (fabric, found)
    for name, value in (("WEFT_FABRIC", "nosuch"), ("WEFT_FABRIC", "host," * 20), ("WEFT_IFACE", "nowhere0"), ("WEFT_PORTS", "5-1")):
        done = run(*small, env={name: value}, code=2)
        assert value in done.stderr and not done.stdout, (name, done)


def wait_for_row(process):
    for line in process.stdout:
        if line.startswith("| tcp"):
            return
    raise AssertionError(end(process, 0))


def check_killed_sides():
    """The death of one side ends the other one, with a sentence."""
    side, to = serve()
    measuring = start(*to, "--fabric", "tcp", "--seconds", "0.5", "--only", "latency")
    wait_for_row(measuring)
    side.kill()
    began = time.monotonic()
    _, err = end(measuring, 1)
    assert "weft-perf: " in err and "STORE_LOST" in err and time.monotonic() - began < 30, err
    end(side, -signal.SIGKILL)
    side, to = serve()
    measuring = start(*to, "--fabric", "tcp", "--seconds", "0.5", "--only", "latency")
    wait_for_row(measuring)
    measuring.kill()
    end(measuring, -signal.SIGKILL)
    _, err = end(side, 1)
    assert "the measuring side (worker 1) died" in err, err


def children(pid):
    return parents_and_children().get(pid, [])


def parents_and_children():
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    parents.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
            except OSError:
                pass
    return parents


def descendants(pid):
    parents = parents_and_children()
    found = list(parents.get(pid, []))
    for one in found:  # it grows
        found += parents.get(one, [])
    return found


def workers_of(pid):
    """The workers that it started: weft_job_open marks them."""
    for child in descendants(pid):
        try:
            with open(f"/proc/{child}/environ", "rb") as file:
                if b"WEFT_SPAWNED=" in file.read():
                    yield child
        except OSError:
            pass


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def check_killed_workers():
    """A worker dies, or stops; then the process that measures; then weft-perf itself. Nothing is left behind."""
    for victim, code, words in (("worker", 1, "PEER_DEAD"), ("stopped", 1, "PEER_DEAD"),
                                ("measuring", 1, "the measuring process was killed"), ("all", -9, "")):
        measuring = start("--fabric", "tcp", "--seconds", "0.5", "--only", "latency", "--workers", "2", "--no-floor")
        wait_for_row(measuring)
        family, workers = descendants(measuring.pid), list(workers_of(measuring.pid))
        assert len(workers) == 1 and len(family) == 2, (family, workers)
        process = {"measuring": (set(family) - set(workers)).pop(), "all": measuring.pid}.get(victim, workers[0])
        os.kill(process, signal.SIGSTOP if victim == "stopped" else signal.SIGKILL)
        _, err = end(measuring, code)
        assert words in err, (victim, err)
        limit = time.monotonic() + 20
        while any(alive(pid) for pid in family) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in family), (victim, family)


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_stopped(folder):
    """Ctrl-C and SIGTERM end the program with a line, its results so far, and no process left; also the side that waits."""
    for number, code, words in ((signal.SIGINT, 130, "ended by SIGINT"), (signal.SIGTERM, 143, "ended by SIGTERM")):
        measuring = start("--fabric", "tcp", "--seconds", "0.5", "--only", "latency", "--workers", "2", "--no-floor")
        wait_for_row(measuring)
        family = descendants(measuring.pid)
        assert len(family) == 2, family
        measuring.send_signal(number)
        _, err = end(measuring, code)
        assert words in err and not any(alive(pid) for pid in family), (number, err, family)
    path = os.path.join(folder, "stopped.json")
    with open(path, "w", encoding="utf-8") as out:
        measuring = subprocess.Popen([PROGRAM, "--fabric", "tcp", "--seconds", "5", "--only", "rate", "--no-floor", "--json"], env=ENV, stdout=out,
                                     stderr=subprocess.PIPE, text=True, start_new_session=True)
        while not any(workers_of(measuring.pid)):
            assert measuring.poll() is None, end(measuring, 0)
        os.killpg(measuring.pid, signal.SIGINT)  # as a terminal does
        end(measuring, 130)
    whole = json.loads(lines_of(path))
    assert whole["results"] == [] and any("SIGINT" in note for note in whole["notes"]), whole
    side, _ = serve()
    side.send_signal(signal.SIGINT)
    assert "ended by SIGINT" in end(side, 130)[1]


def check_outputs(folder, old):
    """Output that cannot be written is an error: before the measurements if that can be known, otherwise at the end."""
    with open("/dev/full", "w", encoding="ascii") as full:
        for args in (["--help"], ["--version"], ["--from", old], ["--from", old, "--json"],
                     ["--only", "rate", "--fabric", "tcp", "--seconds", "0.004", "--no-floor"]):
            done = subprocess.run([PROGRAM, *args], env=ENV, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
            assert done.returncode == 1 and "weft-perf: standard output cannot be written" in done.stderr, (args, done)
    closed = subprocess.run(["sh", "-c", 'exec "$0" --from "$1" >&-', PROGRAM, old], env=ENV, capture_output=True, text=True, timeout=LIMIT_S,
                            check=False)
    assert closed.returncode == 1 and "standard output cannot be written: it is closed" in closed.stderr, closed
    for path, words in (("no/folder/x.svg", "No such file"), (folder, "Is a directory")):
        done = run("--svg", path, code=2)
        assert path in done.stderr and words in done.stderr and not done.stdout, done
    done = run("--from", old, "--svg", "/dev/full", code=1)
    assert "--svg /dev/full: No space" in done.stderr, done
    kept = os.path.join(folder, "kept.svg")
    with open(kept, "w", encoding="ascii") as file:
        file.write("x" * 100000)
    run("--fabric", "nosuch", "--svg", kept, code=2)
    assert lines_of(kept) == "x" * 100000
    run("--from", old, "--svg", kept)
    assert xml.etree.ElementTree.fromstring(lines_of(kept)).tag.endswith("svg")
    os.unlink(kept)
    run("--fabric", "nosuch", "--svg", kept, code=2)
    assert not os.path.exists(kept)


def check_used_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--serve", "--address", "127.0.0.1", "--port", str(taken.getsockname()[1]), "--fabric", "tcp", code=1)
    assert "weft-perf waits" not in done.stdout and "port" in done.stderr, done


def check_device():
    """Echoes of a GPU's tensors, beside those of page-locked memory; on the emulated one."""
    emulated = {"LD_LIBRARY_PATH": EMULATED}
    args = ("--only", "device", "--device", "cuda:1", "--fabric", "tcp", "--sizes", "1K,1M", "--seconds", "0.05", "--json")
    whole = json.loads(run(*args, env=emulated).stdout)
    found = whole["results"]
    assert any("cuda:1 is emulated GPU 1" in note and "nothing about a GPU" in note for note in whole["notes"]), whole["notes"]
    for one in found:
        check_result(one)
    for what, window in (("echo", 1), ("echo, in flight", 4)):
        for size in (1024, 1 << 20):
            assert find(found, "device", what, bytes=size, window=window)["floor_name"] == "page-locked memory"
    assert find(found, "device", "p99, of alone")["bytes"] == 1 << 20 and len(found) == 7, found
    bare = json.loads(run(*args, "--no-floor", env=emulated).stdout)["results"]
    assert all(one["floor"] is None for one in bare), bare
    missing = run("--only", "device", "--device", "cuda:2", "--fabric", "tcp", code=1, env=emulated)
    assert "cuda:2" in missing.stderr, missing


def check_misuse():
    for args, value in ((["--only", "speed"], "'speed'"), (["--fabric", "nosuch"], '"nosuch"'), (["--fabric", "tcp,tcp"], "'tcp' twice"),
                        (["--fabric", "tcp,,host"], "empty"), (["--sizes", "8X"], "'8X'"), (["--sizes", "0"], "'0'"),
                        (["--sizes", "2G"], "'2G'"), (["--sizes", "-1"], "'-1'"), (["--sizes", "64K,"], "''"), (["--to", "host:99999"], "'99999'"),
                        (["--to", "host:"], "''"), (["--to", ":5"], "':5'"), (["--seconds", "0"], "'0'"), (["--seconds", "nan"], "'nan'"),
                        (["--workers", "1"], "'1'"), (["--idle-peers", "x"], "'x'"), (["--port", "70000"], "'70000'"),
                        (["--serve", "--to", "there"], "there"), (["--serve", "--json"], "--serve"), (["--sizes", "1MB"], "'1MB'"), (["--sizes", "1  MiB"], "'1  MiB'"),
                        (["--address", "10.0.0.1"], "--address"), (["--serve", "--peers"], "--peers"), (["--bound", "0.5"], "'0.5'"),
                        (["--from", "no/file.json"], "no/file.json"), (["--compare", "no/file.json"], "no/file.json"),
                        (["--speed"], "--speed"), (["loudly"], "'loudly'"), (["--sizes"], "--sizes"), (["--port", "5"], "--port"),
                        (["--to", "there", "--port", "5"], "--port"), (["--bound", "2"], "--bound"), (["--serve", "--only", "rate"], "--only"),
                        (["--to", "there", "--workers", "3"], "--workers"), (["--serve", "--seconds", "1"], "--seconds"),
                        (["--from", "x", "--no-floor"], "--no-floor"), (["--only", "rate", "--sizes", "8"], "--sizes"),
                        (["--only", "rate", "--idle-peers", "3"], "--idle-peers"), (["--workers", "2"], "incast"),
                        (["--only", "incast", "--workers", "2"], "incast"), (["--to", "there", "--only", "incast"], "incast"),
                        (["--to", "there", "--only", "rate,memory"], "memory"), (["--only", "device"], "--device"),
                        (["--device", "cuda:64"], "'cuda:64'"), (["--device", "cpu"], "'cpu'"), (["--only", "rate", "--device", "cuda:0"], "--device"),
                        (["--serve", "--device", "cuda:0"], "--device"), (["--fabric", "host" + "+tcp" * 20], "longer")):
        done = run(*args, code=2)
        assert value in done.stderr and not done.stdout and "weft-perf: " in done.stderr, (args, done)
    done = run("--from", __file__, code=2)
    assert "is no JSON" in done.stderr, done
    text = run("--help").stdout
    for word in ("--only", "--fabric", "--to", "--compare", "of floor", "Exit code", "incast", "process_vm_readv"):
        assert word in text, word
    assert re.fullmatch(r"weft-perf \d+\.\d+\.\d+\S*\n", run("--version").stdout)


FAKES = {
    "mpirun": 'while read -r size window us what; do echo "3.5 4.5 40.$size"; done\n',
    "python3": 'case "$*" in *import*) exit 0 ;; esac\n'
               'while read -r size window us what; do case "$*.$what.$size" in\n'
               '*torch_rpc*.no-op\\ executor.0) echo "110.5 110.5 99" ;; *torch_rpc*.one\\ way.64) echo 250.5 ;;\n'
               '*torch_rpc*.echo.64) echo 300.5 ;; *torch_rpc*.echo.65536) exit 1 ;; *torch_rpc*.executor.0) echo "$window.5" ;;\n'
               '*torch_allreduce*.allreduce.*) echo 500.5 ;; *) echo 1 ;; esac; done\n',
}


def check_peers(folder):
    """Peers that are missing are notes; what those print that are there is read, in each turn. Fakes stand for them."""
    small = ("--fabric", "tcp", "--seconds", "0.005", "--sizes", "64,64K", "--workers", "2", "--no-floor", "--peers", "--json",
             "--only", "latency,bandwidth,rate,collectives")
    nothing = os.path.join(folder, "nothing")
    os.mkdir(nothing)
    bare = json.loads(run(*small, env={"PATH": nothing}).stdout)
    assert any("apt-get install" in note and "openmpi-bin" in note for note in bare["notes"]), bare["notes"]
    fakes = os.path.join(folder, "fakes")
    os.mkdir(fakes)
    for name, script in FAKES.items():
        path = os.path.join(fakes, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + script)
        os.chmod(path, 0o755)
    whole = json.loads(run(*small, env={"PATH": fakes + ":/usr/bin:/bin"}).stdout)
    found = [one for one in whole["results"] if one["program"] != "weft"]
    for one in found:
        check_result(one)
        ours = find(whole["results"], one["measure"], one["what"], program="weft", bytes=one["bytes"], workers=one["workers"], window=one["window"])
        assert close(one["of_weft"], one["p50"] / ours["p50"] if one["is_rate"] else ours["p50"] / one["p50"]), (one, ours)
        assert (one["fabric"], one["control"], one["bulk"]) == ("tcp", "tcp", ""), one
    for program, measure, what, keys, value, samples in (
            ("PyTorch", "latency", "no-op executor", {}, 110.5, 12), ("PyTorch", "latency", "one way", {"bytes": 64}, 250.5, 4),
            ("PyTorch", "latency", "echo", {"bytes": 64}, 300.5, 4),
            ("Gloo", "collectives", "allreduce", {"bytes": 65536, "workers": 2}, 500.5, 4)):
        one = find(found, measure, what, program=program, **keys)
        assert close(one["p50"], value) and one["samples"] == samples, one
    assert not [one for one in found if one["program"] == "PyTorch" and (one["measure"] == "rate" or one["bytes"] == 65536 and one["what"] == "echo")], found
    assert [note for note in whole["notes"] if "PyTorch is not measured further beside tcp: echo of 65536 bytes" in note], whole["notes"]
    mpi = [one["p50"] for one in found if one["program"] == "Open MPI"]
    assert mpi == [4.5] * 3 or any("Open MPI" in note and "WEFT_PERF=ON" in note for note in whole["notes"]), (mpi, whole["notes"])
    path = os.path.join(folder, "peers.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(whole, file)
    table = run("--from", path).stdout
    assert re.search(r"\| PyTorch +\| no-op executor .*\| +110 \|.*\| tcp +\|", table), table


def floor_of(pid):
    """The other process of a floor: a child of the helper, which is a child of the measuring process."""
    workers = list(workers_of(pid))
    for measuring in children(pid):
        for helper in children(measuring):
            if helper not in workers:
                return children(helper)[0]
    raise AssertionError(descendants(pid))


def start_stalled():
    """Stops the floor of host as soon as the first result is there: it is given up after 30 s, and nothing else is."""
    measuring = start("--fabric", "host,tcp", "--seconds", "0.5", "--only", "latency", "--sizes", "64", "--workers", "2", "--json")
    limit = time.monotonic() + 60
    while len(descendants(measuring.pid)) < 4 and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(floor_of(measuring.pid), signal.SIGSTOP)
    return measuring


def check_stalled(measuring):
    out, err = end(measuring, 0)
    whole = json.loads(out)
    assert "the floor of host failed at " in err and "no answer for 30 s" in err, err
    host, tcp = ([one for one in whole["results"] if one["fabric"] == fabric and one["what"] != "first call"] for fabric in ("host", "tcp"))
    assert len(host) == len(tcp) == 4, whole
    for one in whole["results"]:
        check_result(one)
    # On a machine where nothing runs for 30 s, tcp's floor is given up too, and says so.
    assert all(one["floor"] for one in tcp) or "the floor of tcp failed at " in err, whole
    assert not host[-1]["floor"], whole


def check_busy():
    """Programs that use all processors make the results worthless: a line says so."""
    spin = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
    try:
        done = run("--fabric", "tcp", "--only", "rate", "--seconds", "0.004", "--no-floor")
    finally:
        for process in spin:
            process.kill()
            process.wait()
    assert done.stderr.count("the machine is busy with other programs: do not quote") == 1, done
    assert re.search(r", load [0-9.]+, others used \d+ %: busy, do not quote\n$", done.stdout), done


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_misuse()
        stalled = start_stalled()
        old = check_everything(folder)
        check_compare(folder, old)
        check_host()
        check_device()
        check_environment()
        check_outputs(folder, old)
        check_two_sides()
        check_mismatch()
        check_used_port()
        check_stopped(folder)
        check_secret(folder)
        check_killed_sides()
        check_killed_workers()
        check_peers(folder)
        check_busy()
        check_stalled(stalled)


main()
