#!/usr/bin/env bash
# aborts.sh LAUNCHED - a worker that aborts ends by the signal, although libinfinipath has a handler of it (docs/libfabric.md).
set -uo pipefail
for fabric in tcp host; do
    code=0
    (ulimit -c 0; env -u IPATH_NO_BACKTRACE -u HFI_NO_BACKTRACE WEFT_FABRIC=$fabric RANK=0 WORLD_SIZE=1 timeout 25 "$1" aborts 0) || code=$?
    [ "$code" = 134 ] || { echo "$fabric: exit code $code, not 134 (SIGABRT)"; exit 1; }
done
