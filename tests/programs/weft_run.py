#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft_run.py PROGRAM CASE [EXAMPLES] - runs weft-run as its users do, with real processes. CASE: a function case_CASE below.

Each worker holds a pipe open, on which it reports. The end of that pipe shows that all workers are gone, so nothing here waits for a
time. A signal ends a test that hangs.
"""
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

PROGRAM, CASE = os.path.abspath(sys.argv[1]), sys.argv[2]
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "OMPI_", "PMI", "SLURM_", "MV2_", "MPI_LOCAL", "WEFT_")
SKIPPED = 77
SANITIZED = "ASAN_OPTIONS" in os.environ or "TSAN_OPTIONS" in os.environ
LIMIT_S = 100  # for all of a case
STARTED = []


class Reports:
    """A named pipe. A worker writes to its descriptor 9; the test reads lines, and the end of the pipe."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "reports")
        os.mkfifo(self.path)

    def __enter__(self):
        self.hold = os.open(self.path, os.O_RDWR)  # so that opening does not wait
        self.file = os.fdopen(os.open(self.path, os.O_RDONLY), encoding="utf-8")
        return self

    def lines(self, count):
        return sorted(self.file.readline().strip() for _ in range(count))

    def rest(self):
        """What follows until no worker is left."""
        os.close(self.hold)
        return self.file.read()

    def __exit__(self, *what):
        self.file.close()
        os.unlink(self.path)


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**clean, **{k: str(v) for k, v in more.items()}}


def start(*args, env=None):
    process = subprocess.Popen([PROGRAM, *args], env=env or environment(), text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    STARTED.append(process)
    return process


def run(*args, code=0, env=None):
    """The end of stderr means that the process which watches the workers is gone too."""
    process = start(*args, env=env)
    out, err = process.communicate()
    assert process.returncode == code, (args, process.returncode, out, err)
    return out.splitlines(), err.splitlines()


def shell(script):
    return "sh", "-c", script


# ---- On one machine ----------------------------------------------------------------------------------------------------------------


def case_usage():
    text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    for option in ("-n N", "--hosts FILE", "--elastic MIN:MAX", "--restarts K", "--grace SECONDS", "--version", "-h, --help"):
        assert "\n  " + option in text, option
    assert "usage: weft-run [options] PROGRAM [ARGUMENTS...]\n" in text and "\nexample: weft-run " in text
    assert subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.startswith("weft-run ")
    for args, words in ((["true"], "-n is missing"), (["-n", "0", "true"], "-n is '0'"), (["-n", "2"], "no program"),
                        (["-n", "2", "--elastic", "3:2", "true"], "--elastic is '3:2'"),
                        (["-n", "9", "--elastic", "1:8", "true"], "-n is 9: --elastic 1:8 allows 1 to 8"),
                        (["--many", "2", "true"], "unknown option '--many'"), (["-x2", "true"], "'-x2' is no option"),
                        (["--hosts", "h", "--ssh", " ", "true"], "--ssh is ' ': expected a command"),
                        (["--hosts", "/nowhere", "true"], "/nowhere: No such file"),
                        (["-n", "2", "--ssh", "rsh", "true"], "--ssh has no effect here")):
        out, err = run(*args, code=2)
        assert not out and len(err) == 1 and words in err[0], (args, err)
    for env, words in (({"WEFT_SECRET": "short"}, "(WEFT_SECRET) has 5 bytes"), ({"WEFT_SECRET": ""}, "(WEFT_SECRET) has 0 bytes: give 16 to 4,096, or unset"),
                       ({"WEFT_SECRET_FILE": "/dev/null"}, '(WEFT_SECRET_FILE="/dev/null") has 0 bytes')):
        assert words in run("-n", "1", "true", code=2, env=environment(**env))[1][0], words
    for number in (["-n2"], ["-np", "2"], ["--np=2"]):  # as mpirun has them
        assert len(run(*number, "echo", "hi")[0]) == 2, number
    for where, words in ((">&-", "it is closed: redirect it to /dev/null"), ("1</dev/null", "it is open only for reading")):
        for line in (f'"$0" -n 1 true {where}', f'"$0" --help {where}'):
            done = subprocess.run(["sh", "-c", line, PROGRAM], env=environment(), capture_output=True, text=True, check=False)
            assert done.returncode == 1 and done.stderr == f"weft-run: standard output cannot be written: {words}\n", done


def case_success():
    out, err = run("-n", "3", *shell("echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT"))
    found = sorted(re.sub(r":\d+$", ":PORT", line) for line in out)
    assert found == [f"[{i}] {i} of 3, {i} of 3, 127.0.0.1:PORT" for i in range(3)] and not err, (out, err)
    assert len({line.rsplit(":", 1)[1] for line in out}) == 1, out
    # Options end at the program, whose own may have the same names. Its standard input is empty.
    assert run("-n", "1", "--", "sh", "-c", 'cat; printf "%s " "$@"', "x", "-n", "2", "--help")[0] == ["[0] -n 2 --help "]


def case_secret():
    """Neither a command line nor the environment of a worker has the secret; each job has another one."""
    show = shell('env; tr "\\0" " " </proc/$PPID/cmdline; echo; eval "exec 8<&$WEFT_SECRET_FD"; od -An -tx1 -v <&8 | tr -d " \\n"')
    found = [run("-n", "1", "--no-prefix", *show)[0] for _ in range(2)]
    secrets = [out[-1] for out in found]
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in secrets) and secrets[0] != secrets[1], secrets
    given = "a secret of the user's, long enough"
    with tempfile.NamedTemporaryFile() as file:
        file.write(given.encode() + b"\n")
        file.flush()
        for env in (environment(WEFT_SECRET=given), environment(WEFT_SECRET_FILE=file.name)):
            out, err = run("-n", "1", "--no-prefix", *show, env=env)
            assert bytes.fromhex(out[-1]).decode() == given, out
            assert not err, err  # the file is its owner's alone
            assert not any(given in line or "WEFT_SECRET=" in line or "WEFT_SECRET_FILE=" in line for line in out), out
        os.chmod(file.name, 0o640)
        assert "can be read by others than its owner: chmod 600" in run("-n", "1", "true", env=environment(WEFT_SECRET_FILE=file.name))[1][0]


