#!/usr/bin/env bash
# prose_test.sh PROSE - tools/prose itself: what it finds, and that allowed counts are held and only shrink.
set -euo pipefail
prose=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail=0
expect() { # expect CODE WHAT SAID OPTION... - and the text in what it prints
  local code=$1 what=$2 text=$3 got=0
  "$prose" "${@:4}" >said 2>&1 || got=$?
  if [ $got != "$code" ] || [[ $(cat said) != *$text* ]]; then
    echo "expected exit $code and '$text': $what; got $got:"
    cat said
    fail=1
  fi
}
git init -q .
mkdir docs tools
printf 'What was left goes first. It is in vain.\n\nA page about one thing.\n' >docs/a.md
printf '/* %0130d */\n' 0 >docs/b.h
git add docs
printf '# head\ndocs 1 1 0 1\n' >tools/prose.counts
expect 0 "counts of a folder" 'docs        1       1       0       1'
expect 0 "each place" 'docs/a.md:1: clause' -v
expect 0 "as many as allowed" '' --check
printf '# head\ndocs 1 0 0 1\n' >tools/prose.counts
expect 1 "more than allowed" "docs: 1 of kind 'idiom', allowed are 0" --check
printf '# head\ndocs 5 0 3 1\nold 1 1 1 1\n' >tools/prose.counts
expect 0 "shrinking" '' --shrink
[ "$(cat tools/prose.counts)" = $'# head\ndocs 1 0 0 1' ] || { echo "wrong counts:"; cat tools/prose.counts; fail=1; }
printf '# head\ndocs 2 1 0 1\n' >tools/prose.counts
expect 0 "fewer than allowed" 'run tools/prose --shrink' --check
exit $fail
