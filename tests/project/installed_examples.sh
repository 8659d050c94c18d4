#!/usr/bin/env bash
# installed_examples.sh PREFIX CC - the examples of an installed tree, copied elsewhere: their Makefile builds two
# against the library in PREFIX, and these run. The Makefile names every program of the folder.
set -euo pipefail
prefix=$1 cc=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$prefix/share/doc/weft/examples" "$work/"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name weft.pc)")
export PKG_CONFIG_PATH
cd "$work/examples"

# The first command of the installed README.md builds hello.
command=$(sed -n 's/^\$ \(cc .*hello\.c.*\)/\1/p' "$prefix/share/doc/weft/README.md" | head -n 1)
[ -n "$command" ] || { echo "README.md has no command that compiles hello.c"; exit 1; }
(cd "$work" && eval "${command/#cc/$cc}") || { echo "README.md's first command fails: $command"; exit 1; }
[ -x "$work/hello" ] || { echo "README.md's first command makes no hello: $command"; exit 1; }

# From here on in a folder, and with a prefix, whose names have a space.
cp -r "$prefix" "$work/a prefix"
prefix="$work/a prefix"
mv "$work/examples" "$work/the examples"
cd "$work/the examples"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name weft.pc)")
planned=$(make --no-print-directory -n MPICC=true)
for source in *.c *.cpp; do
  program=${source%.c}
  program=${program/%.cpp/_cpp}
  grep -q -- "-o build/$program " <<<"$planned" || { echo "make does not build $program"; exit 1; }
done
make --no-print-directory -j 2 CC="$cc" CFLAGS='-O0 -Wall -Werror' hello batch_parameter_server ddp_rpc_hybrid \
  >log 2>&1 || { cat log; exit 1; }

# Not grep -q: it would close the pipe of a program that still writes.
env -u LD_LIBRARY_PATH timeout 60 build/hello | grep -x 'rank 1: the sum of 1000000 numbers is 499999500000' >/dev/null
env -u LD_LIBRARY_PATH WEFT_DEATH_MS=20000 timeout 60 build/batch_parameter_server --trainers 1 --digits 64 --held-out 10 \
  --batch-size 8 --iterations 2 | grep 'held-out accuracy' >/dev/null
ldd build/batch_parameter_server | grep -F "$(realpath "$prefix")/" >/dev/null ||
  { echo "the program uses no library of $prefix"; exit 1; }