def case_output():
    out, err = run("-n", "2", *shell('printf "a"; printf "b\\nc" ; echo "$RANK err" >&2'))
    assert sorted(out) == ["[0] ab", "[0] c", "[1] ab", "[1] c"], out
    assert sorted(err) == ["[0] 0 err", "[1] 1 err"], err
    # A line without an end is printed in pieces of 64 KiB. Nothing is lost, however much comes.
    out, _ = run("-n", "1", *shell("head -c 200000 /dev/zero | tr '\\0' x"))
    assert [len(line) - 4 for line in out] == [65536, 65536, 65536, 200000 - 3 * 65536] and set(out[0][4:]) == {"x"}
    out, _ = run("-n", "2", *shell("seq -f $RANK-%g 20000"))
    for rank in range(2):
        assert [line for line in out if line.startswith(f"[{rank}]")] == [f"[{rank}] {rank}-{i}" for i in range(1, 20001)]
    out, _ = run("-n", "1", *shell("head -c 65536 /dev/zero | tr '\\0' x; echo; echo y"))  # this one ends within its piece
    assert [len(line) for line in out] == [4 + 65536, 5], [len(line) for line in out]
    process = start("-n", "2", "yes")
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 128 + signal.SIGPIPE


def fails(failing, code, words, *options, rest="sleep 1000"):
    """Of three workers, rank 1 fails when the others run, in a shell with a child each."""
    with tempfile.TemporaryDirectory() as folder, Reports(folder) as reports:
        os.mkfifo(folder + "/ready")
        others = f"exec 9>{reports.path} 8>{folder}/ready; {rest} & echo >&8; wait"
        out, err = run("-n", "3", *options, *shell(f"[ $RANK = 1 ] || {{ {others}; exit; }}; exec 8<>{folder}/ready; read a <&8; read b <&8; {failing}"),
                       code=code)
        assert reports.rest() == "" and not out
        assert err[0] == f"weft-run: rank 1 on localhost {words}: ending the other 2 workers", err
        return err[1:]


