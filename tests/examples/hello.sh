#!/usr/bin/env bash
# hello.sh PROGRAM CASE - examples/hello.c: by itself, as four workers that a launcher would start, and as README shows it.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
answer='the sum of 1000000 numbers is 499999500000'

case "$case" in
alone)
  env -u RANK timeout 300 "$program" >"$log" 2>&1 || fail "exit code $?"
  [ "$(cat "$log")" = "rank 1: $answer" ] || fail "it prints something else"
  ;;
launched)
  by_hand 4 timeout 300 "$program"
  all_end_well
  for rank in 1 2 3; do
    grep -q "^rank $rank: $answer\$" "$log$rank" || fail "rank $rank prints something else"
  done
  [ ! -s "$log" ] || fail "rank 0 prints something"
  ;;
slurm_port) # two nodes, says Slurm: MASTER_PORT alone is enough, because Slurm knows the first node
  port=$(some_port)
  for rank in 0 1; do
    env -u RANK -u WORLD_SIZE -u MASTER_ADDR SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 \
      SLURM_STEP_NUM_NODES=2 SLURM_NODEID=$rank SLURM_STEP_NODELIST=localhost,weft-no-such-node MASTER_PORT="$port" WEFT_INSECURE=1 \
      WEFT_LOG=info timeout 300 "$program" >"$log${rank#0}" 2>&1 &
    pids+=($!)
  done
  all_end_well
  grep -q "^rank 1: $answer\$" "${log}1" || fail "rank 1 prints something else"
  grep -q "WEFT_INSECURE is set: any process that reaches the ports of this job's 2 nodes" "$log" || fail "Slurm was not asked"
  ;;
mpirun) # without a setting: PMIx tells where rank 0 is, and exit codes arrive
  command -v mpirun >/dev/null && grep -q "^PMIX_FOUND:INTERNAL=1" "$3" && grep -q "^WEFT_PMIX:BOOL=ON" "$3" || exit 77
  run=(env -u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT timeout 300 mpirun --oversubscribe)
  [ "$(id -u)" != 0 ] || run+=(--allow-run-as-root)
  "${run[@]}" -n 3 "$program" >"$log" 2>&1 || fail "exit code $?"
  for rank in 1 2; do
    grep -q "^rank $rank: $answer\$" "$log" || fail "rank $rank prints something else"
  done
  "${run[@]}" -x WEFT_FABRIC=nonsense -n 2 "$program" >"$log" 2>&1 && fail "a refused job exits with 0"
  grep -q "nonsense" "$log" || fail "the reason is not there"
  ;;
refused) # an option that no worker can use: a line of each, and none about exit codes
  env -u RANK WEFT_FABRIC=nonsense timeout 300 "$program" >"$log" 2>&1 && fail "it exits with 0"
  [ "$(grep -c 'error weft_agent_open: fabric (WEFT_FABRIC) is "nonsense"' "$log")" = 2 ] && [ "$(wc -l <"$log")" = 2 ] ||
    fail "expected one line of each worker"
  ;;
no_loopback)
  unshare -n true 2>/dev/null || exit 77
  for fabric in auto tcp; do
    env -u RANK WEFT_FABRIC=$fabric timeout 300 unshare -n "$program" >"$log" 2>&1 && fail "$fabric: it exits with 0"
    says 'the loopback interface is down: bring it up (ip link set lo up)' || fail "$fabric: the reason is not there"
  done
  env -u MASTER_ADDR RANK=1 WORLD_SIZE=2 MASTER_PORT=1 WEFT_FABRIC=host timeout 300 unshare -n "$program" >"$log" 2>&1 &
  pids+=($!)
  within 300 says 'the loopback interface is down: bring it up (ip link set lo up)' || fail "host: the reason is not there"
  ;;
readme) # README has the program, without its head, and what it prints
  sed -n '/^#include <weft/,$p' "$root/examples/hello.c" >"$dir/program"
  awk '/^```c$/ { code = 1; next } /^```$/ { code = 0 } code' "$root/README.md" >"$dir/shown"
  diff "$dir/program" "$dir/shown" >"$log" || fail "README shows another program"
  awk '/^```cpp$/ { code = 1; next } /^```$/ { code = 0 } code' "$root/README.md" >"$dir/shown"
  [ -s "$dir/shown" ] || fail "README shows no C++"
  while IFS= read -r line; do
    grep -qF -- "$line" "$root/examples/hello.cpp" || fail "README shows a line that hello.cpp lacks: $line"
  done <"$dir/shown"
  grep -qx "rank 1: $answer" "$root/README.md" || fail "README shows another output"
  [ "$(wc -l <"$root/examples/hello.cpp")" -le 30 ] || fail "hello.cpp has more than 30 lines"
  [ "$(wc -l <"$root/README.md")" -le 120 ] || fail "README has more than 120 lines"
  ;;
*) fail "no such case" ;;
esac
