#!/usr/bin/env bash
# layers.sh ROOT [TABLE [UP]] - a folder includes only from folders below it, and from include/weft/.
# layers.sh --list ROOT       - what UP should say: the includes that run up. It may only get shorter.
#
# The table (layers.txt, beside this file) has each layer and what it rests on. A subfolder is a layer of its own: its parent may
# rest on it, or it on its parent. Of the foreign headers, each is for one layer: that is what keeps libfabric, hwloc and oneDNN
# replaceable.
# UP (includes_up.txt, beside this file, where it is there) has the includes that still run up: "FILE HEADER", a line each.
set -euo pipefail
list=0
[ "$1" != --list ] || { list=1; shift; }
table_file=$(realpath "${2:-$(dirname "$0")/layers.txt}")
up_file=$(realpath -m "${3:-$(dirname "$0")/includes_up.txt}")
cd "$1"

table=$(grep -v '^#' "$table_file")
up=
[ $list = 1 ] || [ ! -f "$up_file" ] || up=$(grep -v '^#' "$up_file" || true)
foreign='
rdma/ providers/ programs/
hwloc src/topo/
oneapi/ src/tensor/cpu/product/
dnnl src/tensor/cpu/product/
cblas src/tensor/cpu/product/
openblas src/tensor/cpu/product/
cuda src/mem/cuda src/tensor/cuda/
cublas src/tensor/cuda/
cudnn src/tensor/cuda/
nccl src/coll/
cjson src/file/
'

folders=()
for folder in include src providers examples perf programs; do
  [ ! -d "$folder" ] || folders+=("$folder")
done
mapfile -t files < <(find "${folders[@]}" -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) | sort)
[ ${#files[@]} -gt 0 ] || { echo "no sources under $1"; exit 1; }

[ $list = 0 ] || echo '# The includes that run up, written by layers.sh --list: a file, and the header above it. This list may only get shorter.'
awk -v table="$table" -v foreign="$foreign" -v up="$up" -v list=$list '
# The layer of a path: src/rpc/call.c is rpc, src/job/store/store.c is job/store, providers/fabric.h is providers.
function layer_of(path) {
  if (path !~ /^(src|providers)\//) { sub(/\/.*/, "", path); return path }
  sub(/\/[^\/]*$/, "", path)
  sub(/^src\//, "", path)
  return path
}
function exists(path,    line, found) {
  found = (getline line < path) >= 0
  close(path)
  return found
}
function normal(path) {
  while (sub(/[^\/]+\/\.\.\//, "", path)) continue
  return path
}
# Where a quoted include leads: beside the file first, then along the -I of the build.
function resolve(file, name,    folder) {
  folder = file
  sub(/[^\/]*$/, "", folder)
  if (exists(normal(folder name))) return normal(folder name)
  if (layer_of(file) == "examples" || layer_of(file) == "perf") return resolve_program(layer_of(file), name)
  if (exists("src/" name)) return "src/" name
  if (exists("providers/" name)) return "providers/" name
  return layer_of(file) == "programs" ? resolve_installed(name) : ""
}
# Installed programs share what stands in perf/common and examples/common.
function resolve_installed(name) {
  return exists("programs/" name) ? "programs/" name : resolve_program("perf", name)
}
# Benchmarks share what stands in examples/common.
function resolve_program(layer, name) {
  if (exists(layer "/" name)) return layer "/" name
  return exists("examples/common/" name) ? "examples/common/" name : ""
}
function complain(text) {
  print FILENAME ":" FNR ": " text
  bad = 1
}
function check_quoted(name,    from, target, to) {
  from = layer_of(FILENAME)
  target = resolve(FILENAME, name)
  if (target == "") { complain("\"" name "\" is in no layer"); return }
  to = layer_of(target)
  if (from == "include") complain("a public header includes \"" name "\": <weft/...> and libc only")
  else if (from != to && !((from, to) in below)) {
    if (list) print FILENAME, name
    else if ((FILENAME " " name) in allowed_up) delete allowed_up[FILENAME " " name]
    else complain(from " may not include from " to " (\"" name "\")")
  }
}
function check_angle(name,    i, allowed, ok, n, where) {
  if (layer_of(FILENAME) == "include") {
    if (name !~ /^weft\// && name !~ /^(std[a-z]+|sys\/types|math|string|limits)\.h$/ && name !~ /^[a-z]+$/)
      complain("a public header includes <" name ">: <weft/...> and libc only")
    return
  }
  if (name ~ /^weft\// || FILENAME ~ /^(perf|examples)\//) return
  for (i in prefix) {
    if (index(name, prefix[i]) != 1) continue
    ok = 0
    n = split(places[i], where, " ")
    for (allowed = 1; allowed <= n; allowed++) if (index(FILENAME, where[allowed]) == 1) ok = 1
    if (!ok) complain("<" name "> belongs to " places[i] " alone")
  }
}
function close_over(    changed, pair, a, b, c, names) {
  do {
    changed = 0
    for (pair in below) {
      split(pair, names, SUBSEP)
      a = names[1]; b = names[2]
      for (c in layer) if (((b, c) in below) && !((a, c) in below)) { below[a, c] = 1; changed = 1 }
    }
  } while (changed)
}
BEGIN {
  n = split(up, rows, "\n")
  for (i = 1; i <= n; i++) if (rows[i] != "") allowed_up[rows[i]] = 1
  n = split(table, rows, "\n")
  for (i = 1; i <= n; i++) {
    if (rows[i] == "") continue
    split(rows[i], sides, ":")
    layer[sides[1]] = 1
    m = split(sides[2], rests, " ")
    for (j = 1; j <= m; j++) below[sides[1], rests[j]] = 1
  }
  close_over()
  for (i in layer) if ((i, i) in below) { print "the table has " i " below itself"; bad = 1 }
  n = split(foreign, rows, "\n")
  for (i = 1; i <= n; i++) {
    if (rows[i] == "") continue
    prefix[i] = substr(rows[i], 1, index(rows[i], " ") - 1)
    places[i] = substr(rows[i], index(rows[i], " ") + 1)
  }
}
FNR == 1 && FILENAME ~ /^(src|providers)\// && !(layer_of(FILENAME) in layer) {
  complain("the folder " layer_of(FILENAME) " is no layer: layers.txt has no entry for it")
}
/^[ \t]*#[ \t]*include[ \t]*"/ { name = $0; sub(/^[^"]*"/, "", name); sub(/".*/, "", name); check_quoted(name) }
/^[ \t]*#[ \t]*include[ \t]*</ { name = $0; sub(/^[^<]*</, "", name); sub(/>.*/, "", name); check_angle(name) }
END {
  for (row in allowed_up) { print "includes_up.txt: \"" row "\" is no longer needed: strike it"; bad = 1 }
  exit bad
}
' "${files[@]}"
[ $list = 1 ] || echo "${#files[@]} files keep to their layers"
