#!/usr/bin/env bash
# commits_test.sh COMMITS - tools/commits itself, in repositories made here: what it passes, refuses, and does not look at.
set -euo pipefail
commits=$1
command -v git >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@example.org
export GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@example.org
unset GIT_DIR GIT_WORK_TREE
fail=0

commit() { git -C "$work/r" commit -q --allow-empty -m "$1"; }
repository() { # one whose commits before the file are as they like
  rm -rf "$work/r"
  git init -q "$work/r"
  commit "x"
  mkdir "$work/r/tools"
  cp "$commits" "$work/r/tools/"
  git -C "$work/r" add tools
  commit "tools/commits looks at subjects"
}
expect() { # expect CODE WHAT [SAID] - of the repository as it is
  local got=0
  "${at:-$work/r}/tools/commits" >"$work/said" 2>&1 || got=$?
  if [ $got != "$1" ] || ! grep -q "${3:-}" "$work/said"; then
    echo "expected exit $1${3:+ and '$3'}: $2; got $got:"
    cat "$work/said"
    fail=1
  fi
}
expect_subject() { # expect_subject CODE SUBJECT
  repository
  commit "$2"
  expect "$1" "'$2'"
}
repository
expect 0 "what stood before the file" "1 commits, 0 of them"
expect_subject 0 "Closes the lane before its buffers are freed"
expect_subject 0 "Fix drain.c"
expect_subject 0 "$(printf 'a%.0s' {1..10}) $(printf 'ü%.0s' {1..61})"
expect_subject 1 "$(printf 'a%.0s' {1..10}) $(printf 'b%.0s' {1..62})"
expect_subject 1 "x"
expect_subject 1 "wip"
expect_subject 1 "Fix some bugs."
expect_subject 1 "fixup! Closes the lane"

repository
commit "$(printf 'A subject of two lines is one\nthat is far too long, as git joins them to one and shows it so')"
commit "$(printf 'A subject with a body\n\n%s' "$(printf 'long %.0s' {1..60})")"
expect 1 "a long subject among others" "3 commits, 1 of them"

git clone -q --depth 1 "file://$work/r" "$work/shallow"
at=$work/shallow expect 0 "a shallow clone" "shallow clone"
git clone -q --depth 2 "file://$work/r" "$work/deeper"
at=$work/deeper expect 1 "a shallow clone with the long subject" "2 commits, 1 of them"
mkdir -p "$work/bare/tools" "$work/r/inner/tools"
cp "$commits" "$work/bare/tools/"
cp "$commits" "$work/r/inner/tools/"
at=$work/bare expect 77 "no repository" "skipped"
at=$work/r/inner expect 77 "a copy inside somebody else's repository" "skipped"
exit $fail
