#!/usr/bin/env bash
# mpi_groups.sh - runs the example, or mpi_operations, under mpirun: mpi_groups.sh PROGRAM CASE MPIRUN. Exits 77 where there is no mpirun that starts anything.
set -uo pipefail
program=$1 case=$2 mpirun=$3
source "$(dirname "$0")/common.sh"

command -v "$mpirun" >/dev/null || { echo "$case: no mpirun here: skipped"; exit 77; }
# Open MPI: as root, with more processes than cores, not bound to them and giving them up while it waits, without a remote shell.
starter=("$mpirun") tcp=()
if "$mpirun" --version 2>/dev/null | grep -q 'Open MPI'; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated
  starter+=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
  tcp=(--mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include lo)
fi
"${starter[@]}" -n 1 true >"$log" 2>&1 || { echo "$case: this mpirun starts nothing: skipped" >&2; cat "$log" >&2; exit 77; }
export WEFT_DEATH_MS=600000 # silence makes nobody dead, as the machine may be busy. The end of a process is noticed at once

agree() { # agree PROCESSES OPTIONS... - both ways have the same results, and the table says so
  local n=$1
  shift
  timeout -s KILL 300 "${starter[@]}" "$@" -n "$n" "$program" >"$log" 2>&1 || fail "expected both ways to agree"
  says "^$n processes, " && says '  40 of 40 combinations' || fail "expected a table"
  [ "$(grep -c '  yes$' "$log")" = 9 ] || fail "expected nine operations to be equal"
}

case_example() {
  refuses "start it as 'mpirun -n 2 mpi_groups'" # MPI begins without a launcher, with one process
  timeout -s KILL 300 "${starter[@]}" "${tcp[@]}" -n 3 "$program" >"$log" 2>&1 || fail "expected it to run"
  says '^the mean rank of 3 processes is 1 by weft, 1 by MPI$' || fail "expected both results"
}
case_two() { agree 2 "${tcp[@]}"; }
case_three() { agree 3; }
case_killed() {
  "${starter[@]}" -n 3 "$program" 1000000 >"$log" 2>&1 &
  local job=$! workers
  pids+=("$job")
  within 300 eval '[ "$(children "$job" | wc -w)" -ge 3 ]' || fail "expected three processes"
  read -r -a workers < <(children "$job")
  pids+=("${workers[@]}")
  sleep 1 # they are at work, or on the way there: all end in either case
  kill -KILL "${workers[2]}"
  local end=$(($(now_ms) + 300000)) p code
  for p in "$job" "${workers[@]}"; do
    until ended "$p"; do
      [ "$(now_ms)" -lt "$end" ] || fail "expected process $p to have ended by now"
      sleep 0.05
    done
  done
  code_of "$job"
  [ "$code" != 0 ] || fail "expected mpirun to tell of it"
}

"case_$case" || fail "it fails"
