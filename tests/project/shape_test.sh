#!/usr/bin/env bash
# shape_test.sh SHAPE - tools/shape itself: functions and files at each limit pass, and one line more is refused by name.
set -euo pipefail
shape=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail=0

functions() { # functions COUNT LINES - text of that many functions, whose bodies have that many lines
  awk -v count="$1" -v lines="$2" 'BEGIN { for (f = 0; f < count; f++) {
    print "void f(void)\n{"; for (i = 0; i < lines; i++) print "    x();"; print "}" } }'
}
lines() { yes '/* */' | head -n "$1" || true; }
expect() { # expect CODE WHAT [SAID] - of the files in the folder, which are then removed
  local got=0
  "$shape" "$work" >"$work/said" 2>&1 || got=$?
  if [ $got != "$1" ] || { [ -n "${3:-}" ] && ! grep -q "$3" "$work/said"; }; then
    echo "expected exit $1${3:+ and '$3'}: $2; got $got:"
    cat "$work/said"
    fail=1
  fi
  rm -f "$work"/*
}
functions 9 7 >"$work/a.c"
functions 1 120 >>"$work/a.c"
expect 0 "one function of 120 lines among ten" "longest 120"
functions 9 7 >"$work/a.c"
functions 1 121 >>"$work/a.c"
expect 1 "a function of 121 lines" "a.c:91: a function of 121 lines (limit 120)"
functions 8 7 >"$work/a.c"
functions 2 61 >>"$work/a.c"
expect 1 "two functions of 61 lines among ten" "10 % of the functions have more than 60 lines: 61 and more"
functions 8 7 >"$work/a.c"
functions 2 60 >>"$work/a.c"
expect 0 "two functions of 60 lines among ten" "90 % within 60"
lines 1000 >"$work/a.h"
expect 0 "a file of 1,000 lines"
lines 1001 >"$work/a.h"
expect 1 "a file of 1,001 lines" "a.h: 1001 lines (limit 1000)"
expect 2 "a folder without C files" "no C files"
exit $fail
