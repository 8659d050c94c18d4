#!/usr/bin/env bash
# consume_cmake.sh shared|static PREFIX CMAKE CC - find_package(weft) in a project of its own, built and run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/consume.sh"
form=$1 prefix=$2 cmake=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" -S "$here/consumer" -B "$work" -G Ninja -DFORM="$form" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >/dev/null
"$cmake" --build "$work"
run_consumer "$work/consumer" "$form" "$prefix"
