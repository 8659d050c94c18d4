#!/usr/bin/env bash
# exports.sh NM LIBRARY... - a shared library exports weft_* and nothing else, and does export something. libweft_rpc exports some
# wfi_* as well, of a version that only the libweft of the same build asks for.
set -euo pipefail
nm=$1
shift
for library; do
  names=$("$nm" -D --defined-only "$library" | awk '$2 != "A" { print $3 }') # "A" is a version node itself
  [ -n "$names" ] || { echo "$library exports nothing"; exit 1; }
  if bad=$(grep -vE '^weft_[a-z0-9_]+@@WEFT_0$|^wfi_[a-z0-9_]+@@WEFT_PRIVATE_' <<<"$names"); then
    printf '%s exports, though neither weft_* nor private:\n%s\n' "$library" "$bad"
    exit 1
  fi
  echo "$(grep -c '^weft_' <<<"$names") functions exported by $(basename "$library")"
done
