#!/usr/bin/env bash
# page.sh CXX ROOT - the programs and snippets of docs/cpp.md compile as C++11; one that uses failure() without exceptions.
set -euo pipefail
cxx=$1 root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v work="$work" '/^```cpp$/ { count++; code = 1; next } /^```$/ { code = 0 } code { print > (work "/" count ".code") }' \
  "$root/docs/cpp.md"
count=0
for snippet in "$work"/*.code; do
  count=$((count + 1))
  options=()
  if grep -q 'int main' "$snippet"; then
    cp "$snippet" "$work/program.cc"
  else
    ! grep -q 'failure()' "$snippet" || options=(-fno-exceptions)
    { echo '#include <weft/weft.hpp>'; echo 'int use(weft::agent &agent) {'; cat "$snippet"; echo 'return 0; }'; } >"$work/program.cc"
  fi
  "$cxx" -std=c++11 -Wall -Wextra -Werror -Wno-unused-variable -Wno-unused-function -fsyntax-only ${options[@]+"${options[@]}"} \
    -I"$root/include" "$work/program.cc" || { cat "$snippet"; exit 1; }
done
[ "$count" -ge 4 ] || { echo "docs/cpp.md has $count snippets"; exit 1; }
