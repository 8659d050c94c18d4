#!/usr/bin/env bash
# install.sh CMAKE BUILD PREFIX - installs the build into a fresh prefix and looks whether the pieces are there.
set -euo pipefail
cmake=$1 build=$2 prefix=$3
rm -rf "$prefix"
"$cmake" --install "$build" --prefix "$prefix" >/dev/null

fail=0
for pattern in 'include/weft/base.h' 'lib*/libweft.so' 'lib*/libweft.a' 'lib*/pkgconfig/weft.pc' \
  'lib*/cmake/weft/weftConfig.cmake' 'lib*/cmake/weft/weftConfigVersion.cmake'; do
  if [ -z "$(find "$prefix" -path "$prefix/$pattern")" ]; then
    echo "not installed: $pattern"
    fail=1
  fi
done
if grep -rlF "$build" "$prefix" --include='*.cmake' --include='*.pc'; then
  echo "the files above name the build tree: the installed tree would depend on it"
  fail=1
fi
exit $fail
