#!/usr/bin/env bash
# declared.sh NM CC INCLUDE LIBRARY SIM - the library SIM exports every function and constant that a public header
# declares, and no other; LIBRARY does without those of sim.h.
set -euo pipefail
nm=$1 cc=$2 include=$3 library=$4 sim=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$include" && printf '#include <%s>\n' weft/*.h) >"$work/all.c"
# -aux-info lists each prototype that was seen: "/* file:line:NC */ extern type name (arguments);"
"$cc" -std=gnu11 -I"$include" -fsyntax-only -aux-info "$work/prototypes" "$work/all.c"
{
  grep -F "$include/weft/" "$work/prototypes" | grep -v ' static ' | grep -oE 'weft_[a-z0-9_]+ \([^*]' | sed 's, .*,,'
  sed -n 's/^WEFT_API extern const [a-z_0-9]* \(weft_[a-z0-9_]*\);.*/\1/p' "$include"/weft/*.h
} | sort -u >"$work/declared"
exported() { "$nm" -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort; }
exported "$sim" >"$work/exported"
[ "$(exported "$library")" = "$(grep -v '^weft_sim_' "$work/exported")" ] || {
  echo "$library and $sim differ by more than weft_sim_*:"
  exported "$library" | diff - "$work/exported" | grep -v '^> weft_sim_'
  exit 1
}

missing=$(comm -23 "$work/declared" "$work/exported")
extra=$(comm -13 "$work/declared" "$work/exported")
[ -z "$missing" ] || printf 'declared in a header, but not in the library:\n%s\n' "$missing"
[ -z "$extra" ] || printf 'exported, but in no public header:\n%s\n' "$extra"
[ -z "$missing$extra" ]
