#!/usr/bin/env bash
# command_v.sh ROOT - no script asks for several programs by one `command -v`, which succeeds if one of them exists. `type ip bridge`
# succeeds only if all exist.
set -uo pipefail
several='command +-[vV] +[^ ;|&<>()]+ +[^ ;|&<>()0-9]'
grep -qE "$several" <<<"has() { command -v ip bridge >/dev/null; }" || { echo "the pattern does not find the fault"; exit 1; }
for good in "command -v ip >/dev/null 2>&1" "command -v ip 2>/dev/null" "x=\$(command -v ip || true)" "command -v ip && ip link"; do
  ! grep -qE "$several" <<<"$good" || { echo "the pattern finds what is right: $good"; exit 1; }
done
cd "$1" || exit 1
bad=$(grep -rnE "$several" --exclude="$(basename "$0")" --exclude-dir=build --exclude-dir=.git .)
[ -z "$bad" ] || { echo "these succeed if one of the programs exists; 'type' succeeds only if all exist:"; echo "$bad"; exit 1; }
