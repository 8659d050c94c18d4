#!/usr/bin/env bash
# cuda_build.sh ROOT CMAKE CC - without a preset, as docs/cuda.md shows it, make compiles the kernels. An nvcc that does not know the
# newest GPUs compiles for the others. With an nvcc that fails, AUTO says why no kernel is built. Exits 77 without an nvcc.
set -euo pipefail
root=$1 cmake=$2 cc=$3
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
nvcc=$(command -v nvcc) || { echo "there is no nvcc here: skipped"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
configure() { "$cmake" -S "$root" -B "$work/build" -DWEFT_RPC_ONLY=ON -DWEFT_INSTALL=OFF -DCMAKE_C_COMPILER="$cc" "$@" >"$work/log" 2>&1; }
fail() { echo "$1"; cat "$work/log"; exit 1; }

configure -G "Unix Makefiles" -DWEFT_CUDA=ON -DWEFT_CUDA_ARCHITECTURES=90 || fail "-DWEFT_CUDA=ON fails"
make -C "$work/build" -f CMakeFiles/gpu_kernels.dir/build.make fatbin/kernels.fatbin >"$work/log" 2>&1 || fail "make builds no kernel"
[ -s "$work/build/fatbin/kernels.fatbin" ] || fail "make makes no kernels.fatbin"

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
grep -q "GPU kernels: by .*, for 80;90\$" "$work/log" || fail "an older nvcc is not given the GPUs that it knows"

rm -rf "$work/build"
printf '#!/bin/sh\necho "no compiler of this version" >&2\nexit 1\n' >"$work/nvcc"
configure -G Ninja -DWEFT_CUDA=AUTO -DWEFT_NVCC="$work/nvcc" || fail "AUTO fails without an nvcc that works"
tr -s ' \n' '  ' <"$work/log" | grep -q "not built, because .*no compiler of this version" || fail "AUTO does not say why no kernel is built"
