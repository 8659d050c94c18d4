#!/usr/bin/env bash
# consume_cmake.sh shared|static PREFIX CMAKE CC - find_package(weft) in a project of its own, built and run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/consume.sh"
form=$1 prefix=$2 cmake=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
configure() { # configure OPTION...
  "$cmake" -S "$here/consumer" -B "$work" -G Ninja -DFORM="$form" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" "$@"
}
configure -DCOMPONENTS=rpc >/dev/null # all of weft has that part too
configure -DCOMPONENTS= >/dev/null
"$cmake" --build "$work"
run_consumer "$work/consumer" "$form" "$prefix"
if configure -DCOMPONENTS=gpu >"$work/said" 2>&1; then
  echo "find_package found a component that weft does not have"
  exit 1
fi
grep -q 'no component "gpu"' "$work/said" || { cat "$work/said"; exit 1; }
