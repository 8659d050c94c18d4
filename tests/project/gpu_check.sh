#!/usr/bin/env bash
# gpu_check.sh ROOT - tools/gpu-check --run as far as it goes without a GPU: what it says, how it exits, the form of its reports, its
# limit of time. Its programs, nvidia-smi and compute-sanitizer are stand-ins here.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools" "$work/out" "$work/gpu" "$work/pack/tests" "$work/pack/bin" "$work/pack/debs"
cp -r "$1/tools/gpu-check" "$1/tools/gpu" "$work/tools/"
check=$work/tools/gpu-check
fail() { echo "$*"; [ ! -f "$work/log" ] || sed 's/^/  | /' "$work/log"; exit 1; }

# run CODE COMMAND... - its output goes to the log
run() {
  local want=$1 code=0
  shift
  OUT=$work/out "$@" >"$work/log" 2>&1 </dev/null || code=$?
  [ "$code" = "$want" ] || fail "'$*' exited with $code, not $want:"
}
says() { grep -qF -- "$1" "${2:-$work/log}" || fail "there is no '$1':"; }
program() { # program PATH: the rest is its text
  cat >"$1"
  chmod +x "$1"
}

for part in '' --pack --run; do
  run 0 "$check" $part --help
  says "usage: "
  run 2 "$check" $part --nonsense
  says "unknown option '--nonsense'"
done
run 2 "$check" --run --limit 281
run 2 "$check" --run --limit soon

# No driver. (A machine that runs this test may have one, so its folders are left out.)
mkdir "$work/bare"
for tool in bash dirname uname sed grep awk head tail nproc date find sort tr rm mkdir mktemp realpath timeout tee env cat cp chmod ldd git; do
  path=$(command -v $tool) && ln -s "$path" "$work/bare/$tool"
done
run 1 env PATH="$work/bare" "$check" --run
says "no usable NVIDIA GPU here"
says "gpu-check: FAILED: gpu;"
cmp -s "$work/build/gpu/report-check.txt" "$work/out/gpu-report-check.txt" || fail "the two reports differ:"
says "-- gpu: FAILED: exit code 127" "$work/out/gpu-report-check.txt"

# All is well.
printf '#!/bin/sh\necho "GPU 0: a stand-in"\n' | program "$work/gpu/nvidia-smi"
program "$work/gpu/compute-sanitizer" <<'SH'
#!/bin/sh
[ "$1" = --version ] && { echo "Version of a stand-in"; exit 0; }
case $2 in memcheck) api="--report-api-errors no " program=$7 ;; racecheck | initcheck) api='' program=$5 ;; *) exit 4 ;; esac
[ "$*" = "--tool $2 $api--error-exitcode 99 $program" ] && [ "$WEFT_SLAB_KEEP_MB" = 0 ] || exit 3
echo "under $2"
exec "$program"
SH
printf '#!/bin/sh\necho "one test passed"\n' | program "$work/pack/tests/test_gpu_one"
printf '#!/bin/sh\necho "cuda to cuda 3000 GB/s"\n' | program "$work/pack/bin/gpu_bench_memory"
printf '#!/bin/sh\necho "a test of calls"\n' | program "$work/pack/tests/test_rpc_gpu"
printf '#!/bin/sh\necho "perf $*"\n' | program "$work/pack/bin/gpu_perf"
export PATH=$work/gpu:$PATH
cp "$work/pack/tests/test_gpu_one" "$work/pack/tests/test_gpu_table"
run 0 "$check" --run --pack "$work/pack"
for line in "-- gpu: passed" "== test_gpu_one" "one test passed" "-- test_gpu_one: passed" "-- test_rpc_gpu: passed" \
  "perf --only device --device cuda:0 --fabric tcp" "-- weft-perf over host: passed" "under racecheck" \
  "-- racecheck test_gpu_table: passed" "under initcheck" \
  "-- initcheck test_gpu_table: passed" "under memcheck" "-- memcheck test_gpu_one: passed" "gpu-check: all passed"; do
  says "$line" "$work/out/gpu-report-check.txt"
done

! grep -q "racecheck test_gpu_one" "$work/log" || fail "racecheck is for small cases alone:"
rm "$work/pack/tests/test_gpu_table"

# Measurements: both programs twice, and the better times of each.
cat >"$work/pack/bin/gpu_bench_ops" <<'SH'
#!/bin/sh
time=$(cat "$0.runs" 2>/dev/null || echo 1)
echo "bench add 0.00000${time}000 100.00 GB/s"
echo "bench sum 0.000004000 50.00 GB/s"
echo 3 >"$0.runs"
SH
chmod +x "$work/pack/bin/gpu_bench_ops"
printf '#!/bin/sh\n[ "$1" != -c ] || exit 0\necho "bench add 0.000006000 80.00 GB/s"\n' | program "$work/gpu/python3"
run 0 "$check" --run bench --pack "$work/pack"
for line in "cuda to cuda 3000 GB/s" "-- gpu_bench_memory: passed" "-- gpu_bench_ops, round 2: passed" "-- torch_bench.py, round 2: passed" \
  "gpu-check: all passed"; do
  says "$line" "$work/out/gpu-report-bench.txt"
done
grep -qE '^add +1\.000 us +100\.00 GB/s +6\.000 us +80\.00 GB/s +6\.00$' "$work/log" || fail "the table has no line for add:"
grep -qE '^sum +4\.000 us +50\.00 GB/s$' "$work/log" || fail "the table has no line for sum:"
printf '#!/bin/sh\necho "No module named torch"; exit 1\n' | program "$work/gpu/python3"
run 0 "$check" --run bench --pack "$work/pack"
says "PyTorch is not measured: No module named torch"
rm "$work/gpu/python3" "$work/pack/bin/gpu_bench_ops"
run 1 "$check" --run bench --pack "$work/pack"
says "no gpu_bench_ops here"

# A test that fails and one that skips: each is a failure, and the others run.
printf '#!/bin/sh\necho no GPU; exit 77\n' | program "$work/pack/tests/test_gpu_skips"
printf '#!/bin/sh\nexit 5\n' | program "$work/pack/tests/test_gpu_fails"
run 1 "$check" --run --pack "$work/pack"
says "-- test_gpu_one: passed"
says "-- test_gpu_skips: FAILED: it found no GPU and skipped"
says "-- test_gpu_fails: FAILED: exit code 5"
says "-- memcheck test_gpu_one: passed"
says "gpu-check: FAILED: test_gpu_fails; test_gpu_skips; memcheck test_gpu_fails; memcheck test_gpu_skips;"

# A test that does not end is ended, and the others run.
rm "$work"/pack/tests/test_gpu_[fs]*
printf '#!/bin/sh\ntrap "" TERM\nwhile :; do sleep 1; done\n' | program "$work/pack/tests/test_gpu_stays"
run 1 "$check" --run --pack "$work/pack" --each 1
says "-- test_gpu_stays: FAILED: no end in its time"
says "-- memcheck test_gpu_stays: FAILED: no end in its time"
says "gpu-check: FAILED: "

# Nothing begins after the limit of all: here nothing would end by itself in that time.
printf '#!/bin/sh\nexec sleep 1000\n' | program "$work/gpu/nvidia-smi"
run 1 "$check" --run --pack "$work/pack" --limit 10
says "-- gpu: FAILED: no end in its time"
