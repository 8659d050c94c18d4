#!/bin/sh
# run.sh WEFT_RUN FOLDER PYTHON [VALGRIND] - a job of workers in C, C++, Fortran and Python (worker.c). FOLDER has the
# programs. CALLS=N: each calls nothing() of each other N times (100). With `valgrind` the workers in C and Fortran run
# under it, and must not leak. Exits 77 without NumPy.
set -eu
run=$1 folder=$2 python=$3 check=
here=$(cd "$(dirname "$0")" && pwd)
"$python" -c "import numpy" 2>/dev/null || { echo "NumPy is not installed"; exit 77; }
if [ "${4:-}" = valgrind ]; then
  check="valgrind -q --leak-check=full --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect --error-exitcode=9"
fi
export WEFT_FABRIC=host,tcp WEFT_DEATH_MS=60000
out=$("$run" -n 4 --no-prefix sh -c "case \$RANK in
0) exec $check $folder/language_c ;; 1) exec $folder/language_cpp ;; 2) exec $check $folder/language_f ;;
3) exec $python $here/worker.py ;; esac") || { echo "$out"; exit 1; }
echo "$out"
for language in C C++ Fortran Python; do
  echo "$out" | grep -qF "$language: all is well" || { echo "$language has not ended well"; exit 1; }
done
