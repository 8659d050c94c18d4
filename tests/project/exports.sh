#!/usr/bin/env bash
# exports.sh NM LIBRARY - the shared library exports weft_* and nothing else, and does export something.
set -euo pipefail
# WEFT_0 is the version node itself.
names=$("$1" -D --defined-only "$2" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
[ -n "$names" ] || { echo "$2 exports nothing"; exit 1; }
if bad=$(grep -v '^weft_' <<<"$names"); then
  printf 'exported, but not weft_*:\n%s\n' "$bad"
  exit 1
fi
echo "$(wc -l <<<"$names") functions exported"
