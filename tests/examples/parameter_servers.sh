#!/usr/bin/env bash
# parameter_servers.sh - runs batch_parameter_server or rpc_parameter_server as its users do: parameter_servers.sh PROGRAM CASE STRAY
# Cases that begin with rpc_ are rpc_parameter_server's alone; those that the build lists for both are run with both.
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 case=$2 stray=$3
source "$(dirname "$0")/common.sh"

steady=(--death-timeout 20000) # a machine that has other work makes nobody dead; one that was killed is noticed all the same
noticed=(--death-timeout 3000) # so long nobody stands still but who was stopped
small=(--trainers 2 --digits 640 --held-out 200 "${steady[@]}")

start() { # start OPTIONS... - a job in the background, until its first update was shown; sets job and trainers
  "$program" --digits 640 --iterations 100000 "$@" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 300 says 'update [1-9]' || fail "expected training to begin"
  trainers=($(children "$job"))
  pids+=("${trainers[@]}")
}
has_children() { [ "$(children "$1" | wc -w)" = 2 ]; }
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
  for option in trainers rank world-size master-addr master-port fabric model batch-update-size batch-size image-size \
    classes epochs iterations lr momentum data seed save on-death deterministic report quiet; do
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
  refuses "not both" --epochs 1 --iterations 1
  refuses "go together" --rank 0
  refuses "less than the world size" --rank 3 --world-size 3
  refuses "a world of 3 has 2" --rank 0 --world-size 3 --trainers 5
  refuses "the convnet takes 28" --image-size 64
  refuses "random images" --model resnet50 --data "$dir"
  refuses "have no more gradients" --trainers 2 --batch-update-size 3
  refuses "\-\-deterministic needs" --trainers 2 --batch-update-size 1 --deterministic
  refuses "\-\-report is '$dir': that is a folder" --report "$dir"
  refuses "\-\-save is '$dir': that is a folder" --save "$dir"
  RANK=zero refuses "RANK is 'zero'" --trainers 2
  RANK=1 refuses "WORLD_SIZE is not set"
  WORLD_SIZE=3 refuses "WORLD_SIZE is '3', and RANK is not set"
  refuses "\-\-threads is '257': expected a whole number from 1 to 256" --threads 257
  local few=(--trainers 1 --digits 64 --held-out 10 --batch-size 2 --iterations 2)
  refuses_fabric 'this build has no "nosuch"' "${few[@]}" --fabric tcp,nosuch
  refuses_fabric 'it names tcp twice' "${few[@]}" --fabric tcp,tcp
  WEFT_FABRIC=sim refuses_fabric 'a simulated world' "${few[@]}"
  "$program" "${few[@]}" --death-timeout 20000 --fabric verbs,tcp >"$log" 2>&1 || fail "expected a list of fabrics to be taken"
}
case_closed() {
  local quick=(--digits 64 --held-out 10 --batch-size 2 --iterations 2 --death-timeout 20000)
  closed "$program" "${quick[@]}"
  full "$program" "${quick[@]}"
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
case_data() {
  local d=$dir/data part
  mkdir "$d"
  rejects "train-images-idx3-ubyte there, or the same with .gz" --data "$d"
  for part in train t10k; do
    idx 3 64 28 $((64 * 784)) "$d/$part-images-idx3-ubyte"
    idx 1 64 0 64 "$d/$part-labels-idx1-ubyte"
  done
  "$program" --trainers 2 --data "$d" --batch-size 8 --iterations 2 --quiet >"$log" 2>&1 || fail "expected good data to do"
  rejects "64 images do not make a batch of 33 for each of 2 trainers: a smaller" --data "$d" --batch-size 33
  idx 1 63 0 63 "$d/train-labels-idx1-ubyte"
  rejects "train-labels-idx1-ubyte: expected as many labels as images, 64, found 63" --data "$d"
  { head -c 71 "$d/t10k-labels-idx1-ubyte"; printf '\12'; } >"$d/train-labels-idx1-ubyte"
  rejects "expected labels from 0 to 9, found 10 at 63" --data "$d"
  cp "$d/t10k-labels-idx1-ubyte" "$d/train-labels-idx1-ubyte"
  idx 3 64 27 $((64 * 729)) "$d/t10k-images-idx3-ubyte"
  rejects "t10k-images-idx3-ubyte: expected dimension 1 to be 28, found 27" --data "$d"
  idx 3 64 28 $((64 * 784 - 5)) "$d/t10k-images-idx3-ubyte"
  rejects "expected 50176 bytes after the header, found 50171" --data "$d"
}

case_trains() {
  local r=$dir/report.json key
  "$program" "${small[@]}" --epochs 6 --report "$r" >"$log" 2>&1 || fail "expected it to train"
  for key in trainers iterations seconds images_per_s loss held_out_accuracy communication_share bytes_sent \
    bytes_copied_by_weft server_peak_rss_bytes; do
    [ -n "$(value $key "$r")" ] || fail "expected $key in the report"
  done
  holds "$(value trainers "$r") == 2"
  holds "$(value iterations "$r") == 60"
  holds "$(value loss "$r") < 0.6 * $(value first_loss "$r")"
  holds "$(value held_out_accuracy "$r") > 0.6"
  holds "$(value communication_share "$r") > 0 && $(value communication_share "$r") < 1"
  holds "$(value bytes_copied_by_weft "$r") == 0"
  # The model to each trainer at first; then gradients up and the model down, 1,199,882 float32 each way.
  holds "$(value bytes_sent "$r") >= 4799528 * 2 * (2 * 60 + 1) && $(value bytes_sent "$r") < 1.01 * 4799528 * 2 * 121"
  says 'held-out accuracy' || fail "expected a table"
}
case_resnet() {
  local r=$dir/report.json
  "$program" --trainers 2 --model resnet50 --iterations 2 --batch-size 2 --image-size 32 --report "$r" --quiet \
    --death-timeout 20000 >"$log" 2>&1 || fail "expected it to train"
  holds "$(value iterations "$r") == 2"
  [ "$(value held_out_accuracy "$r")" = null ] || fail "expected no accuracy"
  holds "$(value bytes_copied_by_weft "$r") == 0"
  # Model, momentum, accumulator and one landing set per trainer, 94.28 MB each, and 100 MB; sanitizers need more.
  grep -qE '__(asan|tsan)_init' "$program" || holds "$(value server_peak_rss_bytes "$r") < 5 * 94278008 + 100e6"
}
case_deterministic() {
  local n
  for n in 1 2; do
    "$program" "${small[@]}" --iterations 12 --seed 5 --deterministic --quiet --save "$dir/model$n" >"$log" 2>&1 ||
      fail "expected it to train"
  done
  cmp "$dir/model1" "$dir/model2" || fail "expected the same bits"
}

join() { # join RANK LOG OPTIONS... - one worker of a world of 3
  local rank=$1 to=$2
  shift 2
  "$program" --rank "$rank" --world-size 3 --master-addr 127.0.0.1 --master-port "$port" --digits 640 "$@" >"$to" 2>&1 &
  pids+=($!)
}
by_hand() { # three workers on a free port
  port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
  join 0 "$log" "$@"
  join 1 "$dir/log1" "$@"
  join 2 "$dir/log2" "$@"
}
case_by_hand() {
  by_hand --iterations 10 --report "$dir/report.json" --death-timeout 20000
  local p
  for p in "${pids[@]}"; do
    code_of "$p"
    [ "$code" = 0 ] || fail "expected each worker to exit with 0: $(cat "$dir/log1" "$dir/log2")"
  done
  holds "$(value trainers "$dir/report.json") == 2"
}
case_bad_gradients() { # rank 2 sends what does not fit; the server and rank 1 go on
  port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
  join 0 "$log" --iterations 10 --report "$dir/report.json" --death-timeout 20000
  join 1 "$dir/log1" --iterations 10 --death-timeout 20000
  RANK=2 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$stray" >"$dir/log2" 2>&1 &
  pids+=($!)
  local p
  for p in "${pids[@]}"; do
    code_of "$p"
    [ "$code" = 0 ] || fail "expected each worker to exit with 0: $(cat "$dir/log1" "$dir/log2")"
  done
  holds "$(value iterations "$dir/report.json") == 10"
  holds "$(value loss "$dir/report.json") < $(value first_loss "$dir/report.json")"
}
case_smaller_batches() {
  "$program" "${small[@]}" --iterations 10 --batch-update-size 1 --report "$dir/report.json" --quiet >"$log" 2>&1 ||
    fail "expected it to train"
  holds "$(value iterations "$dir/report.json") == 20"
}

case_trainer_killed_stop() {
  start "${steady[@]}" --trainers 3
  kill -KILL "${trainers[1]}"
  ends_within 20000 1 "$job" "${trainers[@]}"
  says 'server: trainer 2 is dead' || fail "expected the server to name it"
  says 'trainer [13]: .*trainer 2 is dead' || fail "expected the trainers to name it"
}
case_trainer_killed_continue() {
  start "${steady[@]}" --trainers 3 --on-death continue
  kill -KILL "${trainers[1]}"
  within 20 says 'trainer 2 is dead.*going on with 2' || fail "expected news of the death"
  trains_on
  kill -KILL "${trainers[0]}"
  within 20 says 'trainer 1 is dead.*going on with 1' || fail "expected news of the death"
  trains_on
  kill -KILL "${trainers[2]}"
  ends_within 20000 1 "$job"
  says 'no trainer is left' || fail "expected an end"
}
case_trainer_stopped_stop() {
  start "${noticed[@]}" --trainers 3
  kill -STOP "${trainers[1]}"
  ends_within 20000 1 "$job" "${trainers[@]}"
  says 'server: trainer 2 is dead: \(silent\|did not answer\)' || fail "expected the server to name it"
}
case_trainer_stopped_continue() {
  start "${noticed[@]}" --trainers 3 --on-death continue
  kill -STOP "${trainers[1]}"
  within 20 says 'trainer 2 is dead: .*going on with 2' || fail "expected news of the death"
  trains_on
  kill -CONT "${trainers[1]}"
  within 20 says 'trainer 2: this trainer was declared dead, and is out of the job' || fail "expected it to be told"
  within 20 ended "${trainers[1]}" || fail "expected it to end"
  trains_on
}
case_server_killed() {
  start --trainers 2 # spawned
  kill -KILL "$job"
  ends_within 20000 137 "$job" "${trainers[@]}"
  says 'trainer 1: the server is gone' && says 'trainer 2: the server is gone' || fail "expected both trainers to say so"
  pids=()
  by_hand --iterations 100000
  within 300 says 'update [1-9]' || fail "expected training to begin"
  kill -KILL "${pids[0]}"
  ends_within 20000 1 "${pids[1]}" "${pids[2]}"
  grep -q 'the server is gone' "$dir/log1" || fail "expected trainer 1 to say so: $(cat "$dir/log1")"
  grep -q 'the server is gone' "$dir/log2" || fail "expected trainer 2 to say so: $(cat "$dir/log2")"
}
case_rpc_usage() {
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  local option
  for option in trainers rank world-size master-addr master-port fabric batch-size epochs iterations lr momentum data seed \
    save on-death report quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: rpc_parameter_server' || fail "--help: expected an example"
  refuses "unknown option '--model'" --model convnet
  refuses "\-\-lr is 'fast'" --lr fast
  refuses "not both" --epochs 1 --iterations 1
  refuses "go together" --rank 0
  rejects "640 images do not make a batch of 641: a smaller" --digits 640 --batch-size 641
  rejects "train-images-idx3-ubyte there, or the same with .gz" --data "$dir"
}
diverges() { # diverges WORDS OPTIONS... - the job ends with 1, and each worker says why
  local words=$1 code=0
  shift
  "$program" "${small[@]}" --lr 1000 --quiet --report "$dir/report.json" "$@" >"$log" 2>&1 || code=$?
  [ $code = 1 ] || fail "$*: expected exit code 1, found $code"
  says "server: $words" || fail "$*: expected the server to say '$words'"
  [ ! -e "$dir/report.json" ] || fail "$*: expected no report"
}
case_diverges() {
  local epoch iteration each=1 # iterations of an epoch: trainers share the images, or go through all of them
  [[ $program != *rpc_* ]] || each=2
  diverges 'the loss of trainer [12] is \(nan\|infinite\) in epoch 1, iteration [0-9]* of 10, with --lr 1000' --iterations 10
  diverges 'the loss of trainer [12] is \(nan\|infinite\) in epoch [0-9]*, iteration' --epochs 6 --batch-size 320 --on-death continue
  read -r epoch iteration < <(sed -n 's/.*server: .* in epoch \([0-9]*\), iteration \([0-9]*\) .*/\1 \2/p' "$log")
  [ "$epoch" = $((1 + (iteration - 1) / each)) ] || fail "expected epoch $epoch to have iteration $iteration"
  # No loss tells of the model after the last step; a trainer of its own pace may have met it before.
  diverges "the \(trained model's scores of held-out images are not finite\|loss of trainer\)" --iterations 2 --on-death continue
}
case_rpc_accuracy_missing() { # rank 1 has left, and rank 2 is killed while it measures
  local r=$dir/report.json
  port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
  join 0 "$log" "${steady[@]}" --on-death continue --report "$r"
  join 1 "$dir/log1" "${steady[@]}" --iterations 2 --held-out 10
  join 2 "$dir/log2" "${steady[@]}" --iterations 60 --held-out 30000
  within 300 says 'update 62' || fail "expected both to have trained"
  kill -KILL "${pids[2]}"
  ends_within 20000 0 "${pids[0]}" "${pids[1]}"
  says 'trainer 2 is dead: .*going on with 0' || fail "expected news of the death"
  says 'held-out accuracy    not measured: trainer 2 died before it had' || fail "expected the table to say what is missing"
  [ "$(value held_out_accuracy "$r")" = null ] || fail "expected no other trainer's accuracy in the report"
  [ "$(value held_out_accuracy_missing "$r")" = '"not measured: trainer 2 died before it had"' ] || fail "expected the report to say why"
}
case_rpc_killed_others_finish() {
  local r=$dir/report.json each=300 # long after the first line, which comes after 2 s
  ! grep -q '__tsan_init' "$program" || each=70
  start "${steady[@]}" --trainers 3 --on-death continue --threads 1 --iterations $each --held-out 200 --report "$r"
  kill -KILL "${trainers[1]}"
  ends_within 300000 0 "$job" "${trainers[@]}"
  says 'server: trainer 2 is dead: .*going on with 2' || fail "expected news of the death"
  holds "$(value iterations "$r") >= 2 * $each && $(value iterations "$r") < 3 * $each" # those of two, and some of the third's
  holds "$(value loss "$r") < 0.6 * $(value first_loss "$r")"
  holds "$(value held_out_accuracy "$r") > 0.6"
}
case_killed_at_start() { # before the workers have met (perhaps before ranks have processes): nobody waits for one that will not come
  "$program" "${steady[@]}" --trainers 2 --digits 640 --on-death continue >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 20 has_children "$job" || fail "expected trainers"
  trainers=($(children "$job"))
  pids+=("${trainers[@]}")
  kill -KILL "${trainers[0]}"
  ends_within 20000 1 "$job" "${trainers[@]}"
  says 'server: trainer \([12] \)\?ended before the job began$' || fail "expected the server to name it"
}
case_rpc_closed() {
  local quick=(--trainers 1 --digits 64 --held-out 10 --batch-size 2 --iterations 2 --death-timeout 20000)
  closed "$program" "${quick[@]}"
  full "$program" "${quick[@]}"
}
case_rpc_trains() {
  local r=$dir/report.json key
  "$program" "${small[@]}" --epochs 4 --report "$r" --save "$dir/model" >"$log" 2>&1 || fail "expected it to train"
  for key in trainers iterations iterations_per_s seconds images_per_s loss held_out_accuracy communication_share bytes_sent \
    bytes_copied_by_weft server_peak_rss_bytes; do
    [ -n "$(value $key "$r")" ] || fail "expected $key in the report"
  done
  holds "$(value trainers "$r") == 2"
  holds "$(value iterations "$r") == 160" # each trainer goes through all 640 images
  holds "$(value loss "$r") < 0.6 * $(value first_loss "$r")"
  holds "$(value held_out_accuracy "$r") > 0.6"
  # Images there, scores back, their gradient there: (32 * 784 + 2 * 32 * 10) float32 an iteration, and the test; no parameter.
  holds "$(value bytes_sent "$r") >= 160 * 102912 && $(value bytes_sent "$r") < 1.3 * 160 * 102912"
  [ "$(stat -c %s "$dir/model")" -gt 4799528 ] || fail "expected the server's model to be saved"
  says 'held-out accuracy' || fail "expected a table"
}
case_interrupted() {
  start --trainers 2
  kill -TERM "$job"
  ends_within 20000 130 "$job" "${trainers[@]}"
  says 'server: interrupted' || fail "expected it to say so"
}

"case_$case" || fail "it fails"
