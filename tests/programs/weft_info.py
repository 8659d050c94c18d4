#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft_info.py PROGRAM MACHINES EMULATED AGENT KERNELS - runs weft-info in several surroundings, and checks what it
prints. EMULATED has the emulated driver of GPUs, AGENT is agent_report, KERNELS says whether kernels are built."""
import ctypes
import json
import os
import platform
import resource
import struct
import re
import shutil
import signal
import subprocess
import sys
import tempfile

PROGRAM, MACHINES, EMULATED, AGENT, KERNELS = sys.argv[1:6]
SECTIONS = ["weft", "variables", "launchers", "limits", "fabrics", "cuda", "numa_nodes", "nics", "gpus", "chosen"]
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "OMPI_", "PMI", "SLURM_", "MV2_", "MPI_LOCAL", "WEFT_", "HWLOC_")


def run(*args, code=0, env=None, before=(), limits=None, keep=()):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    clean.update(env or {})
    done = subprocess.run([*before, PROGRAM, *args], env=clean, capture_output=True, text=True, timeout=60, preexec_fn=limits,
                          pass_fds=keep, check=False)
    assert done.returncode == code, (args, done)
    return done


def report(*args, **how):
    return json.loads(run("--json", *args, **how).stdout)


def described(name, *args, **how):
    return report("--topology", os.path.join(MACHINES, name + ".xml"), *args, **how)


def check_here():
    text = run().stdout.splitlines()
    assert [line for line in text if not line.startswith(" ")][1:] == SECTIONS, text
    assert re.match("an agent opens here: (host|tcp|verbs)", text[0]), text
    assert any(line.startswith("  tcp: libfabric offers it") for line in text), text
    found = report()
    assert list(found) == ["verdict", *SECTIONS] and found["verdict"] == text[0]
    assert found["verdict"].endswith(": " + found["chosen"]["fabrics_used"]), found
    assert {one["name"] for one in found["fabrics"]} >= {"host", "tcp", "verbs", "shm", "rxm", "efa", "cxi", "psm3",
                                                          "opx"}
    for one in found["fabrics"]:
        assert one["opens"] == "yes" or one["why"], one
    assert found["weft"]["cuda"] == ("kernels are built" if KERNELS == "1" else "no kernels are built"), found["weft"]
    assert found["weft"]["version"] in run("--version").stdout
    assert found["limits"]["share_cores"] >= 1 and found["chosen"]["fabric"]
    assert "--topology" in run("--help").stdout
    assert list(json.loads(run("--json", before=["env", "-i"]).stdout)) == ["verdict", *SECTIONS]


def agent(command=(), env=None):
    """What an agent does: the fabric of each lane to the other worker of its job, and its metrics."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    clean.update(env or {})
    done = subprocess.run([AGENT, *command], env=clean, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done
    return dict(re.match(r"([a-z_]+)(?:{.*?})? (.+)", line).groups() for line in done.stdout.splitlines() if line[0] != "#")


def check_agent():
    """An agent of a job of two workers on this machine does what weft-info says of one."""
    for set_here in ({}, {"WEFT_FABRIC": "tcp", "WEFT_MEMORY_BUDGET": "123456789", "WEFT_CPU_THREADS": "3"}):
        found, made = report(env={**set_here, "LOCAL_WORLD_SIZE": "2"}), agent(env=set_here)
        first = found["chosen"]["fabrics_used"].split(", ")[0]
        assert made["control"].split()[0] == first, (found, made)
        assert int(made["weft_memory_budget_bytes"]) == found["chosen"]["memory_budget_bytes"], (found, made)
        threads = int(set_here.get("WEFT_CPU_THREADS", found["limits"]["share_cores"]))
        assert int(made["weft_compute_threads"]) == threads, (found, made)
        large = {one["name"]: one for one in found["fabrics"]}[first].get("large_tensors", "are read")
        assert (made["bulk"].split()[0] == first) == large.startswith("are read"), (found, made)


def check_elsewhere():
    """Workers of one machine that do not share /dev/shm have no shm, and the reason says why that can be."""
    fabrics = {one["name"]: one for one in report()["fabrics"]}
    command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
    if fabrics["shm"]["opens"] != "yes" or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        print("weft_info: no shm or no mount namespaces here: all workers are in one place")
        return
    made = agent([shutil.which("unshare"), *command[1:], AGENT], {"WEFT_FABRIC": "shm,tcp"})
    why = "tcp (shm: worker 0 is on another machine, in another namespace, or (shm) of another user)"
    assert made["control"] == made["bulk"] == why, made
    assert agent(env={"WEFT_FABRIC": "shm,tcp"})["control"] == "shm"


def check_environment():
    set_here = {"WEFT_FABRC": "tcp", "WEFT_SECRET": "0123456789abcdef0123456789abcdef", "WEFT_THREADS": "7", "RANK": "1",
                "WORLD_SIZE": "2", "MASTER_PORT": "29500", "SLURM_PROCID": "1"}
    done = run("--json", env=set_here)
    assert set_here["WEFT_SECRET"] not in done.stdout + done.stderr
    found = json.loads(done.stdout)
    rows = {row["name"]: row for row in found["variables"]}
    assert rows["WEFT_FABRC"]["problem"] == "not a variable of weft: did you mean WEFT_FABRIC", rows
    assert "problem" not in rows["WEFT_THREADS"] and rows["WEFT_SECRET"]["value"] == "(hidden)"
    assert [one["launcher"] for one in found["launchers"]] == ["RANK and WORLD_SIZE", "Slurm"]
    assert found["chosen"]["threads"] == 7
    for name, library in (("blas", "CBLAS (OpenBLAS)"), ("onednn", "oneDNN")):
        assert report(env={"WEFT_PRODUCT": name})["chosen"]["float32_products"] == library, name
    with open(os.devnull, "rb") as nothing:  # the library reads and closes a descriptor with the secret; this one is empty
        given = {"WEFT_SECRET_FD": str(nothing.fileno())}
        for fd, code in ((nothing.fileno(), 1), (999, 1)):
            given["WEFT_SECRET_FD"] = str(fd)
            rows = {row["name"]: row for row in report(env=given, code=code, keep=[nothing.fileno()])["variables"]}
            assert rows["WEFT_SECRET_FD"] == {"name": "WEFT_SECRET_FD", "value": str(fd)}, rows
    wrong = report(env={"WEFT_THREADS": "many"}, code=1)
    assert 'WEFT_THREADS="many"' in wrong["chosen"]["problem"], wrong["chosen"]
    half = report(env={"RANK": "1"}, code=1)
    assert "WORLD_SIZE" in half["chosen"]["problem"], half["chosen"]
    lost = [one for one in report(env={"WEFT_IFACE": "nowhere0"}, code=1)["fabrics"] if one["name"] == "tcp"][0]
    assert lost["opens"] == "no" and "nowhere0" in lost["why"], lost


def check_fabrics():
    for asked, order in (("tcp", ("tcp",)), ("verbs,tcp", ("verbs", "tcp")), ("tcp,verbs", ("tcp", "verbs")), ("auto", ("host", "verbs", "tcp"))):
        found = report(env={"WEFT_FABRIC": asked})
        opens = [one["name"] for one in found["fabrics"] if one.get("opens") == "yes"]
        assert "tcp" in opens and found["chosen"]["fabric"] == asked, found
        assert found["chosen"]["fabrics_used"] == ", ".join(name for name in order if name in opens), found
    assert report()["chosen"]["fabric"] == "auto"
    for asked in ("tcp", "host,tcp", "auto"):
        nowhere = report(env={"WEFT_FABRIC": asked, "WEFT_IFACE": "nowhere0"}, code=1)["chosen"]
        assert nowhere["fabrics_used"] == "none: weft_agent_open fails", nowhere
    for wrong, words in (("tcp,nosuch", '"nosuch"'), ("tcp,tcp", "names tcp twice"), ("sim", "simulated world")):
        chosen = report(env={"WEFT_FABRIC": wrong}, code=1)["chosen"]
        assert words in chosen["problem"] and "fabrics_used" not in chosen, chosen


def check_surroundings():
    """What a process inherits changes no line: signals that are ignored or blocked. With few descriptors it says what is missing."""
    def ignore():
        for one in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(one, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})

    def host(**how):
        row = {one["name"]: one for one in report(**how)["fabrics"]}["host"]
        return {key: row[key] for key in row if key != "address"}
    assert host(limits=ignore) == host(), host(limits=ignore)
    for limit, most in ((resource.RLIMIT_FSIZE, 0), *((resource.RLIMIT_NOFILE, most) for most in (10, 14, 28))):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        done = subprocess.run([PROGRAM], env=clean, capture_output=True, text=True, timeout=60, check=False,
                              preexec_fn=lambda: resource.setrlimit(limit, (most, most)))
        verdict = done.stdout.splitlines()[0]
        assert done.returncode in (0, 1) and verdict.startswith(("an agent opens here: ", "no agent opens here: ")[done.returncode]), done
        if limit == resource.RLIMIT_FSIZE:
            assert "  file_bytes: 0\n" in done.stdout and "ulimit -f" in done.stdout, done
            continue
        assert "/proc/sys/kernel" not in done.stdout, done  # it is the descriptors that are missing
        if most < 28:  # each fabric alone can be opened with these descriptors, and no agent
            assert done.returncode == 1 and re.search("descriptors|open files", verdict), done


