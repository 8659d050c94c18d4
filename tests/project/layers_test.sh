#!/usr/bin/env bash
# layers_test.sh - layers.sh itself: it passes what goes down, and refuses what goes up, sideways or round.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail=0

tree() { # a small tree that keeps to the rules
  rm -rf "$work/t"
  mkdir -p "$work/t"/{include/weft,src/{base,mem,net,rpc,nn,optim},providers/{sim,ofi,tcp},examples/common}
  cd "$work/t"
  echo '#include <stdint.h>' >include/weft/base.h
  echo '#include <weft/base.h>' >src/base/log.h
  echo '#include "base/log.h"' >src/mem/mem.h
  echo '#include "mem/mem.h"' >providers/fabric.h
  printf '#include "fabric.h"\n#include <rdma/fabric.h>\n' >providers/ofi/ep.h
  echo '#include "ofi/ep.h"' >providers/tcp/tcp.c
  echo '#include "fabric.h"' >providers/sim/sim.h
  printf '#include "sim/sim.h"\n#include "net.h"\n' >src/net/net.c
  echo '' >src/net/net.h
  printf '#include "../net/net.h"\n#include "base/log.h"\n' >src/rpc/rpc.c
  echo '' >src/optim/optim.h
  echo '' >examples/common/idx.h
  printf '#include <weft/base.h>\n#include "common/idx.h"\n' >examples/one.c
}
expect() { # expect pass|refuse WHAT [FILE LINE]: the tree with LINE added to FILE
  tree
  [ $# -lt 3 ] || echo "$4" >>"$3"
  local got=pass
  "$here/layers.sh" "$work/t" >"$work/said" 2>&1 || got=refuse
  if [ "$got" != "$1" ]; then
    echo "expected $1: $2"
    cat "$work/said"
    fail=1
  fi
}
expect pass "a tree in order"
expect refuse "base from mem" src/base/log.c '#include "mem/mem.h"'
expect refuse "up, through .." src/base/log.c '#include "../rpc/rpc.h"'
expect refuse "a sideways include" src/nn/nn.c '#include "optim/optim.h"'
expect refuse "rpc's net from a provider" providers/sim/sim.c '  #  include "net/net.h"'
expect refuse "one provider from another" providers/sim/sim.c '#include "ofi/ep.h"'
expect refuse "an example into src" examples/one.c '#include "../src/base/log.h"'
expect refuse "a header of nowhere" src/rpc/rpc.c '#include "none.h"'
expect refuse "libfabric outside the providers" src/net/net.c '#include <rdma/fabric.h>'
expect refuse "a public header on an inner one" include/weft/base.h '#include "base/log.h"'
expect refuse "a public header on a foreign one" include/weft/base.h '#include <hwloc.h>'
mkdir_other() { tree; mkdir -p src/other; echo >src/other/x.c; ! "$here/layers.sh" "$work/t" >/dev/null 2>&1; }
mkdir_other || { echo "expected refuse: a folder that is no layer"; fail=1; }
exit $fail
