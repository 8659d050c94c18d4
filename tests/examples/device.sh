#!/usr/bin/env bash
# device.sh - runs a program with --device on GPUs, or on the emulated ones, and compares its numbers with the CPU's:
# device.sh PROGRAM CASE. Exits 77 if there is no second GPU.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"

export WEFT_DEATH_MS=20000

# near KEY FILE FILE TOLERANCE - the numbers differ by at most this, relatively
near() {
  local a b
  a=$(value "$1" "$2") b=$(value "$1" "$3")
  [ -n "$a" ] && [ -n "$b" ] || fail "expected $1 in both tables"
  holds "($a - $b) ^ 2 <= ($4 * $a) ^ 2"
}

# runs DEVICE OPTIONS... - leaves its output at $dir/DEVICE
runs() {
  local device=$1
  shift
  "$program" "$@" --device "$device" >"$dir/$device" 2>"$log" && return
  ! says "the GPUs are cuda:0 to cuda:0" || { echo "one GPU alone"; exit 77; }
  fail "--device $device: expected exit code 0"
}

# no_more_waits FEW MANY - no process waited for a device in the steps by which many are more than few. Only the emulated
# GPU counts; a line of a file is a process.
no_more_waits() {
  [ -e "$dir/waits.$1" ] || return 0
  cmp -s <(sort "$dir/waits.$1") <(sort "$dir/waits.$2") ||
    fail "expected no waits between $1 and $2: $(cat "$dir/waits.$1") and $(cat "$dir/waits.$2")"
}

never_waits() { # never_waits OPTION FEW MANY OPTIONS...
  local option=$1 few=$2 many=$3 count
  shift 3
  for count in "$few" "$many"; do
    EMULATED_GPU_WAITS=$dir/waits.$count runs cuda:1 "$@" "$option" "$count"
  done
  no_more_waits "$few" "$many"
}

# One trainer, because the losses depend on the order in which several are done.
case_batch() {
  local options=(--digits 32 --held-out 20 --batch-size 4 --iterations 2 --lr 0.05) device
  for device in cpu cuda:0 cuda:1; do
    runs "$device" "${options[@]}" --trainers 1 --save "$dir/model"
    near loss "$dir/cpu" "$dir/$device" 1e-3
    near "loss at first" "$dir/cpu" "$dir/$device" 1e-3
    near "held-out accuracy" "$dir/cpu" "$dir/$device" 0
    [ "$(value device "$dir/$device")" = "$device" ] || fail "expected the device in the table"
  done
  never_waits --iterations 3 10 "${options[@]}" --trainers 1
  WEFT_LOG=info runs auto "${options[@]}" --trainers 2
  [ "$(grep -c 'device auto: cuda:' "$log")" -ge 2 ] || fail "expected each trainer to choose a GPU"
  refuses "\-\-device is 'gpu': 'gpu' is no device" --device gpu
  refuses "no cuda:1000 here" --device cuda:1000
}

# One trainer, because several do not wait for each other.
case_rpc() {
  local options=(--trainers 1 --digits 32 --held-out 20 --batch-size 4 --iterations 2) device
  for device in cpu cuda:0 cuda:1; do
    runs "$device" "${options[@]}" --save "$dir/model.$device"
    near loss "$dir/cpu" "$dir/$device" 1e-3
    near "held-out accuracy" "$dir/cpu" "$dir/$device" 0
    [ "$(stat -c %s "$dir/model.cpu")" = "$(stat -c %s "$dir/model.$device")" ] || fail "expected the names of the CPU's model"
  done
  never_waits --iterations 3 10 "${options[@]}"
  refuses "no cuda:1000 here" --device cuda:1000
}

case_rnn() {
  local device
  for device in cpu cuda:0 cuda:1 auto; do # auto: both GPUs
    runs "$device" --epochs 5
    near loss "$dir/cpu" "$dir/$device" 1e-3
    near "loss at first" "$dir/cpu" "$dir/$device" 1e-3
  done
  never_waits --epochs 1 2
  refuses "no cuda:1000 here" --device cuda:1000
}

# By hand: work that nobody waited for runs when a process of the emulated GPU ends, and the master would end it before.
# With one image in a micro-batch batch norm amplifies the rounding too much.
case_pipeline() {
  local options=(--batch-size 2 --micro-batch 2 --image-size 64 --lr 1e-4 --quiet) count
  runs cpu "${options[@]}" --batches 2
  for count in 1 2; do
    pids=()
    EMULATED_GPU_WAITS=$dir/waits.$count by_hand 3 "$program" "${options[@]}" --batches $count --device cuda:1
    all_end_well
  done
  near loss "$dir/cpu" "$log" 1e-3
  near "loss at first" "$dir/cpu" "$log" 1e-3
  no_more_waits 1 2
  refuses "no cuda:1000 here" --device cuda:1000
}

case_cartpole() {
  local options=(--world-size 3 --num-episode 2) device mode
  for mode in --batch --no-batch; do
    for device in cpu cuda:0 cuda:1; do
      runs "$device" "${options[@]}" --steps 20 $mode
      [ "$(grep ^Episode "$dir/$device")" = "$(grep ^Episode "$dir/cpu")" ] || fail "$device: expected the CPU's rewards"
    done
    never_waits --steps 3 10 "${options[@]}" $mode
    rm -f "$dir"/waits.*
  done
  refuses "no cuda:1000 here" --device cuda:1000
}

"case_$case"
