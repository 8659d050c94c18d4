#!/usr/bin/env bash
# pairs.sh PAGE - the C code of a page, for a program that runs it: `main` becomes pairs_main, and all functions are static.
set -euo pipefail
echo "#line 1 \"$1\""
awk '/^```/ { code = $0 == "```c"; print ""; next } code { print; next } { print "" }' "$1" |
  sed 's/^int main(void)/static int pairs_main(void)/; s/^weft_status /static weft_status /'
