#!/usr/bin/env bash
# parameter_servers.sh - runs batch_parameter_server or rpc_parameter_server as its users do: parameter_servers.sh PROGRAM CASE STRAY
# Cases that begin with rpc_ are rpc_parameter_server's alone; those that the build lists for both are run with both.
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 case=$2 stray=$3
source "$(dirname "$0")/common.sh"

export WEFT_DEATH_MS=600000 # silence makes nobody dead, as the machine may be busy. The end of a process is noticed at once
small=(--trainers 2 --digits 640 --held-out 200)

start() { # start OPTIONS... - a job in the background, until its first update was shown; sets job and trainers
  "$program" --digits 640 --iterations 100000 "$@" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 300 says 'update [1-9]' || fail "expected training to begin"
  trainers=($(children "$job"))
  pids+=("${trainers[@]}")
}

shown() { grep -c 'update [1-9]' "$log"; }                                   # lines
updates() { grep -o 'update [0-9]*' "$log" | tail -n 1 | grep -o '[0-9]*'; } # as the last line has it
beyond() { [ "$("$1")" -gt "$2" ]; }                                         # beyond COUNT NUMBER
trains_on() { # updates are made that were not made before: the lines come anyway
  within 300 beyond shown "$(shown)" || fail "expected a line about progress"
  within 300 beyond updates "$(updates)" || fail "expected training to go on after update $(updates)"
}

case_usage() {
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  local option
  for option in trainers model batch-size image-size classes epochs iterations lr data seed save quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: ' || fail "--help: expected an example"
  refuses "unknown option '--lrr'" --lrr 1
  refuses "'train' is no option" train
  refuses "\-\-lr is 'fast'" --lr fast
  refuses "\-\-lr is 'nan'" --lr=nan
  refuses "\-\-trainers is '0'" --trainers 0
  refuses "\-\-trainers is '2x'" --trainers 2x
  refuses "\-\-seed is '99999999999999999999'" --seed 99999999999999999999
  refuses "\-\-model is 'vgg': expected convnet|resnet50" --model vgg
  refuses "\-\-epochs needs a value" --epochs
  refuses "takes no value" --quiet=yes
  refuses "options of --model resnet50" --image-size 64
  refuses "random images" --model resnet50 --data "$dir"
  RANK=zero refuses "RANK and WORLD_SIZE: expected two numbers" --trainers 2
  RANK=1 refuses "RANK and WORLD_SIZE: expected two numbers"
  RANK=0 WORLD_SIZE=1 refuses "WORLD_SIZE is '1': expected at least 2"
}

rejects() { # rejects WORDS OPTIONS... - exit code 1, before any trainer is started
  local words=$1 code=0
  shift
  "$program" --trainers 2 "$@" >"$log" 2>&1 || code=$?
  [ $code = 1 ] || fail "expected exit code 1, found $code"
  [ "$(wc -l <"$log")" = 1 ] || fail "expected one line"
  says "$words" || fail "expected '$words'"
}
idx() { # idx MAGIC COUNT SIDE BYTES FILE - a file with that header and so many bytes of 3
  { printf '\0\0\10'; printf "\\$(printf %o "$1")"; printf '\0\0\0'; printf "\\$(printf %o "$2")"
    [ "$1" = 1 ] || printf "\\0\\0\\0\\$(printf %o "$3")\\0\\0\\0\\$(printf %o "$3")"
    head -c "$4" /dev/zero | tr '\0' '\3'; } >"$5"
}
case_full() { full "$program" --digits 64 --held-out 10 --batch-size 2 --iterations 2; }
case_data() {
  local d=$dir/data part
  mkdir "$d"
  rejects "train-images-idx3-ubyte there, or the same with .gz" --data "$d"
  for part in train t10k; do
    idx 3 64 28 $((64 * 784)) "$d/$part-images-idx3-ubyte"
    idx 1 64 0 64 "$d/$part-labels-idx1-ubyte"
  done
  "$program" --trainers 2 --data "$d" --batch-size 8 --iterations 2 --quiet >"$log" 2>&1 || fail "expected good data to do"
  rejects "64 images do not make a batch of 33 for 2 trainers: a smaller" --data "$d" --batch-size 33
  idx 1 63 0 63 "$d/train-labels-idx1-ubyte"
  rejects "expected as many labels as images, 64, found 63" --data "$d"
  { head -c 71 "$d/t10k-labels-idx1-ubyte"; printf '\12'; } >"$d/train-labels-idx1-ubyte"
  rejects "expected labels from 0 to 9, found 10 at 63" --data "$d"
  cp "$d/t10k-labels-idx1-ubyte" "$d/train-labels-idx1-ubyte"
  idx 3 64 27 $((64 * 729)) "$d/t10k-images-idx3-ubyte"
  rejects "t10k-images-idx3-ubyte: expected dimension 1 to be 28, found 27" --data "$d"
  idx 3 64 28 $((64 * 784 - 5)) "$d/t10k-images-idx3-ubyte"
  rejects "expected 50176 bytes of data, found 50171" --data "$d"
}

