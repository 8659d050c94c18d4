#!/usr/bin/env bash
# layers_test.sh - layers.sh itself: it passes what goes down, and refuses what goes up, sideways or round.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail=0

tree() { # a small tree that keeps to the rules
  rm -rf "$work/t"
  mkdir -p "$work/t"/{include/weft,src/{base,mem,net,dist,nn,optim,tensor/cpu},providers/{host,ofi,tcp},examples/common}
  cd "$work/t"
  echo '#include <stdint.h>' >include/weft/base.h
  echo '#include <weft/base.h>' >src/base/log.h
  echo '#include "base/log.h"' >src/mem/mem.h
  echo '#include "mem/mem.h"' >providers/fabric.h
  printf '#include "fabric.h"\n#include <rdma/fabric.h>\n' >providers/ofi/ep.h
  echo '#include "ofi/ep.h"' >providers/tcp/tcp.c
  echo '#include "fabric.h"' >providers/host/host.h
  printf '#include "host/host.h"\n#include "net.h"\n' >src/net/net.c
  echo '' >src/net/net.h
  printf '#include "../net/net.h"\n#include "base/log.h"\n' >src/dist/dist.c
  echo '' >src/optim/optim.h
  echo '#include "mem/mem.h"' >src/tensor/tensor.h
  echo '' >src/tensor/shape.c
  printf '#include "tensor/tensor.h"\n#include "gemm.h"\n' >src/tensor/cpu/conv.c
  echo '' >src/tensor/cpu/gemm.h
  echo '' >examples/common/idx.h
  printf '#include <weft/base.h>\n#include "common/idx.h"\n' >examples/one.c
}
expect() { # expect pass|refuse WHAT [FILE LINE]: the tree with LINE added to FILE
  tree
  [ $# -lt 3 ] || echo "$4" >>"$3"
  local got=pass
  "$here/layers.sh" "$work/t" "$here/layers.txt" /dev/null >"$work/said" 2>&1 || got=refuse
  if [ "$got" != "$1" ]; then
    echo "expected $1: $2"
    cat "$work/said"
    fail=1
  fi
}
expect pass "a tree in order"
expect refuse "base from mem" src/base/log.c '#include "mem/mem.h"'
expect refuse "up, through .." src/base/log.c '#include "../dist/dist.h"'
expect refuse "a sideways include" src/nn/nn.c '#include "optim/optim.h"'
expect refuse "net from a provider" providers/host/host.c '  #  include "net/net.h"'
expect refuse "one provider from another" providers/host/host.c '#include "ofi/ep.h"'
expect refuse "an example into src" examples/one.c '#include "../src/base/log.h"'
expect refuse "a header of nowhere" src/dist/dist.c '#include "none.h"'
expect refuse "libfabric outside the providers" src/net/net.c '#include <rdma/fabric.h>'
expect refuse "a public header on an inner one" include/weft/base.h '#include "base/log.h"'
expect refuse "a public header on a foreign one" include/weft/base.h '#include <hwloc.h>'
expect refuse "a parent that a subfolder rests on, from that" src/tensor/shape.c '#include "tensor/cpu/gemm.h"'
expect refuse "a subfolder's header, through its parent" src/mem/mem.h '#include "tensor/cpu/gemm.h"'

# What stands in the list of includes that run up is let pass, and struck when it is no longer there.
echo 'src/base/log.c mem/mem.h' >"$work/up"
tree
if ! "$here/layers.sh" "$work/t" "$here/layers.txt" "$work/up" >"$work/said" 2>&1 && grep -q 'strike it' "$work/said"; then :; else
  echo "expected a listed include that is gone to be struck"
  fail=1
fi
echo '#include "mem/mem.h"' >>src/base/log.c
if ! "$here/layers.sh" "$work/t" "$here/layers.txt" "$work/up" >"$work/said" 2>&1; then
  echo "expected a listed include to pass"
  cat "$work/said"
  fail=1
fi
"$here/layers.sh" --list "$work/t" | grep -qx 'src/base/log.c mem/mem.h' || { echo "expected --list to name it"; fail=1; }

expect_folder() { # expect_folder WHAT FOLDER: refused, as the table does not have it
  tree
  mkdir -p "$2"
  echo >"$2/x.c"
  if "$here/layers.sh" "$work/t" "$here/layers.txt" /dev/null >"$work/said" 2>&1 || ! grep -q "no entry" "$work/said"; then
    echo "expected refuse: $1"
    fail=1
  fi
}
expect_folder "a folder that is no layer" src/other
expect_folder "a subfolder that is no layer" src/mem/pool
expect_folder "a subfolder of a subfolder" src/tensor/cpu/conv
expect_folder "a provider that is no layer" providers/pigeon

expect_table() { # expect_table pass|refuse WHAT ROW...: the tree under a table of these rows
  tree
  local got=pass wanted=$1 what=$2
  shift 2
  rm -r examples src/{net,dist,nn,optim} providers
  printf '%s\n' '# a comment' "$@" >"$work/table"
  "$here/layers.sh" "$work/t" "$work/table" /dev/null >"$work/said" 2>&1 || got=refuse
  if [ "$got" != "$wanted" ]; then
    echo "expected $wanted: $what"
    cat "$work/said"
    fail=1
  fi
}
expect_table pass "a subfolder above its parent" "base:" "mem: base" "tensor: mem" "tensor/cpu: tensor"
expect_table refuse "a subfolder that may not use its parent" "base:" "mem: base" "tensor: mem" "tensor/cpu: mem"
expect_table refuse "a table with a circle" "base: tensor" "mem: base" "tensor: mem" "tensor/cpu: tensor"
exit $fail
