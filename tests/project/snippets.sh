#!/usr/bin/env bash
# snippets.sh CC ROOT - the code in the public headers' comments and in the pages of docs/ compiles, file by file.
#
# In a header: paragraphs of a comment that begin five columns behind its asterisk. In a page: blocks that are marked as C.
set -euo pipefail
cc=$1 root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

in_header='/^ \*$/ { may = 1; print ""; next } /^ \*     / && may { print substr($0, 8); next } { may = 0; print "" }'
in_page='/^```/ { code = $0 == "```c"; print ""; next } code { print; next } { print "" }'
checked=0 failed=0
for file in "$root"/include/weft/*.h "$root"/docs/*.md; do
  case "$file" in *.h) pick=$in_header ;; *) pick=$in_page ;; esac
  awk "$pick" "$file" >"$work/code"
  grep -q '[^[:space:]]' "$work/code" || continue
  { echo '#include <pthread.h>'; echo '#include <stdlib.h>'; echo '#include <weft/weft.h>'; echo "#line 1 \"${file#"$root"/}\""; cat "$work/code"; } >"$work/snippet.c"
  "$cc" -std=c11 -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-const-variable -I"$root/include" -fsyntax-only "$work/snippet.c" || failed=1
  checked=$((checked + 1))
done
[ $checked -gt 0 ] || { echo "no snippet found under $root"; exit 1; }
echo "$checked files with snippets"
exit $failed
