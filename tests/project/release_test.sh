#!/usr/bin/env bash
# release_test.sh ROOT - tools/release: with --dry-run in a clone of the tree, and whole in a small repository made
# here. abidiff is the installed one, or else a script that only notices missing functions.
set -euo pipefail
root=$1
command -v git >/dev/null && [ "$(git -C "$root" rev-parse --show-prefix 2>&1)" = "" ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null XZ_OPT=-0
unset GIT_DIR GIT_WORK_TREE LD_PRELOAD
fail=0

complain() {
  echo "$1"
  [ ! -s "$work/said" ] || sed 's/^/  /' "$work/said"
  fail=1
}
git_in() { git -C "$repository" -c user.name=x -c user.email=x@example.org "$@"; }
expect() { # expect CODE SAID ARGUMENT... - tools/release in the repository
  local code=$1 said=$2 got=0
  shift 2
  (cd "$repository" && PATH="$work/bin:$PATH" tools/release "$@" --output "$work/out") >"$work/said" 2>&1 </dev/null || got=$?
  [ $got = "$code" ] && grep -qF -- "$said" "$work/said" || complain "release $*: expected exit $code and '$said', got $got:"
}
unchanged() { # unchanged COMMIT
  [ "$(git_in rev-parse HEAD)" = "$1" ] && [ -z "$(git_in status --porcelain)" ] || complain "the tree has changed"
}
mkdir "$work/bin"

# The tree itself: the archive has the version everywhere, and configures without a network. What is not committed yet
# is tried too.
repository=$work/clone
git clone -q --shared --no-tags --no-checkout "$root" "$repository" 2>"$work/said" || exit 77
git_in sparse-checkout set --no-cone /tools/release /CHANGELOG.md # thousands of files fewer
git_in checkout -q -B main
git_in config user.name x
git_in config user.email x@example.org
cp "$root/tools/release" "$repository/tools/release"
sed -i '0,/^## .*/s//## 0.1.0 (not released yet)/' "$repository/CHANGELOG.md"
git_in add -A
git_in commit -q --allow-empty -m "The tree of this test"
before=$(git_in rev-parse HEAD)
expect 1 "pass --renumber" 98.7.65 --dry-run
expect 0 "the commit would be: Release 98.7.65" 98.7.65 --dry-run --renumber
unchanged "$before"
[ -z "$(git_in tag)" ] || complain "--dry-run made a tag"
archive=$work/out/weft-98.7.65.tar.xz
tar -xJf "$archive" -C "$work" weft-98.7.65/{include/weft/base.h,CHANGELOG.md,README.md,CMakeLists.txt,LICENSE} || complain "the archive lacks files"
grep -q '^#define WEFT_VERSION_MAJOR 98$' "$work"/weft-*/include/weft/base.h || complain "base.h has another version"
grep -q '^#define WEFT_VERSION_PATCH 65$' "$work"/weft-*/include/weft/base.h || complain "base.h has another version"
grep -qE '^## 98\.7\.65 \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$' "$work"/weft-*/CHANGELOG.md || complain "CHANGELOG.md has another heading"
grep -q '^| maturity | 98\.7\.65:' "$work"/weft-*/README.md || complain "README.md has another version"

# A small repository with a library of two functions.
repository=$work/small
mkdir -p "$repository"/{tools,include/weft}
cp "$root/tools/release" "$repository/tools/"
printf '#define WEFT_VERSION_%s\n' 'MAJOR 0' 'MINOR 0' 'PATCH 1' >"$repository/include/weft/base.h"
printf '# Changes\n\n## 0.1.0 (not released yet)\n' >"$repository/CHANGELOG.md"
printf '| maturity | 0.1.0, not released yet: early |\n' >"$repository/README.md"
printf 'build/\n' >"$repository/.gitignore"
cat >"$repository/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(weft LANGUAGES NONE)
set(weft_soversion 0)
add_custom_target(weft COMMAND ${CMAKE_COMMAND} -E make_directory lib
  COMMAND cc -g -shared -fPIC -Wl,-soname,libweft.so.${weft_soversion} ${CMAKE_SOURCE_DIR}/weft.c -o lib/libweft.so)
END
echo "int weft_one(int a) { return a; } int weft_two(int a) { return a; }" >"$repository/weft.c"
if ! command -v abidiff >/dev/null; then
  cat >"$work/bin/abidiff" <<'END'
#!/usr/bin/env bash
old=${*: -2:1} new=${*: -1}
names() { nm -D --defined-only "$1" | cut -c18- | sort; }
gone=$(comm -23 <(names "$old") <(names "$new"))
[ -z "$gone" ] || { echo "removed: $gone"; exit 12; }
END
  chmod +x "$work/bin/abidiff"
fi
git init -q -b main "$repository"
git_in config user.name x
git_in config user.email x@example.org
git_in add -A
git_in commit -qm "A library"
before=$(git_in rev-parse HEAD)
expect 2 "no version such as" 0.1
expect 2 "no version such as" v0.1.0
expect 2 "unknown option" 0.1.0 --push
git_in checkout -q -b other
expect 1 "the branch is other" 0.1.0
git_in checkout -q main
touch "$repository/new"
expect 1 "the tree is not clean" 0.1.0
rm "$repository/new"
unchanged "$before"

expect 1 "and the release is to be 0.1.1" 0.1.1
# Neither a signature nor a hook that fails leaves a commit, a tag or an archive.
untouched() {
  unchanged "$before"
  [ -z "$(git_in tag)" ] || complain "a tag is left: $(git_in tag)"
  [ -z "$(find "$work/out" -name 'weft-0.1.0*')" ] || complain "an archive is left"
}
git_in config tag.gpgSign true
git_in config gpg.program false
expect 1 "the tag v0.1.0 cannot be made" 0.1.0
untouched
git_in config --unset tag.gpgSign
printf '#!/bin/sh\n[ "$1" != prepared ] || ! grep -q refs/tags/\n' >"$repository/.git/hooks/reference-transaction"
chmod +x "$repository/.git/hooks/reference-transaction"
expect 1 "git does not take the commit and the tag v0.1.0" 0.1.0
untouched
rm "$repository/.git/hooks/reference-transaction"

expect 0 "no ABI to compare with" 0.1.0
[ "$(git_in cat-file -t v0.1.0)" = tag ] || complain "v0.1.0 is no annotated tag"
[ "$(git_in log -1 --format=%s)" = "Release 0.1.0" ] && [ "$(git_in rev-parse 'v0.1.0^{commit}')" = "$(git_in rev-parse HEAD)" ] ||
  complain "the commit is not the tagged one"
[ "$(git_in rev-parse HEAD^)" = "$before" ] && [ -z "$(git_in status --porcelain)" ] || complain "there are other changes"
git_in archive --format=tar --prefix=weft-0.1.0/ v0.1.0 | xz -T1 | cmp - "$work/out/weft-0.1.0.tar.xz" ||
  complain "the archive of the tag has other bits"
expect 1 "the tag v0.1.0 exists" 0.1.0
expect 1 "first heading must be" 0.2.0

changed() { # changed SUBJECT - commits what was changed, with a heading for the next release
  sed -i '0,/^## /s//## 0.2.0 (not released yet)\n\n## /' "$repository/CHANGELOG.md"
  git_in commit -qam "$1"
}
echo "int weft_one(int a) { return a; } int weft_two(int a) { return a; } int weft_three(int a) { return a; }" >"$repository/weft.c"
changed "A function more"
expect 1 "not later than the last release" 0.0.9
mkdir "$work/without" # a PATH without abidiff
IFS=: read -ra folders <<<"$PATH"
for ((i = ${#folders[@]} - 1; i >= 0; i--)); do
  find "${folders[i]}/" -maxdepth 1 ! -type d -exec ln -sft "$work/without" {} + 2>/dev/null || true
done
rm -f "$work/without/abidiff"
(cd "$repository" && PATH=$work/without tools/release 0.2.0 --output "$work/out") >"$work/said" 2>&1 </dev/null && complain "abidiff is missing"
grep -q "abidiff is not installed" "$work/said" || complain "another error than that abidiff is missing"
expect 0 "the tag v0.2.0" 0.2.0
git_in tag -d v0.2.0 >/dev/null # as in a clone without tags: the commit is found
echo "int weft_one(int a) { return a; } int weft_two(int a) { return a; }" >"$repository/weft.c"
changed "A function less"
before=$(git_in rev-parse HEAD)
expect 1 "libweft.so breaks the ABI of 0.2.0, and has its soname libweft.so.0" 0.3.0 --renumber
unchanged "$before"
sed -i 's/weft_soversion 0/weft_soversion 1/' "$repository/CMakeLists.txt"
git_in commit -qam "Another soname"
expect 0 "has another soname" 0.3.0 --renumber
exit $fail
