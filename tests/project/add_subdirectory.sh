#!/usr/bin/env bash
# add_subdirectory.sh ROOT CMAKE CTEST CC - a project with add_subdirectory(weft) has weft::weft and weft::weft_static to link, and none
# of weft's tests, examples, benchmarks and rules of installation. It compiles its own file; the library itself would take a minute.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$1 cmake=$2 ctest=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" -S "$here/parent" -B "$work" -G Ninja -DWEFT="$root" -DWEFT_CUDA=OFF -DCMAKE_C_COMPILER="$cc" >/dev/null
linked=$("$cmake" --build "$work" --target with_shared with_static -- -n -v)
mapfile -t objects < <(grep -o -- '-o [^ ]*weft\.c\.o' <<<"$linked" | cut -c4-)
"$cmake" --build "$work" --target "${objects[@]}" >/dev/null

fail=0
complain() {
  echo "$1"
  fail=1
}
[ ${#objects[@]} = 2 ] || complain "not two objects: ${objects[*]}"
grep -q -- '-o with_shared .*libweft\.so' <<<"$linked" || complain "with_shared is not linked with libweft.so"
grep -q -- '-o with_static .*libweft\.a' <<<"$linked" || complain "with_static is not linked with libweft.a"
[ "$("$ctest" --test-dir "$work" -N | sed -n 's/^Total Tests: //p')" = 1 ] || complain "weft's tests are among the project's"
if "$cmake" --build "$work" --target all -- -n | grep -E 'tests/|examples/|perf/'; then
  complain "the above is built with the project"
fi
if "$cmake" --install "$work" --prefix "$work/installed" 2>&1 | grep -q weft; then
  complain "weft is installed with the project"
fi
exit $fail
