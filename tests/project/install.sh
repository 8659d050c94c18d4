#!/usr/bin/env bash
# install.sh CMAKE BUILD PREFIX [COMPONENT] - installs the build, or one component of it, into a fresh prefix and looks whether the pieces
# are there; of the component rpc also, that nothing else is.
set -euo pipefail
cmake=$1 build=$2 prefix=$3 component=${4:-}
rm -rf "$prefix"
"$cmake" --install "$build" --prefix "$prefix" ${component:+--component "$component"} >/dev/null

fail=0
patterns=('include/weft/base.h' 'lib*/libweft_rpc.so' 'lib*/libweft_rpc.a' 'lib*/pkgconfig/weft_rpc.pc'
  'lib*/cmake/weft/weftConfig.cmake' 'lib*/cmake/weft/weftConfigVersion.cmake')
[ -n "$component" ] || patterns+=('lib*/libweft.so' 'lib*/libweft.a' 'lib*/pkgconfig/weft.pc')
for pattern in "${patterns[@]}"; do
  if [ -z "$(find "$prefix" -path "$prefix/$pattern")" ]; then
    echo "not installed: $pattern"
    fail=1
  fi
done
if grep -rlF "$build" "$prefix" --include='*.cmake' --include='*.pc'; then
  echo "the files above name the build tree: the installed tree would depend on it"
  fail=1
fi
if [ -n "$component" ] && find "$prefix" -name 'libweft.*' -o -name weft.pc -o -name 'weft-*.cmake' | grep .; then
  echo "the above is no part of the component $component"
  fail=1
fi
exit $fail
