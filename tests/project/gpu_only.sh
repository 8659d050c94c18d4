#!/usr/bin/env bash
# gpu_only.sh ROOT CMAKE CC - the tree of tools/gpu-check, src/base, src/mem and src/tensor, builds and links without the libraries of
# docs/dependencies.md. CUDA is left out: it takes a toolkit.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  "$2" -S "$1" -B "$work" -G Ninja -DWEFT_GPU_ONLY=ON -DWEFT_CUDA=OFF -DWEFT_TESTS=ON -DWEFT_WERROR=ON -DCMAKE_C_COMPILER="$3" &&
    "$2" --build "$work" --target gpu_bench_memory test_gpu_memory
} >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
# What the compiler read beside the tree and the system: headers of a library that a GPU machine lacks.
if "$2" --build "$work" -- -t deps | grep -E '/usr/include/([^ ]*/)?(sodium|rdma|hwloc|dnnl|cblas|zlib)[^ ]*\.h'; then
  echo "the above is read from a library that a GPU machine lacks"
  exit 1
fi
