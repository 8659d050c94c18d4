#!/usr/bin/env bash
# ddp_rpc_hybrid.sh - runs the program as its users do: ddp_rpc_hybrid.sh PROGRAM CASE LOSSES (PyTorch's: tests/oracle/hybrid_oracle.py)
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 case=$2 stored=$3
source "$(dirname "$0")/common.sh"

export WEFT_DEATH_MS=600000 # silence makes nobody dead, as the machine may be busy. The end of a process is noticed at once

start() { # start OPTIONS... - a job in the background, until its first line was shown; sets job and workers, by rank from 1
  "$program" --epochs 1000000 "$@" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 300 says 'update [1-9]' || fail "expected training to begin"
  read -r -a workers < <(children "$job")
  pids+=("${workers[@]}")
}
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^RANK=//p'; }
pid_of() { # pid_of RANK - of a worker that the job started
  local p
  for p in "${workers[@]}"; do [ "$(rank_of "$p")" != "$1" ] || echo "$p"; done
}
dies() { # dies SIGNAL RANK - all others end, and the master says who is gone, if it learned that itself or from another
  local victim
  start --trainers 3
  victim=$(pid_of "$2")
  kill "-$1" "$victim"
  ends_within 300000 1 "$job" "${workers[@]}"
  says "master: .*\(worker\|rank\) $2\( ([^)]*)\)\? is dead" || fail "expected the master to name it"
}
losses_of() { # losses_of TRAINER FILE - one a line
  sed -n 's/^losses of epoch [0-9]*: //p' "$2" | cut -d ' ' -f $(($1 + 1))
}

case_usage() {
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  local option
  for option in trainers epochs batches lr synchronous seed quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: ddp_rpc_hybrid' || fail "--help: expected an example"
  refuses "\-\-trainers is '0'" --trainers 0
  refuses "\-\-lr is 'fast'" --lr fast
  RANK=0 WORLD_SIZE=2 refuses "WORLD_SIZE is '2': expected at least 3"
  RANK=1 refuses "RANK and WORLD_SIZE: expected two numbers"
}
case_full() { full "$program" --epochs 1 --batches 2; }
case_trains() {
  local r=$log key
  "$program" --lr 0.5 --trainers 2 >"$log" 2>&1 || fail "expected it to train"
  for key in "trainers" "iterations" "iterations/s" "seconds" "loss" "loss at first"; do
    [ -n "$(value "$key" "$r")" ] || fail "expected $key in the table"
  done
  says 'update 2000 of 2000' || fail "expected the line to tell of all iterations"
  holds "$(value "iterations" "$r") == 1000 && $(value "trainers" "$r") == 2"
  holds "$(value "loss" "$r") < $(value "loss at first" "$r")"
}
# The losses of all trainers are those of one process: the first epochs' are PyTorch's.
same_losses() {
  local r=$log count=$1 k
  "$program" --trainers "$count" --synchronous >"$log" 2>&1 || fail "expected it to train"
  holds "$(value "iterations" "$r") == 1000"
  for ((k = 0; k < count; k++)); do
    [ "$(losses_of $k "$r" | grep -c .)" = 100 ] || fail "expected trainer $k to have the losses of 100 epochs"
    sed -n "s/^$count $k //p" "$stored" | tr ' ' '\n' | paste - <(losses_of $k "$r" | head -n 20) |
      awk 'NF != 2 || ($1 - $2)^2 > (1e-5 * $1)^2 { exit 1 } END { exit NR != 20 }' ||
      fail "expected PyTorch's losses of trainer $k"
  done
}
case_same_losses_1() { same_losses 1; }
case_same_losses_2() { same_losses 2; }
case_same_losses_4() { same_losses 4; }
case_by_hand() {
  by_hand 4 "$program" --epochs 5 --synchronous
  all_end_well
  holds "$(value "iterations" "$log") == 50"
}
case_diverges() {
  local code=0
  "$program" --lr 1e20 >"$log" 2>&1 || code=$?
  [ $code = 1 ] || fail "expected exit code 1, found $code"
  says 'master: .*the loss of trainer [23] is .* in epoch 1, batch 2, with --lr 1e+20' || fail "expected it to say which loss"
}
case_trainer_killed() { dies KILL 3; }
case_trainer_killed_synchronous() {
  start --trainers 2 --synchronous
  kill -KILL "$(pid_of 2)"
  ends_within 300000 1 "$job" "${workers[@]}"
  says 'master: .*\(worker\|rank\) 2\( ([^)]*)\)\? is dead' || fail "expected the master to name it"
}
case_trainer_stopped() { WEFT_DEATH_MS=3000 dies STOP 4; }
case_server_killed() { dies KILL 1; }
case_master_killed() {
  start
  kill -KILL "$job"
  ends_within 300000 137 "$job" "${workers[@]}"
}
case_interrupted() {
  start
  kill -TERM "$job"
  ends_within 300000 130 "$job" "${workers[@]}"
  says 'master: interrupted' || fail "expected it to say so"
}

"case_$case" || fail "it fails"
