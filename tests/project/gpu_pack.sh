#!/usr/bin/env bash
# gpu_pack.sh ROOT BUILD - tools/gpu-check --pack with the programs of BUILD: they are stripped, fit with the tree into 64 MiB, and start
# with nothing but the C and C++ runtimes and what was packed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$1/tools/gpu-check" --pack --build "$2" --to "$work/pack" >"$work/log" 2>&1; then
  cat "$work/log"
  ! grep -q 'neither in apt.s cache nor' "$work/log" || exit 77 # no network here
  exit 1
fi
cat "$work/log"
for program in "$work"/pack/tests/test_gpu_memory "$work"/pack/tests/test_gpu_operators "$work"/pack/bin/gpu_bench_memory; do
  [ -x "$program" ] || { echo "no $program"; exit 1; }
  [ -z "$(nm "$program" 2>/dev/null)" ] || { echo "$program is not stripped"; exit 1; }
done
grep -qE '^ *[0-9.]+ MiB  in all, of 64\.0$' "$work/log" || { echo "no line on the size"; exit 1; }

[ -r "$work/pack/cmocka/cmocka.h" ] && nm -D "$work/pack/cmocka/libcmocka.so.0" | grep -q _assert_true || { echo "no cmocka"; exit 1; }

# Each library that a program loads is a packed one, or of the runtimes that every machine has.
for deb in "$work"/pack/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
folders=$(find "$work/root" -name '*.so*' -printf '%h\n' | sort -u | tr '\n' ':')
runtimes='lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|linux-vdso|ld-linux'
for program in "$work"/pack/tests/* "$work"/pack/bin/*; do
  if env -i LD_LIBRARY_PATH="$folders" ldd "$program" | grep -vE "$runtimes" | grep -v "$work/root"; then
    echo "the above of ${program##*/} is not packed"
    exit 1
  fi
done
