#!/usr/bin/env bash
# own_optimizer.sh PROGRAM CASE - examples/own_optimizer.c: its optimizers learn, and its Adam has the losses of weft's.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"

export OMP_NUM_THREADS=1 # small products: threads would only wait for each other on a busy machine

learns() { # at least 70 % of the drawings that it was not trained on
  awk '/other drawings are classified correctly/ { found = $1 >= 70 } END { exit !found }' "$log" || fail "it has not learnt"
}
case "$case" in
usage)
  "$program" --help >"$log" 2>&1 || fail "exit code $?"
  says '--check' || fail "--help does not list --check"
  "$program" --optimizer sgd >"$log" 2>&1 && fail "an optimizer that there is not is taken"
  says 'sgd' || fail "the error does not name the value"
  ;;
lion | adam)
  "$program" --optimizer "$case" --steps 120 >"$log" 2>&1 || fail "exit code $?"
  learns
  ;;
check)
  "$program" --check --steps 60 >"$log" 2>&1 || fail "exit code $?"
  says "weft's Adam had the same losses, bit for bit, in all 60 steps" || fail "it does not say that the losses are the same"
  ;;
*) fail "no such case" ;;
esac