case_trains() {
  local r=$log key
  "$program" "${small[@]}" --epochs 6 >"$log" 2>&1 || fail "expected it to train"
  for key in "trainers" "iterations" "seconds" "images/s" "loss" "held-out accuracy" "share of calls" "server sent" \
    "copied by weft" "server's peak memory"; do
    [ -n "$(value "$key" "$r")" ] || fail "expected $key in the table"
  done
  holds "$(value "trainers" "$r") == 2"
  holds "$(value "iterations" "$r") == 60"
  holds "$(value "loss" "$r") < 0.6 * $(value "loss at first" "$r")"
  holds "$(value "held-out accuracy" "$r") > 0.6"
  holds "$(value "share of calls" "$r") > 0 && $(value "share of calls" "$r") < 1"
  holds "1e6 * $(value "copied by weft" "$r") == 0"
  # The model to each trainer at first; then gradients up and the model down, 1,199,882 float32 each way.
  holds "1e6 * $(value "server sent" "$r") >= 4799528 * 2 * 61 && 1e6 * $(value "server sent" "$r") < 1.01 * 4799528 * 2 * 61"
  holds "1e6 * $(value "server received" "$r") >= 4799528 * 2 * 60 && 1e6 * $(value "server received" "$r") < 1.01 * 4799528 * 2 * 60"
  says 'held-out accuracy' || fail "expected a table"
}
case_resnet() {
  local r=$log
  "$program" --trainers 2 --model resnet50 --iterations 2 --batch-size 2 --image-size 32 --quiet \
    >"$log" 2>&1 || fail "expected it to train"
  holds "$(value "iterations" "$r") == 2"
  [ -z "$(value "held-out accuracy" "$r")" ] || fail "expected no accuracy"
  holds "1e6 * $(value "copied by weft" "$r") == 0"
  # Model, momentum, accumulator and one landing set per trainer, 94.28 MB each, and 100 MB; sanitizers need more.
  grep -qE '__(asan|tsan)_init' "$program" || holds "1e6 * $(value "server's peak memory" "$r") < 5 * 94278008 + 100e6"
}

case_by_hand() {
  by_hand 3 "$program" --digits 640 --iterations 10
  all_end_well
  holds "$(value "trainers" "$log") == 2"
}
case_bad_gradients() { # rank 2 sends what does not fit; the server and rank 1 go on
  local port
  port=$(some_port)
  join 0 3 "$port" "$program" --digits 640 --iterations 10
  join 1 3 "$port" "$program" --digits 640 --iterations 10
  join 2 3 "$port" "$stray"
  all_end_well
  holds "$(value "iterations" "$log") == 10"
  holds "$(value "loss" "$log") < $(value "loss at first" "$log")"
}

