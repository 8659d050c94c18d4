#!/usr/bin/env bash
# consume_pkgconfig.sh weft|weft_rpc shared|static PREFIX PKG_CONFIG CC - one compiler line with what the .pc file says, built and run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/consume.sh"
part=$1 form=$2 prefix=$3 pkg_config=$4 cc=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name "$part.pc")")
export PKG_CONFIG_PATH

"$pkg_config" --exists --print-errors "$part >= 0.1"
read -ra cflags <<<"$("$pkg_config" --cflags "$part")"
if [ "$form" = static ]; then
  read -ra libs <<<"$("$pkg_config" --static --libs "$part")"
  libs=("${libs[@]/%-lweft/-l:libweft.a}") # both forms are installed, and a linker prefers the shared one
  libs=("${libs[@]/%-lweft_rpc/-l:libweft_rpc.a}")
else
  read -ra libs <<<"$("$pkg_config" --libs "$part")"
fi
"$cc" "${cflags[@]}" "$here/consumer/$part.c" -o "$work/consumer" "${libs[@]}"
run_consumer "$work/consumer" "$part" "$form" "$prefix"
