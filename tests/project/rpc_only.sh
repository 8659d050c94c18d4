#!/usr/bin/env bash
# rpc_only.sh ROOT CMAKE CC BUILD - WEFT_RPC_ONLY: a tree that looks for neither oneDNN nor OpenBLAS, and in which no
# file needs a header of them. Its Debian packages do not ask for them. It is not compiled, because that would take a
# minute. Its libweft is linked of the same object files of BUILD, and needs no others. A program of calls that is
# linked with BUILD's libweft runs with the smaller one; for one that uses more the linker names what is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$1 cmake=$2 cc=$3 build=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail=0
complain() {
  echo "$1"
  fail=1
}
cuda=$(sed -n 's/^WEFT_CUDA:[A-Z]*=//p' "$build/CMakeCache.txt") # the object files differ by it
"$cmake" -S "$root" -B "$work" -G Ninja -DWEFT_RPC_ONLY=ON -DWEFT_LTO=OFF -DWEFT_CUDA="$cuda" \
  -DCMAKE_C_COMPILER="$cc" >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
if grep -iE 'dnnl|openblas' "$work/CMakeCache.txt" "$work/build.ninja" | cut -c1-200 | grep .; then
  complain "the above is of libraries that it does without"
fi
built=$("$cmake" --build "$work" -- -n)
if grep -E 'tests/|examples/|perf/' <<<"$built" | grep -v 'hello\|weft_perf\|weft_info\|weft_run'; then
  complain "the above is built with WEFT_RPC_ONLY"
fi
if [ -e "$work/CPackConfig.cmake" ]; then # there is dpkg-shlibdeps
  if grep -E '(DEPENDS|SUGGESTS) ".*(dnnl|openblas)' "$work/CPackConfig.cmake"; then
    complain "the above is not needed by its packages"
  fi
  grep -q '^set(CPACK_DEBIAN_PACKAGE_VERSION ".*+rpc")$' "$work/CPackConfig.cmake" || complain "its packages have no +rpc"
fi

# The linker's command of the smaller tree, with the objects of BUILD.
command=$("$cmake" --build "$work" --target weft -- -t commands | grep -- ' -o lib/libweft\.so\.[0-9.]* ')
mkdir -p "$work/small/lib"
ln -s "$build/CMakeFiles" "$work/small/CMakeFiles"
(cd "$work/small" && eval "$command") || complain "it needs object files that it leaves out"
ln -s "$(cd "$work/small/lib" && echo libweft.so.*)" "$work/small/lib/libweft.so.0"
if ldd "$work/small/lib/libweft.so.0" | grep -E 'dnnl|openblas|cjson'; then complain "it loads the above"; fi
export LD_LIBRARY_PATH=$work/small/lib
said=$(timeout 60 "$build/bin/hello") || true
[ "$said" = 'rank 1: the sum of 1000000 numbers is 499999500000' ] || complain "hello does not run with it: $said"
# weft.hpp with the headers that such a build installs.
cxx=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
left_out=$(sed -n 's/^ *"\(\/(.*)\)\\\\\.h\$")$/\1/p' "$root/cmake/WeftInstall.cmake")
[ -n "$left_out" ] || complain "cmake/WeftInstall.cmake does not list the headers that it leaves out"
mkdir -p "$work/headers/weft"
find "$root/include/weft" -type f | grep -vE "$left_out\.h\$" | xargs -I{} ln -s {} "$work/headers/weft/"
"$cxx" -std=c++11 -Wall -Wextra -Werror -I"$work/headers" "$root/examples/hello.cpp" -o "$work/hello_cpp" \
  "$work/small/lib/libweft.so.0"
said=$(timeout 60 "$work/hello_cpp") || true
[ "$said" = 'rank 1: the sum of 1000000 numbers is 499999500000' ] || complain "hello.cpp does not run with it: $said"
"$cc" -I"$root/include" "$here/consumer/weft.c" -o "$work/whole" "$build/lib/libweft.so"
if "$work/whole" >"$work/said" 2>&1; then complain "a program that uses autograd runs with it"; fi
grep -q 'undefined symbol: weft_tape_close' "$work/said" || { cat "$work/said"; complain "another error"; }

# CMake's error for a project that needs all of weft.
if "$cmake" -S "$here/consumer" -B "$work/consumer" -G Ninja -Dweft_DIR="$work" -DCMAKE_C_COMPILER="$cc" \
  >"$work/said" 2>&1; then
  complain "find_package(weft) takes it"
fi
tr -s ' \n' ' ' <"$work/said" | grep -q 'built with WEFT_RPC_ONLY' || { cat "$work/said"; complain "another reason"; }
exit $fail
