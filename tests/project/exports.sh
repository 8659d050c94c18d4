#!/usr/bin/env bash
# exports.sh NM LIBRARY... - a shared library exports weft_* and nothing else, and does export something.
set -euo pipefail
nm=$1
shift
for library; do
  names=$("$nm" -D --defined-only "$library" | awk '$2 != "A" { print $3 }') # "A" is a version node itself
  [ -n "$names" ] || { echo "$library exports nothing"; exit 1; }
  if bad=$(grep -vE '^weft_[a-z0-9_]+@@WEFT_0$' <<<"$names"); then
    printf '%s exports, though not weft_*:\n%s\n' "$library" "$bad"
    exit 1
  fi
  echo "$library: $(wc -l <<<"$names") functions and constants"
done
