#!/usr/bin/env bash
# install.sh CMAKE BUILD PREFIX [COMPONENT] - installs the build, or one component of it, into a fresh prefix and looks
# whether the pieces are there, all headers that installed ones include, and all files that pages link to; of the
# component rpc also, that nothing else is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cmake=$1 build=$2 prefix=$3 component=${4:-}
rm -rf "$prefix"
. "$here/manifest.sh"
"$cmake" --install "$build" --prefix "$prefix" ${component:+--component "$component"} >/dev/null

fail=0
patterns=('include/weft/base.h' 'lib*/libweft_rpc.so' 'lib*/libweft_rpc.a' 'lib*/pkgconfig/weft_rpc.pc'
  'bin/weft-info' 'bin/weft-perf' 'bin/weft-run' 'bin/weft-trace' 'lib*/cmake/weft/weftConfig.cmake' 'lib*/cmake/weft/weftConfigVersion.cmake'
  share/doc/weft/{README.md,LICENSE,CHANGELOG.md,docs/README.md,docs/troubleshooting.md}
  share/doc/weft/examples/{Makefile,hello.c,common/digits.c} 'share/weft/modulefiles/weft/[0-9]*')
[ -n "$component" ] || patterns+=('lib*/libweft.so' 'lib*/libweft.a' 'lib*/pkgconfig/weft.pc')
for pattern in "${patterns[@]}"; do
  if [ -z "$(find "$prefix" -path "$prefix/$pattern")" ]; then
    echo "not installed: $pattern"
    fail=1
  fi
done
# Manual pages: those of the library, and one for each program. The component rpc has none.
man=$(find "$prefix" -path '*/share/man' -o -path "$prefix/man" | head -n 1)
if [ -n "$component" ]; then
  [ -z "$man" ] || { echo "$man is no part of the component $component"; fail=1; }
else
  for page in man3/weft_rpc_async.3 man3/weft_agent_options.3 man7/weft.7 man7/weft_rpc.h.7; do
    [ -s "$man/$page" ] || { echo "not installed: the manual page $page"; fail=1; }
  done
  for program in "$prefix"/bin/weft-*; do
    page=man1/$(basename "$program" .py).1
    [ -s "$man/$page" ] || { echo "the program $program has no manual page: $page (cmake/WeftMan.cmake)"; fail=1; }
  done
fi
if grep -rlF "$build" "$prefix" --include='*.cmake' --include='*.pc'; then
  echo "the files above name the build tree: the installed tree would depend on it"
  fail=1
fi
if [ -n "$component" ] && find "$prefix" -name 'libweft.*' -o -name weft.pc -o -name 'weft-*.cmake' | grep .; then
  echo "the above is no part of the component $component"
  fail=1
fi
"$here/links.py" "$prefix/share/doc/weft" || fail=1
"$here/module.sh" "$prefix" || fail=1
headers=$(find "$prefix" -path '*/include/weft' -type d)
if [ -n "$component" ] && find "$headers" -name tape.h -o -name weft.h | grep .; then
  echo "the above is no header of the component $component"
  fail=1
fi
[ -n "$component" ] || [ -f "$headers/weft.h" ] || { echo "not installed: include/weft/weft.h"; fail=1; }
for header in $(grep -hoE '^#include <weft/[a-z_]+\.h>' "$headers"/*.h | grep -oE '[a-z_]+\.h' | sort -u); do
  if [ ! -f "$headers/$header" ]; then
    echo "an installed header includes <weft/$header>, which is not installed"
    fail=1
  fi
done
exit $fail
