#!/usr/bin/env bash
# exports.sh NM LIBRARY - the shared library exports weft_* and nothing else, and does export something.
set -euo pipefail
names=$("$1" -D --defined-only "$2" | awk '$2 != "A" { print $3 }') # "A" is a version node itself
[ -n "$names" ] || { echo "$2 exports nothing"; exit 1; }
if bad=$(grep -vE '^weft_[a-z0-9_]+@@WEFT_0$' <<<"$names"); then
  printf '%s exports, though not weft_*:\n%s\n' "$2" "$bad"
  exit 1
fi
echo "$(wc -l <<<"$names") functions and constants"
