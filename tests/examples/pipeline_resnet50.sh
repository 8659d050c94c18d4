#!/usr/bin/env bash
# pipeline_resnet50.sh - runs the program as its users do: pipeline_resnet50.sh PROGRAM CASE
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"

small=(--batch-size 5 --image-size 64 --death-timeout 20000) # a machine that has other work makes nobody dead

start() { # start - a job in the background, until its first line was shown; sets job and stages, by rank from 1
  "$program" --batches 1000000 "${small[@]}" --micro-batches 2 "$@" >"$log" 2>&1 &
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
  for option in rank world-size master-addr master-port micro-batches batch-size batches image-size lr check seed report quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: pipeline_resnet50' || fail "--help: expected an example"
  refuses "\-\-batch-size is '0'" --batch-size 0
  refuses "\-\-image-size is '32'" --image-size 32
  refuses "\-\-micro-batches is '1,9'" --batch-size 8 --micro-batches 1,9
  refuses "\-\-micro-batches is '1,'" --micro-batches 1,
  refuses "\-\-micro-batches is '1,,2'" --micro-batches 1,,2
  refuses "\-\-micro-batches is 'all'" --micro-batches all
  refuses "go together" --rank 0
  refuses "unknown option .--on-death" --on-death continue
  RANK=0 WORLD_SIZE=2 refuses "WORLD_SIZE is '2': a master and two stages are three"
  RANK=1 refuses "WORLD_SIZE is not set"
  refuses "\-\-report is '$dir': that is a folder" --report "$dir"
}
# The gradients of all parameters are those of one process, whatever the sizes, and a last micro-batch that is smaller.
case_same_gradients() {
  local r=$dir/report.json key
  "$program" "${small[@]}" --batches 1 --micro-batches 2,5 --check --report "$r" >"$log" 2>&1 ||
    fail "expected the gradients of one process"
  for key in iterations best_micro_batch speedup master_bytes_sent difference seconds images_per_s loss first_loss; do
    [ -n "$(value $key "$r")" ] || fail "expected $key in the report"
  done
  holds "$(value difference "$r") <= 1e-5 && $(value iterations "$r") == 2"
  says 'update 4 of 4' || fail "expected the line to tell of all micro-batches"
  says '^ *2 *3 .*#' || fail "expected a row, and a bar, for micro-batches of 2"
  says 'best  *micro-batches of [25], ' || fail "expected it to say which size is best"
}
# Activations of the cut, 512 x 8 x 8 numbers of each image and as many in their gradients, do not go through the master.
case_by_hand() {
  local port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000)) r=$dir/report.json images=$((4 * 5 * 3 * 64 * 64 * 4)) rank p
  for rank in 0 1 2; do
    "$program" --rank $rank --world-size 3 --master-addr 127.0.0.1 --master-port $port --report "$r" --batches 4 --micro-batches 5 \
      "${small[@]}" >"$dir/log$rank" 2>&1 &
    pids+=($!)
  done
  for p in "${pids[@]}"; do
    code_of "$p"
    [ "$code" = 0 ] || fail "expected each worker to exit with 0: $(cat "$dir"/log?)"
  done
  holds "$(value iterations "$r") == 4"
  holds "$(value master_bytes_sent "$r") < $images + $images / 2" # the images, and scores' gradients
  holds "$(value master_bytes_received "$r") < $((4 * 5 * 512 * 8 * 8 * 4)) / 2"
}
case_diverges() {
  local code=0
  "$program" "${small[@]}" --lr 1e20 --micro-batches 5 >"$log" 2>&1 || code=$?
  [ $code = 1 ] || fail "expected exit code 1, found $code"
  says 'master: the loss is .* with --lr 1e+20' || fail "expected it to say so"
}
case_stage_killed() {
  start
  kill -KILL "$(pid_of 2)"
  ends_within 20000 1 "$job" "${stages[@]}"
  says 'master: stage 2 is gone' || fail "expected the master to name it"
  says 'stage 1: the master ended the job: stage 2 is gone' || fail "expected the other stage to name it"
}
case_master_killed() {
  start
  kill -KILL "$job"
  ends_within 20000 137 "$job" "${stages[@]}"
  says 'stage 1: the master is gone' || fail "expected a stage to say so"
  says 'stage 2: the master is gone' || fail "expected a stage to say so"
}
case_interrupted() {
  start
  kill -TERM "$job"
  ends_within 20000 130 "$job" "${stages[@]}"
  says 'master: interrupted' || fail "expected it to say so"
}

"case_$case" || fail "it fails"
