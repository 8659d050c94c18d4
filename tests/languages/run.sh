#!/bin/bash
# run.sh FOLDER PYTHON [VALGRIND] - a job of workers in C, C++, Fortran and Python (worker.c). FOLDER has the programs.
# CALLS=N: each calls nothing() of each other N times (100). With `valgrind` the workers in C and Fortran run under it, and
# must not leak. The one in C++ is killed at the end. Exits 77 without NumPy.
set -eu
folder=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
"$python" -c "import numpy" 2>/dev/null || { echo "NumPy is not installed"; exit 77; }
check=()
[ "${3:-}" != valgrind ] || check=(valgrind -q --leak-check=full --show-leak-kinds=definite,indirect
  --errors-for-leak-kinds=definite,indirect --error-exitcode=9)
MASTER_PORT=$("$python" -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
export MASTER_PORT WORLD_SIZE=4 WEFT_FABRIC=host,tcp WEFT_DEATH_MS=60000
out=$(mktemp)
workers=()
trap 'kill -9 "${workers[@]}" 2>/dev/null || true; rm -f "$out"' EXIT
start() { # start RANK COMMAND... - not by weft-run, which would end the job with the worker that is killed
  RANK=$1 "${@:2}" >>"$out" 2>&1 &
  workers+=($!)
}
start 0 "${check[@]}" "$folder/language_c"
start 1 "$folder/language_cpp"
start 2 "${check[@]}" "$folder/language_f"
start 3 "$python" "$here/worker.py"
for rank in 0 1 2 3; do
  code=0
  wait "${workers[$rank]}" || code=$?
  [ "$code" -eq "$([ $rank = 1 ] && echo 137 || echo 0)" ] || { cat "$out"; echo "rank $rank ended with $code"; exit 1; }
done
for language in C C++ Fortran Python; do
  grep -qF "$language: all is well" "$out" || { cat "$out"; echo "$language has not ended well"; exit 1; }
done
echo "all is well in C, C++, Fortran and Python"