def case_failures():
    assert not fails("exit 7", 7, "exited with code 7")
    assert not fails("kill -KILL $$", 128 + 9, "was killed by SIGKILL")
    stubborn = fails("exit 5", 5, "exited with code 5", "--grace", "0.2", rest='trap "" TERM; sleep 1000')
    assert stubborn == ["weft-run: 2 workers did not end within 0.2 s, and were killed"], stubborn
    killed = fails("exit 5", 5, "exited with code 5", rest='trap "kill -KILL $$" TERM; sleep 1000')
    assert not killed, killed  # they killed themselves
    with tempfile.TemporaryDirectory() as folder:
        fake(folder, "here", "#!/bin/sh\n")
        process = subprocess.run([PROGRAM, "-n", "1", "here"], cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        assert process.returncode == 127 and "here: not found on PATH: " in process.stderr and " write ./here\n" in process.stderr, process
    _, err = run("-n", "2", "--restarts", "9", "./nosuch", code=127)
    assert re.match(r"\[\d\] weft-run: ./nosuch: No such file or directory", err[0]), err
    assert any(re.match(r"weft-run: rank \d on localhost exited with code 127 \(not found\)", line) for line in err), err
    _, err = run("-n", "2", "/", code=126)  # the other worker's line may come last
    assert "/: Permission denied" in err[0] and any("exited with code 126 (cannot be started)" in line for line in err), err


def case_signals():
    """A signal reaches each worker and its children. weft-run's own death ends them, too."""
    script = 'exec 9>{0}; trap "echo $RANK user >&9" USR1; trap "echo $RANK int >&9; exit 0" INT; echo up >&9; while :; do sleep 1000 & wait; done'
    with tempfile.TemporaryDirectory() as folder:
        with Reports(folder) as reports:
            process = start("-n", "2", *shell(script.format(reports.path)))
            assert reports.lines(2) == ["up", "up"]
            process.send_signal(signal.SIGUSR1)
            assert reports.lines(2) == ["0 user", "1 user"]
            process.send_signal(signal.SIGTSTP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGUSR1)
            assert reports.lines(2) == ["0 user", "1 user"]
            process.send_signal(signal.SIGINT)
            assert sorted(reports.rest().split("\n")) == ["", "0 int", "1 int"]
            assert process.communicate()[1] == "weft-run: SIGINT ends the job\n" and process.returncode == 130
        with Reports(folder) as reports:  # the second signal does not wait
            process = start("-n", "2", "--grace", "1000", *shell(f'trap "" TERM; exec 9>{reports.path}; sleep 1000 & echo up >&9; wait'))
            assert reports.lines(2) == ["up", "up"]
            process.send_signal(signal.SIGTERM)
            assert process.stderr.readline() == "weft-run: SIGTERM ends the job\n"
            process.send_signal(signal.SIGTERM)
            assert reports.rest() == "" and process.wait() == 128 + 15
            process.communicate()
        with Reports(folder) as reports:
            process = start("-n", "2", "--grace", "0.2", *shell(f'trap "" TERM; exec 9>{reports.path}; sleep 1000 & echo up >&9; wait'))
            assert reports.lines(2) == ["up", "up"]
            process.kill()
            assert reports.rest() == ""
            process.communicate()
        with Reports(folder) as reports:  # a stopped supervisor is continued, and ends what its worker has started
            process = start("-n", "1", *shell(f'exec 9>{reports.path}; sleep 1000 & echo $PPID >&9; wait'))
            supervisor = int(reports.lines(1)[0])
            os.kill(supervisor, signal.SIGSTOP)
            process.send_signal(signal.SIGTERM)
            assert reports.rest() == "" and process.wait() == 128 + 15
            process.communicate()
        with Reports(folder) as reports:  # a child that left its worker's group
            os.mkfifo(folder + "/go")
            process = start("-n", "1", *shell(f'setsid sh -c "exec 9>{reports.path}; echo up >&9; exec sleep 1000" & cat {folder}/go'))
            assert reports.lines(1) == ["up"]
            with open(folder + "/go", "w", encoding="utf-8"):
                pass
            assert reports.rest() == "" and process.wait() == 0
            process.communicate()


def case_unread():
    """Nobody reads weft-run's output: a failure is noticed nevertheless, and a signal ends the job."""
    process = start("-n", "2", *shell("[ $RANK = 1 ] || exec yes; seq 300000 >/dev/null; exit 7"))
    assert process.stderr.readline() == "weft-run: rank 1 on localhost exited with code 7: ending the other worker\n"
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 7
    process = start("-n", "1", "yes")
    assert process.stdout.readline() == "[0] y\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    said = process.stderr.read().splitlines()
    assert said[0] == "weft-run: SIGTERM ends the job" and "does not answer" not in str(said), said
    assert len(said) == 1 or re.fullmatch(r"weft-run: nobody read the last \d+ bytes of the output: they are dropped", said[1]), said
    process.stdout.close()
    with tempfile.TemporaryDirectory() as folder, Reports(folder) as reports:  # a restarted worker answers nevertheless
        once = f"[ $RANK = 1 ] || exec yes; mkdir {folder}/once 2>/dev/null && seq 300000 >/dev/null && exit 3; exec 9>{reports.path}; echo again >&9"
        process = start("-n", "2", "--elastic", "1:2", "--restarts", "1", *shell(once))
        assert reports.lines(1) == ["again"]
        process.stdout.close()
        assert process.stderr.read() == "weft-run: rank 1 on localhost exited with code 3: restarting it (1 of 1)\n"
        assert process.wait() == 128 + signal.SIGPIPE
    # A reader that is only slow gets everything.
    process = start("-n", "2", "seq", "100000")
    out = process.stdout.read(1) + process.stdout.read()
    assert process.wait() == 0 and process.stderr.read() == "" and out.count("\n") == 200000


def case_restarts():
    with tempfile.TemporaryDirectory() as folder:
        once = f"mkdir {folder}/$RANK 2>/dev/null"
        # A job of fixed size is restarted as a whole.
        out, err = run("-n", "2", "--restarts", "1", *shell(f"if {once} && [ $RANK = 1 ]; then exit 3; fi; echo done $WEFT_ELASTIC"))
        assert sorted(out)[-2:] == ["[0] done", "[1] done"] or sorted(set(out)) == ["[0] done", "[1] done"], out
        assert err == ["weft-run: rank 1 on localhost exited with code 3: restarting all workers (1 of 1)"], err
        out, err = run("-n", "2", "--restarts", "2", *shell("[ $RANK = 0 ] && exec sleep 1000; exit 3"), code=3)
        assert [line.split(": ", 2)[2] for line in err] == ["restarting all workers (1 of 2)",
                                                           "restarting all workers (2 of 2)", "ending the other worker"], err
    with tempfile.TemporaryDirectory() as folder:
        # In an elastic job only the one that failed is.
        os.mkfifo(folder + "/go")
        script = (f'mkdir {folder}/$RANK 2>/dev/null && [ $RANK = 1 ] && exit 3; [ $RANK = 1 ] && echo >{folder}/go;'
                  f' [ $RANK = 0 ] && cat {folder}/go >/dev/null; echo $RANK of $WORLD_SIZE $WEFT_ELASTIC')
        out, err = run("-n", "2", "--elastic", "1:4", "--restarts", "1", *shell(script))
        assert sorted(out) == ["[0] 0 of 4 1", "[1] 1 of 4 1"], out
        assert err == ["weft-run: rank 1 on localhost exited with code 3: restarting it (1 of 1)"], err
    # It goes on while enough are left.
    _, err = run("--elastic", "2:3", *shell("[ $RANK = 2 ] && exit 3; exit 0"))
    assert err == ["weft-run: rank 2 on localhost exited with code 3: the job continues with 2 workers"], err
    _, err = run("--elastic", "3:3", *shell("[ $RANK = 2 ] && exit 3; exit 0"), code=3)
    assert "exited with code 3" in err[0], err


def case_launchers():
    """As one task of several of a launcher it becomes the program."""
    for env in (environment(SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=4, SLURM_STEP_ID=0), environment(OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=4),
                environment(PMIX_RANK=1)):
        assert run(*shell("echo one $RANK"), env=env)[0] == ["one"], env
        assert run("nosuch", env=env, code=127)[1] == ["weft-run: nosuch: not found on PATH"]
    _, err = run("-n", "2", "true", env=environment(SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=4, SLURM_STEP_ID=0), code=2)
    assert "-n is 2, but srun started 4 copies" in err[0], err
    # A batch script has some of Slurm's variables, and is no task.
    batch = environment(SLURM_PROCID=0, SLURM_JOB_ID=1, SLURM_NTASKS=2, SLURM_JOB_NUM_NODES=1, SLURM_JOB_NODELIST="n1")
    assert sorted(run(*shell("echo $RANK"), env=batch)[0]) == ["[0] 0", "[1] 1"]


# ---- On several hosts --------------------------------------------------------------------------------------------------------------

FAKE_SSH = """#!/bin/sh
# Like ssh: runs the command by a shell, in an environment of its own. "gone" cannot be reached.
while [ "${1#-}" != "$1" ]; do
  [ "$1" != -o ] || shift
  shift
done
[ "$1" != gone ] || { echo "ssh: connect to host gone: No route to host" >&2; exit 255; }
echo "$1" >>"$FAKE_LOG"
cd / && echo "a line that the login shell prints" && exec env -i PATH=/usr/bin:/bin FAKE_HOST="$1" sh -c "$2"
"""
FAKE_SRUN = """#!/bin/sh
for word; do
  case "$word" in --nodelist=*) node=${word#*=} ;; -*) ;; *) break ;; esac
  shift
done
echo "$node" >>"$FAKE_LOG"
FAKE_HOST=$node exec "$@"
"""


def fake(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def case_hosts():
    with tempfile.TemporaryDirectory() as folder:
        fake(folder, "ssh", FAKE_SSH)
        env = environment(PATH=folder + ":" + os.environ["PATH"], FAKE_LOG=folder + "/log", WEFT_THREADS=3, WEFT_SPAWNED=1, MINE="it's",
                          OTHER=1, RANK=7)
        hosts = write(folder + "/hosts", "# two nodes\nnodea slots=2\n\nme@nodeb   # the other\nnodea slots=1 max_slots=9\n")
        show = shell('echo $RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE $FAKE_HOST $MASTER_ADDR $WEFT_THREADS$WEFT_SPAWNED $MINE $OTHER $PWD')
        out, err = run("--hosts", hosts, "--export", "MINE,NONE,RANK", *show, env=env)
        places = ("0/3 nodea", "1/3 nodea", "2/3 nodea", "0/1 me@nodeb")
        assert sorted(out) == [f"[{i}] {i} {place} nodea 3 it's {os.getcwd()}" for i, place in enumerate(places)] and not err, (out, err)
        with open(folder + "/log", encoding="utf-8") as log:
            assert sorted(log.read().split()) == ["me@nodeb", *["nodea"] * 3]  # one connection for each worker
        _, err = run("--hosts", hosts, *shell("[ $RANK = 3 ] && exit 4; exec sleep 1000"), env=env, code=4)
        assert err == ["weft-run: rank 3 on me@nodeb exited with code 4: ending the other 3 workers"], err
        _, err = run("-n", "5", "--hosts", hosts, "true", env=env, code=2)
        assert "have 4 slots" in err[0], err
        for text, words in (("nodea slots=0\n", ":1: 'slots=0'"), ("node1:4\n", ":1: 'node1:4': write 'node1 slots=4'"),
                            ("a\x1bb\n", r"'a\x1bb' is no name"), ("\n-oProxyCommand=x\n", ":2: '-oProxyCommand=x' is no name"), ("#\n", "names no host")):
            assert words in run("--hosts", write(folder + "/bad", text), "true", env=env, code=2)[1][0]
        for text, words in (("nodea,nodeb\n", "'nodea,nodeb': write one host a line"), ("a\0b\n", ":1: no hosts file: a zero byte"),
                            ("a\n\0", ":2: no hosts file: a zero byte"), ("n" * 256 + "\n", "is no name of a host"),
                            ("me@127.0.0.3\nyou@127.0.0.3\n", "'me@127.0.0.3' and 'you@127.0.0.3' are one machine"),
                            ("n\n" * 65537, ":65537: no hosts file")):
            assert words in run("--hosts", write(folder + "/bad", text), "true", env=env, code=2)[1][0]
        assert ":1: no hosts file" in run("--hosts", "/dev/zero", "true", env=env, code=2)[1][0]
        local = shell("echo $LOCAL_RANK $LOCAL_WORLD_SIZE")  # two names of one machine, a byte order mark, upper case
        for text in ("\ufefflocalhost\n127.0.0.1\n", "LOCALHOST\n::1\n", "127.0.0.3\n127.3\n", "nodea\nNODEA\n"):
            out, err = run("--hosts", write(folder + "/names", text), "--no-prefix", *local, env=env)
            assert sorted(out) == ["0 2", "1 2"] and not err, (text, out, err)
        gone = write(folder + "/gone", "nodea\ngone\n")
        _, err = run("--hosts", gone, "true", env=env, code=1)
        assert "weft-run: gone cannot be reached: ssh exited with code 255" in err, err
        _, err = run("--hosts", hosts, "--node-program", "/nowhere/weft-run", "true", env=env, code=1)
        words = " cannot be reached: ssh exited with code 127 (not found): is it installed here, and weft-run there? (--ssh, --node-program)"
        assert {"weft-run: nodea" + words, "weft-run: me@nodeb" + words} & set(err), err  # the first one that ends is named
        # The supervisor on nodeb is killed: its worker ends with it, and weft-run ends the other one.
        with Reports(folder) as reports:
            alone = f'exec 9>{reports.path}; echo $RANK $PPID >&9; exec sleep 1000'
            process = start("--hosts", write(folder + "/two", "nodea\nnodeb\n"), *shell(alone), env=env)
            supervisor = reports.lines(2)[1].split()[1]
            os.kill(int(supervisor), signal.SIGKILL)
            assert reports.rest() == ""
            assert "rank 1 on nodeb is lost: the connection ended (ssh was killed by SIGKILL)" in process.communicate()[1]
            assert process.returncode == 1
        with Reports(folder) as reports:  # weft-run is killed: its connections end, and so do the workers
            script = f'trap "" TERM; exec 9>{reports.path}; sleep 1000 & echo up >&9; wait'
            process = start("--grace", "0.2", "--hosts", folder + "/two", *shell(script), env=env)
            reports.lines(2)
            process.kill()
            assert reports.rest() == ""
            process.communicate()
    with tempfile.TemporaryDirectory() as folder:
        fake(folder, "srun", FAKE_SRUN)
        env = environment(PATH=folder + ":" + os.environ["PATH"], FAKE_LOG=folder + "/log", SLURM_JOB_ID=7, SLURM_JOB_NUM_NODES=3,
                          SLURM_JOB_NODELIST="n[08-10]", SLURM_TASKS_PER_NODE="2(x2),1", SLURM_JOB_CPUS_PER_NODE="4(x3)")
        out, _ = run(*shell("echo $LOCAL_RANK $FAKE_HOST $MASTER_ADDR $WORLD_SIZE"), env=env)
        assert "more than 65536 nodes" in run("true", env={**env, "SLURM_JOB_NODELIST": "n[1-999999999]"}, code=2)[1][0]
        assert sorted(out) == ["[0] 0 n08 n08 5", "[1] 1 n08 n08 5", "[2] 0 n09 n08 5", "[3] 1 n09 n08 5", "[4] 0 n10 n08 5"], out


def case_many_hosts():
    """A list of 60,000 hosts. A zero byte in its last line, and a job on its first hosts, are found in less than a second of processor."""
    with tempfile.TemporaryDirectory() as folder:
        many = "".join(f"node{i}\n" for i in range(1, 60000))
        for text, args, code, words in ((many + "a\0b\n", ("true",), 2, ":60000: no hosts file: a zero byte"), ("localhost\n" + many, ("-n", "1", "true"), 0, ""),
                                        ("localhost\n" + many, ("--ssh", "/nowhere/ssh", "true"), 1, "/nowhere/ssh: No such file")):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert words in "\n".join(run("--hosts", write(folder + "/hosts", text), *args, code=code)[1]), words
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert SANITIZED or after.ru_utime + after.ru_stime < before.ru_utime + before.ru_stime + 1, (before, after)


def case_remote():
    """Ends and restarts of workers on other hosts, with a stand-in for ssh."""
    with tempfile.TemporaryDirectory() as folder:
        fake(folder, "ssh", FAKE_SSH)
        env = environment(PATH=folder + ":" + os.environ["PATH"], FAKE_LOG=folder + "/log")
        two = ("--hosts", write(folder + "/two", "nodea\nnodeb\n"))
        for failing, code, words in (("kill -KILL $$", 137, "was killed by SIGKILL"), ("exit 255", 255, "exited with code 255, or ssh has lost the connection"),
                                     ("exec /nosuch", 127, "exited with code 127 (not found)"), ("exit 1", 1, "exited with code 1")):
            _, err = run(*two, *shell(f"[ $RANK = 1 ] || exec sleep 1000; {failing}"), env=env, code=code)
            assert err[-1] == f"weft-run: rank 1 on nodeb {words}: ending the other worker", err
        _, err = run(*two, "nosuch", env=env, code=127)
        assert "weft-run: nosuch: not found on PATH" in err[0], err
        _, err = run(*two, "--restarts", "1", "--elastic", "1:2", *shell(f"mkdir {folder}/$RANK 2>/dev/null && [ $RANK = 1 ] && exit 3; [ $RANK = 1 ] || exec sleep 1"), env=env)
        assert err == ["weft-run: rank 1 on nodeb exited with code 3: restarting it (1 of 1)"], err
        out, err = run(*two, "--restarts", "1", *shell(f"mkdir {folder}/all$RANK 2>/dev/null && [ $RANK = 0 ] && exit 3; echo done"), env=env)
        assert "[0] done" in out and err == ["weft-run: rank 0 on nodea exited with code 3: restarting all workers (1 of 1)"], (out, err)
        # An elastic job goes on if the host of a failed worker cannot be reached any more.
        fake(folder, "once", f'#!/bin/sh\n[ ! -e {folder}/1 ] || for word; do [ "$word" != nodeb ] || exit 255; done; exec {folder}/ssh "$@"\n')
        os.rmdir(folder + "/1")
        os.mkfifo(folder + "/go")
        script = f"[ $RANK = 0 ] && exec cat {folder}/go; mkdir {folder}/1; exit 3"
        process = start(*two, "--ssh", folder + "/once", "--restarts", "1", "--elastic", "1:2", *shell(script), env=env)
        assert process.stderr.readline() == "weft-run: rank 1 on nodeb exited with code 3: restarting it (1 of 1)\n"
        assert process.stderr.readline() == "weft-run: nodeb cannot be reached: ssh exited with code 255: the job continues with 1 workers\n"
        with open(folder + "/go", "w", encoding="utf-8"):
            pass
        assert process.communicate()[1] == "" and process.returncode == 0
        # A failure is noticed although nobody reads, and signals reach workers of other hosts.
        process = start(*two, *shell("[ $RANK = 1 ] || exec yes; seq 300000 >/dev/null; exit 7"), env=env)
        assert process.stderr.readline() == "weft-run: rank 1 on nodeb exited with code 7: ending the other worker\n"
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 7
        fake(folder, "relay", f'#!/bin/sh\n{folder}/ssh "$@" | cat\n')  # it ends only when its output has been read
        process = start(*two, "--ssh", folder + "/relay", "--grace", "0.2", "yes", env=env)
        assert process.stdout.read(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM and "may still run" not in process.stderr.read()
        process.stdout.close()
        with Reports(folder) as reports:
            script = f'exec 9>{reports.path}; trap "echo $RANK user >&9" USR1; trap "echo $RANK int >&9; exit 0" INT; echo up >&9; while :; do sleep 1000 & wait; done'
            process = start(*two, *shell(script), env=env)
            assert reports.lines(2) == ["up", "up"]
            process.send_signal(signal.SIGUSR1)
            assert reports.lines(2) == ["0 user", "1 user"]
            process.send_signal(signal.SIGINT)
            assert sorted(reports.rest().split("\n")) == ["", "0 int", "1 int"]
            assert process.communicate()[1] == "weft-run: SIGINT ends the job\n" and process.returncode == 130


def case_starts():
    """More workers than may start at once: at most 8 to one host. Each waits a moment for a ninth."""
    with tempfile.TemporaryDirectory() as folder:
        fake(folder, "ssh", FAKE_SSH)
        fake(folder, "slow", f"""#!/bin/sh
count() {{ n=$#; }}
mkdir -p {folder}/now/$$
for i in 1 2 3 4 5; do count {folder}/now/*; [ $n -le 8 ] || break; sleep 0.05; done
echo $n >>{folder}/counts
rmdir {folder}/now/$$
exec {folder}/ssh "$@"
""")
        env = environment(PATH=folder + ":" + os.environ["PATH"], FAKE_LOG=folder + "/log")
        out, err = run("--hosts", write(folder + "/hosts", "nodea slots=20\n"), "--ssh", folder + "/slow", *shell("echo $LOCAL_RANK of $LOCAL_WORLD_SIZE"), env=env)
        assert sorted(out) == sorted(f"[{i}] {i} of 20" for i in range(20)) and not err, (out, err)
        with open(folder + "/counts", encoding="utf-8") as counts:
            assert 1 < max(int(line) for line in counts) <= 8


def case_links():
    """Hosts that do not answer, or answer wrongly."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = write(folder + "/hosts", "".join(f"n{i}\n" for i in range(7)))
        one = write(folder + "/one", "n0\n")
        fake(folder, "deaf", "#!/bin/sh\nexec sleep 1000\n")
        _, err = run("--hosts", hosts, "--ssh", folder + "/deaf", "--connect-timeout", "0.2", "true", code=1)
        assert err == ["weft-run: no answer from n0, n1, n2, n3, n4 and 2 others within 0.2 s (--connect-timeout)"], err
        with Reports(folder) as reports:  # not one after the other
            fake(folder, "stubborn", f'#!/bin/sh\ntrap "" TERM; exec 9>{reports.path}; echo up >&9; exec sleep 1000\n')
            process = start("--hosts", hosts, "--ssh", folder + "/stubborn", "true")
            reports.lines(7)
            process.send_signal(signal.SIGTERM)
            assert process.stderr.readline() == "weft-run: SIGTERM ends the job\n"
            process.send_signal(signal.SIGTERM)
            assert reports.rest() == "" and process.wait() == 128 + signal.SIGTERM
            process.communicate()
        fake(folder, "some", f'#!/bin/sh\nfor word; do [ "$word" != n6 ] || exit 255; done; exec {folder}/deaf\n')
        _, err = run("--hosts", hosts, "--ssh", folder + "/some", "true", code=1)  # those that hang do not delay the end
        assert err == ["weft-run: n6 cannot be reached: ssh exited with code 255"], err
        for text, words in (("worker 9 7\n", "n0 has a weft-run of another version"), ("worker x\n", "n0 has a weft-run of another version"),
                            ("worker 2 0\n", "the host of rank 0 has no free port")):
            fake(folder, "liar", f"#!/bin/sh\necho a login shell\nprintf '\\nweft-run {text}'; exec cat >/dev/null\n")
            _, err = run("--hosts", one, "--ssh", folder + "/liar", "--connect-timeout", "20", "true", code=1)
            assert words in err[0], err
        fake(folder, "quitter", "#!/bin/sh\nprintf '\\nweft-run worker 2 7\\n'\n")  # no supervisor: it exits with 0 before it has the setup
        _, err = run("--hosts", one, "--ssh", folder + "/quitter", "true", code=1)
        assert err == ["weft-run: rank 0 on n0 is lost: the connection ended (ssh exited with code 0)"], err


def case_supervisor():
    """What runs on the other host, alone: it ends with its standard input, and so does all that the worker has started."""

    def begin(script, grace_ms=100):
        texts = "".join(text + "\0" for text in ("", "RANK=3", "sh", "-c", script)).encode()
        one = subprocess.Popen([PROGRAM, "--worker"], env=environment(RANK=9), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        STARTED.append(one)
        one.stdin.write(b"%d 32 1 %d\n" % (grace_ms, 32 + len(texts)) + b"s" * 32 + texts)
        assert re.fullmatch(rb"\nweft-run worker 2 \d+\n\n", one.stdout.readline() + one.stdout.readline() + one.stdout.read(1))
        return one

    with tempfile.TemporaryDirectory() as folder:
        for trap, code in (('trap "" TERM', 128 + 9), (":", 128 + 15)):
            with Reports(folder) as reports:
                one = begin(f'{trap}; exec 9>{reports.path}; echo $RANK up >&9; setsid sleep 1000 & sleep 1000 & wait; wait')
                assert reports.lines(1) == ["3 up"]
                one.stdin.close()
                assert reports.rest() == "" and one.wait() == code
                assert one.stdout.read() == one.stderr.read() == b""
        with Reports(folder) as reports:  # a byte is a signal
            one = begin(f'trap "echo user >&9" USR1; exec 9>{reports.path}; echo up >&9; while :; do sleep 1000 & wait; done', 1000000)
            assert reports.lines(1) == ["up"]
            one.stdin.write(bytes([signal.SIGUSR1]))
            assert reports.lines(1) == ["user"]
            one.stdin.write(bytes([signal.SIGKILL]))
            assert reports.rest() == "" and one.wait() == 128 + 9
        one = begin("echo out; echo err >&2; exit 5")
        assert one.wait() == 5 and one.stdout.read() == b"out\n" and one.stderr.read() == b"err\n"
        for text, code in ((b"", 1), (b"hello\n", 2), (b"1 2 3\n", 2), (b"1 40 0 30\n", 2), (b"1 4 0 9999999999\n", 2), (b"1 4 9 8\naaaabbb", 1), (b"1 4 9 8\naaaa\0bb\0", 2), (b"1 4 9 9\naaaa/\0bb\0", 2), (b"1 4 0 9\naaaa:\0bb\0", 126)):
            done = subprocess.run([PROGRAM, "--worker"], input=text, env=environment(), capture_output=True, check=False)
            assert done.returncode == code, (text, done)


# ---- With weft ---------------------------------------------------------------------------------------------------------------------


def case_weft():
    examples = sys.argv[3]
    out, _ = run("-n", "4", examples + "/batch_parameter_server", "--digits", "320", "--held-out", "100", "--epochs", "1",
                 env=environment(WEFT_DEATH_MS="20000"))
    assert any("accuracy" in line for line in out), out
    with tempfile.TemporaryDirectory() as folder:  # the same through ssh, with the secret on its standard input
        fake(folder, "ssh", FAKE_SSH)
        env = environment(PATH=folder + ":" + os.environ["PATH"], FAKE_LOG=folder + "/log")
        hosts = write(folder + "/hosts", "nodea\nnodeb\n")
        out, _ = run("--hosts", hosts, "--master-addr", "127.0.0.1", examples + "/hello", env=env)
        assert out == ["[1] rank 1: the sum of 1000000 numbers is 499999500000"], out


def case_weft_limit():
    """A limit of file sizes (ulimit -f) also counts for memory that is a file: an error at most, and no signal."""
    limited = ("-c", 'ulimit -f "$0" && exec "$@"')
    for kib, arguments, code in (("1", ("-n", "2", sys.argv[3] + "/hello"), 0), ("0", ("-n", "1", "true"), 1)):
        done = subprocess.run(["bash", *limited, kib, PROGRAM, *arguments], env=environment(), text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == code, done
        assert code == 0 or "the job's secret, 32 bytes: too large for the process's limit of file sizes (ulimit -f)" in done.stderr, done
    with tempfile.NamedTemporaryFile() as file:
        done = subprocess.run(["bash", *limited, "1", PROGRAM, "-n", "2", "seq", "100000"], env=environment(), text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE)
        assert done.returncode == 1, done
        assert done.stderr.startswith("weft-run: standard output cannot be written: too large for the process's limit of file sizes (ulimit -f): raise it"), done
    for limit, code, words in (("-n 64", 1, "cannot be started: each takes three descriptors: raise the limit of open files (ulimit -n)"), ("-Sn 64", 0, "")):
        done = subprocess.run(["bash", "-c", f'ulimit {limit} && exec "$0" -n 30 sh -c "ulimit -n"', PROGRAM], env=environment(), text=True,
                              check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == code and words in done.stderr, done
        assert code or sorted(done.stdout.splitlines()) == sorted(f"[{i}] 64" for i in range(30)), done  # the workers keep the limit
    for full, code in (("/dev/full", 1), ("/dev/null", 0)):  # also if the worker has ended before
        with open(full, "w", encoding="utf-8") as file:
            done = subprocess.run([PROGRAM, "-n", "1", "echo", "hi"], env=environment(), text=True, check=False, stdin=subprocess.DEVNULL,
                                  stdout=file, stderr=subprocess.PIPE)
        assert done.returncode == code and ("No space left" in done.stderr) == bool(code), done


def case_weft_elastic():
    """A worker of a real elastic job is killed, and the one that is started in its place does the work."""
    examples = sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        script = f'if [ $RANK = 1 ] && mkdir {folder}/once; then timeout -s KILL 0.5 "$0" "$@"; kill -KILL $$; fi; exec "$0" "$@"'
        out, err = run("-n", "2", "--elastic", "1:3", "--restarts", "1", *shell(script), examples + "/task_farm", "--tasks", "300")
        assert "weft-run: rank 1 on localhost was killed by SIGKILL: restarting it (1 of 1)" in err, err
        assert any("primes" in line for line in out), out


# ---- In a terminal -----------------------------------------------------------------------------------------------------------------


def case_terminal():
    """Ctrl-C ends everything, by one SIGINT for each worker."""
    if not shutil.which("tmux"):
        print("tmux is not installed")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", folder + "/socket", "-f", "/dev/null"]
        os.mkfifo(folder + "/code")
        with Reports(folder) as reports:
            worker = write(folder + "/worker", f'exec 9>{reports.path}; trap "echo $RANK int >&9; exit 0" INT; echo up >&9; while :; do sleep 1000 & wait; done')
            line = f"trap : INT; {PROGRAM} -n 3 sh {worker}; echo $? >{folder}/code"
            subprocess.run([*tmux, "new-session", "-d", "-x", "100", "-y", "30", line], env=environment(), check=True)
            try:
                assert reports.lines(3) == ["up"] * 3
                subprocess.run([*tmux, "send-keys", "C-c"], env=environment(), check=True)
                assert sorted(reports.rest().split("\n")) == ["", "0 int", "1 int", "2 int"]
                with open(folder + "/code", encoding="utf-8") as code:
                    assert code.read() == "130\n"
            finally:
                subprocess.run([*tmux, "kill-server"], env=environment(), check=False, stderr=subprocess.DEVNULL)


def give_up(*_):
    raise TimeoutError(f"not done in {LIMIT_S} s")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    try:
        globals()["case_" + CASE]()
    finally:
        for each in STARTED:  # one that a failed test has left; its workers end with it
            each.kill()