def check_hidden():
    """A container without /sys or /dev/shm: the same fabrics open. Without /proc/sys host cannot, and says why."""
    def hidden(folder):
        mount = f'mount -t tmpfs none {folder} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*hidden("/sys"), "true"], capture_output=True, check=False).returncode:
        print("weft_info: no mount namespaces here: nothing is hidden")
        return
    verdict = run().stdout.splitlines()[0]
    for folder in ("/sys", "/dev/shm"):
        assert run(before=hidden(folder)).stdout.splitlines()[0] == verdict, folder
    found = report(before=hidden("/proc/sys"))
    host = [one for one in found["fabrics"] if one["name"] == "host"][0]
    assert host["opens"] == "no" and "boot_id" in host["why"] and "host" not in found["verdict"], found


def forbid_reads():
    """Of this process and its children from now on, by a seccomp filter: process_vm_readv fails with EPERM."""
    number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]  # load, compare, return
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("HL", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0  # no new privileges; the filter


def check_reads():
    def host(**how):
        return [one for one in report(**how)["fabrics"] if one["name"] == "host"][0]

    here = host()
    assert ("large_tensors_why" in here) == here["large_tensors"].startswith("take the next"), here
    assert here["large_tensors"] == "are read from the other worker" or "process_vm_readv" in here["large_tensors_why"], here
    if platform.machine() in ("x86_64", "aarch64"):
        refused = host(limits=forbid_reads)
        assert refused["opens"] == "yes" and refused["large_tensors"] == "take the next fabric of the list", refused
        assert "process_vm_readv is not permitted" in refused["large_tensors_why"], refused


def check_cuda():
    def rows(folder, **env):
        return {one["name"]: one for one in report(env={"LD_LIBRARY_PATH": folder, **env})["cuda"]}

    found = rows(EMULATED)
    assert list(found) == ["libcuda.so.1", "cuda:0", "cuda:1"] and found["libcuda.so.1"] == {
        "name": "libcuda.so.1", "found": "yes", "devices": 2}
    for device in (0, 1):
        gpu = found["cuda:%d" % device]
        near = {key: gpu.pop(key) for key in ("node", "nic", "nic_reason") if key in gpu}
        assert near.get("node") is None, near  # this machine has no such address
        assert gpu == {"name": gpu["name"], "usable": "yes", "gpu": "emulated GPU %d (no hardware)" % device,
                       "pci": "0000:%02X:00.0" % (0x17 + device), "memory_bytes": 2 << 30, "free_bytes": 2 << 30}, gpu
    assert "\n  cuda:1: usable yes, gpu emulated GPU 1" in run(env={"LD_LIBRARY_PATH": EMULATED}).stdout
    placed = rows(EMULATED, EMULATED_GPU_PCI="0000:07:00.0,0000:0F:00.0", HWLOC_XMLFILE=os.path.join(MACHINES, "dgx.xml"))
    for device, node, nic in ((0, 1, "mlx5_2"), (1, 3, "mlx5_6")):
        gpu = placed["cuda:%d" % device]
        assert (gpu["node"], gpu["nic"], gpu["nic_reason"]) == (node, nic, "shares a PCI switch with the GPU"), placed
    busy = rows(EMULATED, EMULATED_GPU_BUSY="1")
    assert busy["cuda:0"]["usable"] == "yes" and busy["cuda:1"]["usable"] == "no" and "free_bytes" not in busy["cuda:1"], busy
    assert busy["cuda:1"]["why"].startswith("opening cuda:1 failed: "), busy
    folder = "no_cuda.%d" % os.getpid()
    os.mkdir(folder)
    try:
        with open("/proc/self/maps", encoding="ascii") as maps:
            libc = [line.split()[-1] for line in maps if "/libc.so.6" in line][0]  # a library without CUDA's functions
        os.symlink(libc, os.path.join(folder, "libcuda.so.1"))
        old = rows(os.path.abspath(folder))
        assert list(old) == ["libcuda.so.1"] and old["libcuda.so.1"]["found"] == "yes", old
        assert "has no cuInit: it is too old" in old["libcuda.so.1"]["why"], old
    finally:
        os.unlink(os.path.join(folder, "libcuda.so.1"))
        os.rmdir(folder)
    if not os.path.exists("/dev/nvidiactl"):
        none = rows("")["libcuda.so.1"]
        assert none["found"] == "no" and none["devices"] == 0 and "libcuda.so.1" in none["why"], none


def check_limits():
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    small = report(limits=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard)))
    assert small["limits"]["memlock_bytes"] == 65536 and small["limits"]["memlock_advice"].startswith("verbs"), small["limits"]
    if hard == resource.RLIM_INFINITY:
        free = lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
        assert report(limits=free)["limits"]["memlock_bytes"] is None
        assert "  memlock_bytes: unlimited" in run(limits=free).stdout
    alone = ["unshare", "-rn"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
        done = subprocess.run([*alone, PROGRAM, "--json"], capture_output=True, text=True, timeout=60, check=False)
        found = json.loads(done.stdout)
        tcp = [one for one in found["fabrics"] if one["name"] == "tcp"][0]  # not even loopback is up
        assert tcp["opens"] in ("yes", "no") and ("why" in tcp) == (tcp["opens"] == "no"), tcp
        assert (done.returncode == 1) == found["chosen"].get("fabrics_used", "none").startswith("none"), done


def check_machines():
    dgx = described("dgx", "--cpus", "4-7", env={"LOCAL_RANK": "1"})
    assert list(dgx) == SECTIONS[6:]
    assert dgx["chosen"] == {"cores": "4-7", "local_rank": 1, "nearest_nic": "mlx5_5",
                             "nearest_nic_reason": "on a NUMA node of the process", "binding": "cores near the nic: 4-5"}
    assert [gpu["nic"] for gpu in described("dgx")["gpus"] if gpu["model"] == "10de:20b0"] == [
        "mlx5_0", "mlx5_0", "mlx5_2", "mlx5_2", "mlx5_4", "mlx5_4", "mlx5_6", "mlx5_6"]
    for name, nic, count in (("container", "mlx5_2", 9), ("vm", "eth0", 3), ("laptop", "wlan0", 2), ("unplaced", "eth0", 4),
                             ("no_nic", "none", 0)):
        found = described(name)
        assert found["chosen"]["nearest_nic"] == nic and len(found["nics"]) == count, (name, found)
        assert found["chosen"]["binding"] == "not bound", (name, found)
    assert "  none" in run("--topology", os.path.join(MACHINES, "no_nic.xml")).stdout


def check_misuse():
    for args, words in ((["--jsn"], '"--jsn"'), (["--topology"], '"--topology"'), (["--topology", "no/file.xml"], "no/file.xml"),
                        (["--topology", os.path.join(MACHINES, "make.py")], "lstopo"), (["--cpus", "x"], '"x"'), (["one"], '"one"')):
        done = run(*args, code=2, env={"HWLOC_HIDE_ERRORS": "2"})
        assert words in done.stderr and not done.stdout, done


def check_output():
    with open("/dev/full", "w", encoding="ascii") as full:
        for args in ([], ["--json"], ["--help"], ["--version"]):
            done = subprocess.run([PROGRAM, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            assert done.returncode == 1 and "weft-info: standard output cannot be written" in done.stderr, (args, done)
    with tempfile.TemporaryFile() as small:  # over the process's limit of files, with SIGXFSZ as it is by default
        for name in ("weft-info", "weft-perf", "weft-run", "weft-trace"):
            program = os.path.join(os.path.dirname(PROGRAM), name)
            if not os.path.exists(program):
                continue
            done = subprocess.run([program, "--help"], stdout=small, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
            assert done.returncode == 1 and re.search("standard output.*: File too large", done.stderr), (name, done)


def check_processes():
    """A user without room for an agent's threads: the verdict names the limit, and a job of two ends at once."""
    if os.geteuid() != 0:
        return
    def few(number):
        def limit():
            resource.setrlimit(resource.RLIMIT_NPROC, (number, number))
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
        return limit
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    for name, number in (("weft-info", 2), ("hello", 2), ("hello", 3)):
        program = os.path.join(os.path.dirname(PROGRAM), name)
        if not os.path.exists(program):
            continue
        try:  # hello's child waits 60 s for a store that never comes, if it does not know that
            done = subprocess.run([program], env=clean, capture_output=True, text=True, timeout=50, check=False, preexec_fn=few(number))
        except PermissionError:  # that user cannot read the build folder
            return
        assert done.returncode == 1 and "ulimit -u %d" % number in done.stdout + done.stderr, (name, done)


def main():
    for check in (check_output, check_processes, check_here, check_agent, check_elsewhere, check_environment, check_fabrics, check_surroundings, check_hidden, check_reads, check_cuda, check_limits, check_machines, check_misuse):
        check()
    machines = sorted(os.listdir(MACHINES))
    made = "made_machines.%d" % os.getpid()
    os.mkdir(made)
    try:
        subprocess.run([sys.executable, os.path.join(MACHINES, "make.py"), made], check=True)
        for name in machines:
            if name.endswith(".xml"):
                with open(os.path.join(MACHINES, name), encoding="utf-8") as a, open(os.path.join(made, name), encoding="utf-8") as b:
                    assert a.read() == b.read(), name + " is not what make.py writes"
    finally:
        for name in os.listdir(made):
            os.unlink(os.path.join(made, name))
        os.rmdir(made)


main()
