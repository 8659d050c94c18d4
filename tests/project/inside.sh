#!/usr/bin/env bash
# inside.sh ROOT - private headers of net, rpc, progress, job and value come into the tests at few places, so that tests survive a move:
# by tests/FOLDER/inside.[ch], that folder's adapter. A folder without one may include those of src/FOLDER, which it is about.
set -euo pipefail
cd "$1"
headers=$(cd src && find net rpc progress job value -name '*.h')
[ -n "$headers" ] || { echo "no headers of rpc"; exit 1; }
bad=$(cd tests && grep -rnF "$(sed 's/.*/#include "&"/' <<<"$headers")" --include='*.[ch]' . | sed 's#^\./##' |
  while IFS= read -r line; do
    folder=${line%%/*}
    case $line in
    "$folder"/inside.[ch]:*) ;;
    *"#include \"$folder/"*) [ ! -f "$folder/inside.h" ] || echo "tests/$line" ;;
    *) echo "tests/$line" ;;
    esac
  done)
[ -z "$bad" ] || { echo "what these need belongs into the inside.h of their folders:"; echo "$bad"; exit 1; }
