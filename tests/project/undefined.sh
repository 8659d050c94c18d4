#!/usr/bin/env bash
# undefined.sh NM LIBRARY - no symbol of weft's own is left undefined in the shared library.
set -euo pipefail
if bad=$("$1" -D --undefined-only "$2" | awk '{ print $NF }' | grep -E '^(weft|wfi|wfofi)_'); then
  printf 'used, but defined nowhere:\n%s\n' "$bad"
  exit 1
fi
