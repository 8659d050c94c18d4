#!/usr/bin/env bash
# declared.sh NM LIBRARY CC INCLUDE - every function that a public header declares is exported, and the other way round.
set -euo pipefail
nm=$1 library=$2 cc=$3 include=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$include" && printf '#include <%s>\n' weft/*.h) >"$work/all.c"
# -aux-info lists each prototype that was seen: "/* file:line:NC */ extern type name (arguments);"
"$cc" -std=gnu11 -I"$include" -fsyntax-only -aux-info "$work/prototypes" "$work/all.c"
grep -F "$include/weft/" "$work/prototypes" | grep -v ' static ' | grep -oE 'weft_[a-z0-9_]+ \([^*]' | sed 's, .*,,' |
  sort -u >"$work/declared"
"$nm" -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/exported"

missing=$(comm -23 "$work/declared" "$work/exported")
extra=$(comm -13 "$work/declared" "$work/exported")
[ -z "$missing" ] || printf 'declared in a header, but not in the library:\n%s\n' "$missing"
[ -z "$extra" ] || printf 'exported, but in no public header:\n%s\n' "$extra"
[ -z "$missing$extra" ]
