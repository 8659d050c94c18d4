#!/usr/bin/env bash
# split_model.sh PROGRAM CASE - examples/split_model.c and .cpp: two workers train, and docs/distributed-autograd.md
# shows the program and what it prints.
set -uo pipefail
program=$1 case=$2
source "$(dirname "$0")/common.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
page=$root/docs/distributed-autograd.md
losses() { sed -n 's/^\(step [0-9]*\): loss \([0-9.]*\)$/\2/p' "$1"; }

case "$case" in
trains)
  by_hand 2 timeout 300 "$program"
  all_end_well
  [ "$(wc -l <"$log")" = 5 ] && [ "$(losses "$log" | wc -l)" = 5 ] || fail "expected five losses"
  [ ! -s "${log}1" ] || fail "rank 1 prints something"
  holds "$(losses "$log" | head -n 1) < 1.386 && $(losses "$log" | tail -n 1) < 0.35" # ln 4: without learning
  ;;
page)
  sed -n '/^#include <weft/,$p' "$root/examples/split_model.c" >"$dir/program"
  awk '/^```c$/ && !done { code = 1; next } /^```$/ { done = done || code; code = 0 } code' "$page" >"$dir/shown"
  diff "$dir/program" "$dir/shown" >"$log" || fail "the page shows another program"
  lines() { grep -vcE '^ *(//.*|/\*.*|\*.*)?$' "$root/examples/$1"; }
  [ "$(lines split_model.c)" -le 47 ] || fail "split_model.c has $(lines split_model.c) lines"
  [ "$(lines split_model.cpp)" -le 29 ] || fail "split_model.cpp has $(lines split_model.cpp) lines"
  ;;
*) fail "no such case" ;;
esac