case_trainer_killed() {
  start --trainers 3
  kill -KILL "${trainers[1]}"
  within 300 says 'trainer 2 is dead.*going on with 2' || fail "expected news of the death"
  trains_on
  kill -KILL "${trainers[0]}"
  within 300 says 'trainer 1 is dead.*going on with 1' || fail "expected news of the death"
  trains_on
  kill -KILL "${trainers[2]}"
  ends_within 300000 1 "$job"
  says 'no trainer is left' || fail "expected an end"
}
case_trainer_stopped() {
  WEFT_DEATH_MS=3000 start --trainers 3
  kill -STOP "${trainers[1]}"
  within 300 says 'trainer 2 is dead: .*going on with 2' || fail "expected news of the death"
  trains_on
  kill -CONT "${trainers[1]}"
  within 300 says 'trainer 2: declared dead, and out of the job' || fail "expected it to be told"
  within 300 ended "${trainers[1]}" || fail "expected it to end"
  trains_on
}
case_server_killed() {
  start --trainers 2 # spawned
  kill -KILL "$job"
  ends_within 300000 137 "$job" "${trainers[@]}"
  pids=()
  by_hand 3 "$program" --digits 640 --iterations 100000
  within 300 says 'update [1-9]' || fail "expected training to begin"
  kill -KILL "${pids[0]}"
  ends_within 300000 1 "${pids[1]}" "${pids[2]}"
  grep -q 'rank 0 is gone' "${log}1" || fail "expected trainer 1 to say so: $(cat "${log}1")"
  grep -q 'rank 0 is gone' "${log}2" || fail "expected trainer 2 to say so: $(cat "${log}2")"
}
case_rpc_usage() {
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  local option
  for option in trainers batch-size epochs iterations lr data seed save quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: rpc_parameter_server' || fail "--help: expected an example"
  refuses "unknown option '--model'" --model convnet
  refuses "\-\-lr is 'fast'" --lr fast
  rejects "640 images do not make a batch of 641 for 1 trainers: a smaller" --digits 640 --batch-size 641
  rejects "train-images-idx3-ubyte there, or the same with .gz" --data "$dir"
}
diverges() { # diverges WORDS OPTIONS... - the job ends with 1, and a worker says why
  local words=$1 code=0
  shift
  "$program" "${small[@]}" --lr 1000 --quiet "$@" >"$log" 2>&1 || code=$?
  [ $code = 1 ] || fail "$*: expected exit code 1, found $code"
  says "$words" || fail "$*: expected a worker to say '$words'"
  [ -z "$(value loss "$log")" ] || fail "$*: expected no table"
}
case_diverges() {
  diverges 'trainer [12]: the loss of trainer [12] is \(nan\|infinite\) in iteration [0-9]* of 10, with --lr 1000' --iterations 10
  says 'server: no trainer is left' || fail "expected the server to end"
  # No loss tells of the model after the last step; a trainer of its own pace may have met it before.
  diverges "the \(trained model's scores of held-out images are not finite\|loss of trainer\)" --iterations 2
}
case_rpc_killed_others_finish() {
  local r=$log each=300 # long after the first line, which comes after 2 s
  ! grep -q '__tsan_init' "$program" || each=70
  OMP_NUM_THREADS=1 start --trainers 3 --iterations $each --held-out 200
  kill -KILL "${trainers[1]}"
  ends_within 300000 0 "$job" "${trainers[@]}"
  says 'server: trainer 2 is dead: .*going on with 2' || fail "expected news of the death"
  holds "$(value "iterations" "$r") >= 2 * $each && $(value "iterations" "$r") < 3 * $each" # those of two, and some of the third's
  holds "$(value "loss" "$r") < 0.6 * $(value "loss at first" "$r")"
  holds "$(value "held-out accuracy" "$r") > 0.6"
}
case_rpc_trains() {
  local r=$log key
  "$program" "${small[@]}" --epochs 4 --save "$dir/model" >"$log" 2>&1 || fail "expected it to train"
  for key in "trainers" "iterations" "seconds" "images/s" "loss" "held-out accuracy" "server sent"; do
    [ -n "$(value "$key" "$r")" ] || fail "expected $key in the table"
  done
  holds "$(value "trainers" "$r") == 2"
  holds "$(value "iterations" "$r") == 160" # each trainer goes through all 640 images
  holds "$(value "loss" "$r") < 0.6 * $(value "loss at first" "$r")"
  holds "$(value "held-out accuracy" "$r") > 0.6"
  # Images there, scores back, their gradient there: (32 * 784 + 2 * 32 * 10) float32 an iteration; no parameter.
  holds "1e6 * $(value "server received" "$r") >= 160 * 101632 && 1e6 * $(value "server received" "$r") < 1.1 * 160 * 101632"
  holds "1e6 * $(value "server sent" "$r") >= 160 * 1280 && 1e6 * $(value "server sent" "$r") < 2 * 160 * 1280"
  [ "$(stat -c %s "$dir/model")" -gt 4799528 ] || fail "expected the server's model to be saved"
  says 'held-out accuracy' || fail "expected a table"
}
case_interrupted() {
  start --trainers 2
  kill -TERM "$job"
  ends_within 300000 130 "$job" "${trainers[@]}"
  says 'server: interrupted' || fail "expected it to say so"
}

"case_$case" || fail "it fails"
