#!/usr/bin/env bash
# own_optimizer.sh PROGRAM CASE - examples/own_optimizer.c: its optimizer learns.
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
  says '--steps' || fail "--help does not list --steps"
  "$program" --steps none >"$log" 2>&1 && fail "a number that is none is taken"
  says 'none' || fail "the error does not name the value"
  ;;
lion)
  "$program" --steps 120 >"$log" 2>&1 || fail "exit code $?"
  learns
  ;;
*) fail "no such case" ;;
esac
