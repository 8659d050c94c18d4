#!/usr/bin/env bash
# consume_cmake.sh weft|weft_rpc shared|static PREFIX CMAKE CC - find_package(weft) in a project of its own, built and run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/consume.sh"
part=$1 form=$2 prefix=$3 cmake=$4 cc=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" -S "$here/consumer" -B "$work" -G Ninja -DPART="$part" -DFORM="$form" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_COMPILER="$cc" >/dev/null
"$cmake" --build "$work"
run_consumer "$work/consumer" "$part" "$form" "$prefix"
if [ "$part" = weft_rpc ] && grep -iE 'dnnl|openblas' "$work/CMakeCache.txt"; then
  echo "find_package(weft COMPONENTS rpc) looked for the above"
  exit 1
fi
if [ "$part" = weft_rpc ] && "$cmake" -S "$here/consumer" -B "$work/whole" -G Ninja -DPART=weft -DFORM="$form" \
  -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$work/said" 2>&1; then
  echo "all of weft was found where only the component rpc is installed"
  exit 1
fi
[ "$part" = weft ] || grep -q 'only the component rpc' "$work/said" || { cat "$work/said"; exit 1; }
