#!/usr/bin/env bash
# cuda_build.sh ROOT CMAKE CC - without a preset, as docs/cuda.md shows it, one kernel is compiled by make, and by Ninja with an nvcc
# that does not know the newest GPUs. With an nvcc that fails, AUTO says why no kernel is built. Exits 77 without an nvcc.
set -euo pipefail
root=$1 cmake=$2 cc=$3
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
nvcc=$(command -v nvcc) || { echo "there is no nvcc here: skipped"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
configure() { "$cmake" -S "$root" -B "$work/build" -DWEFT_RPC_ONLY=ON -DWEFT_INSTALL=OFF -DCMAKE_C_COMPILER="$cc" "$@" >"$work/log" 2>&1; }
fail() { echo "$1"; cat "$work/log"; exit 1; }

configure -G "Unix Makefiles" -DWEFT_CUDA=ON || fail "-DWEFT_CUDA=ON fails"
make -C "$work/build" -f CMakeFiles/gpu_kernels.dir/build.make fatbins/norm.fatbin >"$work/log" 2>&1 || fail "make builds no kernel"
[ -s "$work/build/fatbins/norm.fatbin" ] || fail "make makes no norm.fatbin"

rm -rf "$work/build"
cat >"$work/nvcc" <<END
#!/bin/sh
case "\$*" in
--list-gpu-arch) "$nvcc" --list-gpu-arch | grep -v compute_1 ;;
*compute_1*) echo "nvcc fatal: Unsupported gpu architecture"; exit 1 ;;
*) exec "$nvcc" "\$@" ;;
esac
END
chmod +x "$work/nvcc"
configure -G Ninja -DWEFT_CUDA=AUTO -DWEFT_NVCC="$work/nvcc" || fail "-DWEFT_CUDA=AUTO fails with an older nvcc"
"$cmake" --build "$work/build" --target fatbins/norm.fatbin >"$work/log" 2>&1 || fail "Ninja builds no kernel with an older nvcc"
[ -s "$work/build/fatbins/norm.fatbin" ] || fail "Ninja makes no norm.fatbin"

rm -rf "$work/build"
printf '#!/bin/sh\necho "no compiler of this version" >&2\nexit 1\n' >"$work/nvcc"
configure -G Ninja -DWEFT_CUDA=AUTO -DWEFT_NVCC="$work/nvcc" || fail "AUTO fails without an nvcc that works"
tr -s ' \n' '  ' <"$work/log" | grep -q "not built, because .*no compiler of this version" || fail "AUTO does not say why no kernel is built"
