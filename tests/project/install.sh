#!/usr/bin/env bash
# install.sh CMAKE BUILD PREFIX - installs the build into a fresh prefix and looks whether the pieces are there, all
# headers that installed ones include, and all files that pages link to.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cmake=$1 build=$2 prefix=$3
rm -rf "$prefix"
. "$here/manifest.sh"
"$cmake" --install "$build" --prefix "$prefix" >/dev/null

fail=0
patterns=(include/weft/{base,weft}.h include/weft/weft.hpp 'lib*/libweft.so' 'lib*/libweft_sim.so' 'lib*/libweft.a'
  'lib*/pkgconfig/weft.pc' 'lib*/pkgconfig/weft_sim.pc'
  'bin/weft-info' 'bin/weft-perf' 'bin/weft-run' 'bin/weft-trace' 'lib*/cmake/weft/weftConfig.cmake' 'lib*/cmake/weft/weftConfigVersion.cmake'
  share/doc/weft/{README.md,LICENSE,CHANGELOG.md,docs/README.md,docs/troubleshooting.md}
  share/doc/weft/examples/{Makefile,hello.c,common/digits.c} 'share/weft/modulefiles/weft/[0-9]*')
for pattern in "${patterns[@]}"; do
  if [ -z "$(find "$prefix" -path "$prefix/$pattern")" ]; then
    echo "not installed: $pattern"
    fail=1
  fi
done
# Manual pages: those of the library, and one for each program.
man=$(find "$prefix" -path '*/share/man' -o -path "$prefix/man" | head -n 1)
for page in man3/weft_rpc_async.3 man3/weft_agent_options.3 man7/weft.7 man7/weft_rpc.h.7; do
  [ -s "$man/$page" ] || { echo "not installed: the manual page $page"; fail=1; }
done
for program in "$prefix"/bin/weft-*; do
  page=man1/$(basename "$program" .py).1
  [ -s "$man/$page" ] || { echo "the program $program has no manual page: $page (cmake/WeftMan.cmake)"; fail=1; }
done
if grep -rlF "$build" "$prefix" --include='*.cmake' --include='*.pc'; then
  echo "the files above name the build tree: the installed tree would depend on it"
  fail=1
fi
"$here/links.py" "$prefix/share/doc/weft" || fail=1
"$here/module.sh" "$prefix" || fail=1
headers=$(find "$prefix" -path '*/include/weft' -type d)
for header in $(grep -hoE '^#include <weft/[a-z_]+\.h>' "$headers"/*.h | grep -oE '[a-z_]+\.h' | sort -u); do
  if [ ! -f "$headers/$header" ]; then
    echo "an installed header includes <weft/$header>, which is not installed"
    fail=1
  fi
done
exit $fail
