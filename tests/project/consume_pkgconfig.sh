#!/usr/bin/env bash
# consume_pkgconfig.sh shared|static PREFIX PKG_CONFIG CC - one compiler line with what weft.pc says, built and run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/consume.sh"
form=$1 prefix=$2 pkg_config=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name weft.pc)")
export PKG_CONFIG_PATH

"$pkg_config" --exists --print-errors "weft >= 0.1"
read -ra cflags <<<"$("$pkg_config" --cflags weft)"
if [ "$form" = static ]; then
  read -ra libs <<<"$("$pkg_config" --static --libs weft)"
  libs=("${libs[@]/%-lweft/-l:libweft.a}") # both forms are installed, and a linker prefers the shared one
else
  read -ra libs <<<"$("$pkg_config" --libs weft)"
fi
"$cc" "${cflags[@]}" "$here/consumer/weft.c" -o "$work/consumer" "${libs[@]}"
run_consumer "$work/consumer" "$form" "$prefix"
if [ "$form" = shared ]; then # the same, in simulated time
  read -ra libs <<<"$("$pkg_config" --libs weft_sim)"
  "$cc" "${cflags[@]}" "$here/consumer/sim.c" -o "$work/sim" "${libs[@]}"
  said=$("$work/sim")
  [ "$said" = 'sum 499500' ] || { echo "in the simulation it said '$said', not sum 499500"; exit 1; }
  read -ra both <<<"$("$pkg_config" --libs weft) -lweft_sim"
  "$cc" "${cflags[@]}" "$here/consumer/sim.c" -o "$work/both" "${both[@]}"
  if "$work/both" >"$work/said" 2>&1 || ! grep -q 'this process uses libweft: link' "$work/said"; then
    echo "with libweft before libweft_sim it said:"
    cat "$work/said"
    exit 1
  fi
fi
