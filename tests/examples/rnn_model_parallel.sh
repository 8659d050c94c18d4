#!/usr/bin/env bash
# rnn_model_parallel.sh - runs the program as its users do: rnn_model_parallel.sh PROGRAM CASE
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"

export WEFT_DEATH_MS=600000 # silence makes nobody dead, as the machine may be busy. The end of a process is noticed at once

start() { # start OPTIONS... - a job in the background, until its first line was shown; sets job and server
  "$program" --epochs 1000000 "$@" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 300 says 'update [1-9]' || fail "expected training to begin"
  read -r server < <(children "$job")
  pids+=("$server")
}

case_usage() {
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  local option
  for option in words embedding hidden layers epochs dropout lr device seed quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: rnn_model_parallel' || fail "--help: expected an example"
  refuses "\-\-words is '0'" --words 0
  refuses "\-\-dropout is '1'" --dropout 1
  refuses "\-\-lr is 'fast'" --lr fast
  RANK=1 refuses "RANK and WORLD_SIZE: expected two numbers"
}
case_full() { full "$program" --epochs 1; }
case_trains() {
  local r=$log key
  "$program" >"$log" 2>&1 || fail "expected it to train"
  for key in "iterations" "iterations/s" "seconds" "loss" "loss at first" "sent"; do
    [ -n "$(value "$key" "$r")" ] || fail "expected $key in the table"
  done
  holds "$(value "iterations" "$r") == 50"
  holds "$(value "parameters here" "$r") == 372 && $(value "on the server" "$r") == 42" # as the tutorial's
  "$program" --embedding 16 --hidden 32 --layers 1 --dropout 0 --lr 2 --epochs 200 --quiet \
    >"$log" 2>&1 || fail "expected it to train"
  holds "$(value "loss" "$r") < 0.5 * $(value "loss at first" "$r")"
}
case_by_hand() {
  by_hand 2 "$program"
  all_end_well
  holds "$(value "iterations" "$log") == 50"
}
case_server_killed() {
  start
  kill -KILL "$server"
  ends_within 300000 1 "$job" "$server"
  says 'trainer: .*\(server\|rank\) 1 is dead' || fail "expected the trainer to name it"
}
case_trainer_killed() {
  start
  kill -KILL "$job"
  ends_within 300000 137 "$job" "$server"
}
case_interrupted() {
  start
  kill -TERM "$job"
  ends_within 300000 130 "$job" "$server"
  says 'trainer: interrupted' || fail "expected it to say so"
}

"case_$case" || fail "it fails"
