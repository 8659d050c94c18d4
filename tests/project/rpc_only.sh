#!/usr/bin/env bash
# rpc_only.sh ROOT CMAKE CC - WEFT_RPC_ONLY: a tree that looks for neither oneDNN nor OpenBLAS, has the component rpc
# and nothing else, and in which no file of it needs a header of them. Its Debian packages are those of the component.
# It compiles none, because that would take a minute.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" -S "$1" -B "$work" -G Ninja -DWEFT_RPC_ONLY=ON -DWEFT_CUDA=OFF -DCMAKE_C_COMPILER="$3" >"$work/log" 2>&1 ||
  { tail -n 30 "$work/log"; exit 1; }
fail=0
if grep -iE 'dnnl|openblas' "$work/CMakeCache.txt" "$work/build.ninja" | cut -c1-200; then
  echo "the above is of libraries that the component rpc does without"
  fail=1
fi
built=$("$2" --build "$work" -- -n)
grep -q 'libweft_rpc\.so' <<<"$built" || { echo "libweft_rpc.so is not built"; fail=1; }
if grep -E 'libweft\.(so|a)|tests/|examples/|perf/' <<<"$built" | grep -v 'hello\|weft_perf\|weft_info\|weft_run'; then
  echo "the above is built with the component rpc alone"
  fail=1
fi
if [ -e "$work/CPackConfig.cmake" ]; then # there is dpkg-shlibdeps
  packages=$(sed -n 's/^set(CPACK_COMPONENTS_ALL "\(.*\)")$/\1/p' "$work/CPackConfig.cmake")
  [ "$packages" = "libweft-rpc0;libweft-dev;weft-tools;weft-doc" ] || { echo "cpack makes other packages: $packages"; fail=1; }
  if grep -E '(DEPENDS|SUGGESTS) ".*(libweft0|dnnl|openblas)' "$work/CPackConfig.cmake"; then
    echo "the above depends on what the component rpc does without"
    fail=1
  fi
fi
exit $fail
