#!/usr/bin/env bash
# task_farm.sh PROGRAM CASE - task_farm, whose workers join late, leave, are stopped and are killed. Each task must be counted once: the
# sum is the number of primes below 10,000,000.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
right='^500 of 500 tasks, .* 664579 primes below 10000000$'

begin() { # begin OPTIONS... - a farm in the background, until a tenth of its tasks is done; sets job and workers
  "$program" "$@" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 300 says '^\[# ' || fail "expected tasks to be done"
  workers=($(children "$job"))
  pids+=("${workers[@]}")
}
farmer() { # the farmer of a job of at most four workers
  export WORLD_SIZE=5 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(some_port)
  RANK=0 "$program" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
}
worker() { # worker LOG - one more worker; sets pid
  RANK=-1 "$program" >"$1" 2>&1 &
  pid=$!
  pids+=("$pid")
}
is_right() { says "$right" || fail "expected all tasks to be counted once"; }
retried() { grep -q "^500 of 500 tasks, [1-9][0-9]* retries" "$log" || fail "expected tasks to be done again"; }

case_usage() {
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  local option
  for option in tasks numbers workers; do says "^  --$option" || fail "--help: expected --$option"; done
  refuses "unknown option '--task'" --task 3
  refuses "\-\-workers is '0'" --workers 0
}
case_alone() {
  "$program" >"$log" 2>&1 || fail "expected exit code 0, found $?"
  is_right
  says '^\[##########\] 500 of 500 tasks' || fail "expected a line about progress"
  "$program" --tasks 3 --numbers 10 --workers 8 >"$log" 2>&1 || fail "more workers than tasks: expected exit code 0, found $?"
  says '^3 of 3 tasks, 0 retries: 10 primes below 30$' || fail "more workers than tasks: expected another result"
}
case_late() { # workers join while the job runs, also with the rank of one that was killed
  local n first
  farmer
  worker "$dir/first"
  first=$pid
  within 300 says '^\[# ' || fail "expected the first worker to do tasks"
  worker "$dir/second"
  within 300 says '2 workers' || fail "expected the second worker to be counted"
  kill -KILL "$first"
  for n in 3 4 5; do worker "$dir/log$n"; done
  ends_within 300000 0 "$job" "${pids[@]:2}"
  is_right
  for n in second log3 log4 log5; do [ ! -s "$dir/$n" ] || fail "expected a worker to say nothing: $(cat "$dir/$n")"; done
}
case_left() { # a worker that is asked to leaves with exit code 0, and no task fails
  farmer
  worker "$dir/first"
  local first=$pid
  worker "$dir/second"
  within 300 says '^\[# ' || fail "expected tasks to be done"
  kill -TERM "$first"
  ends_within 300000 0 "$first"
  ends_within 300000 0 "$job" "$pid"
  is_right
}
case_killed() {
  begin --workers 4
  kill -KILL "${workers[1]}"
  within 300 says 'worker [1-4] is dead: ' || fail "expected the death to be reported"
  kill -KILL "${workers[2]}"
  ends_within 300000 0 "$job" "${workers[@]}"
  is_right
  retried
}
case_all_killed() {
  begin --workers 2
  kill -KILL "${workers[@]}"
  ends_within 300000 1 "$job"
  says ' of 500 tasks, .* retries: no worker is left$' || fail "expected the farmer to say why it ends"
}
case_stopped() { # a stopped worker is declared dead and its tasks are done again; continued, it finds that it is out
  export WEFT_DEATH_MS=3000
  farmer
  worker "$dir/first"
  local first=$pid
  worker "$dir/second"
  within 300 says '^\[# .* 2 workers' || within 300 says '^\[##.* 2 workers' || fail "expected two workers"
  kill -STOP "$first"
  within 300 says 'worker [1-4] is dead: ' || fail "expected the stopped worker to be declared dead"
  kill -CONT "$first"
  ends_within 300000 1 "$first"
  grep -q 'this worker is out of the job: ' "$dir/first" || fail "expected it to say so: $(cat "$dir/first")"
  ends_within 300000 0 "$job" "$pid"
  is_right
  retried
}
case_interrupted() {
  begin --workers 3
  kill -INT "$job"
  ends_within 300000 130 "$job" "${workers[@]}"
  says '^[0-9]* of 500 tasks, .* retries: interrupted$' || fail "expected it to say so"
}
signalled() { ended "$job" || { kill -INT "$job" && false; }; }
case_interrupted_twice() { # the first signal waits for workers that are stopped, the second does not
  export WEFT_DEATH_MS=600000
  begin --workers 2
  kill -STOP "${workers[@]}"
  within 300 signalled || fail "expected the second signal to kill it"
  ends_within 300000 130 "$job" "${workers[@]}"
  ! says 'interrupted$' || fail "expected it to be killed before it could say anything"
}

"case_$case" || fail "it fails"
