#!/usr/bin/env bash
# pipeline_resnet50.sh - runs the program as its users do: pipeline_resnet50.sh PROGRAM CASE
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"

export WEFT_DEATH_MS=600000 # silence makes nobody dead, as the machine may be busy. The end of a process is noticed at once
small=(--batch-size 5 --image-size 64)

start() { # start - a job in the background, until its first line was shown; sets job and stages, by rank from 1
  "$program" --batches 1000000 "${small[@]}" --micro-batch 2 "$@" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 300 says 'update [1-9]' || fail "expected training to begin"
  read -r -a stages < <(children "$job")
  pids+=("${stages[@]}")
}
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^RANK=//p'; }
pid_of() { # pid_of RANK - of a stage that the job started
  local p
  for p in "${stages[@]}"; do [ "$(rank_of "$p")" != "$1" ] || echo "$p"; done
}
case_usage() {
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  local option
  for option in micro-batch batch-size batches image-size lr device seed quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: pipeline_resnet50' || fail "--help: expected an example"
  refuses "\-\-batch-size is '0'" --batch-size 0
  refuses "\-\-image-size is '32'" --image-size 32
  RANK=0 WORLD_SIZE=2 refuses "WORLD_SIZE is '2': expected at least 3"
  RANK=1 refuses "RANK and WORLD_SIZE: expected two numbers"
}
# With a last micro-batch that is smaller. Steps on a batch of five images change the loss a lot, but it stays a number.
case_trains() {
  local r=$log key
  "$program" "${small[@]}" --batches 3 --micro-batch 2 --lr 0.01 >"$log" 2>&1 || fail "expected it to train"
  for key in "batches" "seconds" "images/s" "master sent" "loss" "loss at first"; do
    [ -n "$(value "$key" "$r")" ] || fail "expected $key in the table"
  done
  says 'update 9 of 9' || fail "expected the line to tell of all micro-batches"
  holds "$(value "loss" "$r") != $(value "loss at first" "$r")"
  full "$program" "${small[@]}" --batches 1 --micro-batch 5
}
# Activations of the cut, 512 x 8 x 8 numbers of each image and as many in their gradients, do not go through the master.
case_by_hand() {
  local images=$((4 * 5 * 3 * 64 * 64 * 4))
  by_hand 3 "$program" --batches 4 --micro-batch 5 "${small[@]}"
  all_end_well
  holds "$(value "batches" "$log") == 4"
  holds "1e6 * $(value "master sent" "$log") < $images + $images / 2" # the images, and scores' gradients
  holds "1e6 * $(value "master received" "$log") < $((4 * 5 * 512 * 8 * 8 * 4)) / 2"
}
case_diverges() {
  local code=0
  "$program" "${small[@]}" --lr 1e20 --micro-batch 5 >"$log" 2>&1 || code=$?
  [ $code = 1 ] || fail "expected exit code 1, found $code"
  says 'master: the loss is .* with --lr 1e+20' || fail "expected it to say so"
}
case_stage_killed() {
  start
  kill -KILL "$(pid_of 2)"
  ends_within 300000 1 "$job" "${stages[@]}"
  says 'master: .*\(stage\|rank\) 2 is dead' || fail "expected the master to say so"
}
case_master_killed() {
  start
  kill -KILL "$job"
  ends_within 300000 137 "$job" "${stages[@]}"
}
case_interrupted() {
  start
  kill -TERM "$job"
  ends_within 300000 130 "$job" "${stages[@]}"
  says 'master: interrupted' || fail "expected it to say so"
}

"case_$case" || fail "it fails"
