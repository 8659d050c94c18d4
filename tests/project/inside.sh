#!/usr/bin/env bash
# inside.sh ROOT - of tests/rpc only inside.c includes private headers of rpc and of what it rests on down to the job.
set -euo pipefail
cd "$1"
headers=$(cd src && find rpc net job progress value -name '*.h')
[ -n "$headers" ] || { echo "no headers of rpc"; exit 1; }
bad=$(grep -nF "$(sed 's/.*/#include "&"/' <<<"$headers")" tests/rpc/*.[ch] | grep -v '^tests/rpc/inside\.c:' || true)
[ -z "$bad" ] || { echo "what these need belongs into tests/rpc/inside.h:"; echo "$bad"; exit 1; }
