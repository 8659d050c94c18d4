#!/usr/bin/env bash
# undefined.sh NM LIBRARY [BELOW [SPARED...]] - no symbol of weft's own is left undefined in the shared library, but for those that the library below
# it exports; and what that exports for it alone, in WEFT_PRIVATE, it does use, but for what is SPARED.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
own() { sed 's/@.*//' | grep -E '^(weft|wfi|wfofi)_' | sort -u || true; }
"$1" -D --undefined-only "$2" | awk '{ print $NF }' | own >"$work/undefined"
: >"$work/below"
: >"$work/private"
if [ -n "${3:-}" ]; then
  "$1" -D --defined-only "$3" | awk '{ print $NF }' | own >"$work/below"
  "$1" -D --defined-only "$3" | awk '{ print $NF }' | grep '@@WEFT_PRIVATE_' | own |
    { grep -vxFf <(printf '%s\n' "${@:4}") || true; } >"$work/private"
  [ -s "$work/private" ] || { echo "$3 exports nothing in WEFT_PRIVATE"; exit 1; }
fi
missing=$(comm -23 "$work/undefined" "$work/below")
unused=$(comm -13 "$work/undefined" "$work/private")
[ -z "$missing" ] || printf 'used, but defined nowhere:\n%s\n' "$missing"
[ -z "$unused" ] || printf 'in cmake/weft_rpc.map.in, but not used by libweft.so:\n%s\n' "$unused"
[ -z "$missing$unused" ]
