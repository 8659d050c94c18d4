#!/bin/sh
# run.sh WEFT_RUN INCLUDE LIBRARY_FOLDER MODULE_SOURCES COMPILER [FLAGS...] - compiles the module and all.f90, as an
# installed tree allows, and runs the job. Exits 77 if there is no such compiler.
set -eu
run=$1 include=$2 libraries=$3 sources=$4 compiler=$5
shift 5
command -v "$compiler" >/dev/null || { echo "there is no $compiler"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cc -O2 -I"$include" -c "$sources/weft_fortran.c"
"$compiler" "$@" -c "$sources/weft.f90"
"$compiler" "$@" "$here/all.f90" weft.o weft_fortran.o -o all -L"$libraries" -lweft -Wl,-rpath,"$libraries"
export WEFT_FABRIC=host,tcp
timeout 120 "$run" -n 3 ./all
HOW=death timeout 120 "$run" -n 3 ./all >out 2>&1 || true
grep -q "the call of the dead worker failed" out || { cat out; exit 1; }
