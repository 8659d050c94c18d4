#!/usr/bin/env bash
# packages.sh CPACK BUILD CC - the Debian packages of the build: each installed file is in exactly one, they need what
# they should, and a program compiles against the unpacked files in one line and runs. tools/long.d/packages installs
# them. 77 where cpack cannot make them.
set -euo pipefail
cpack=$1 build=$2 cc=$3
[ -e "$build/Packages.cmake" ] || { echo "no dpkg-shlibdeps was found when the build was configured"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
manifests() { (cat "$build"/install_manifest*.txt 2>/dev/null || true) | cksum; }
before=$(manifests)
(cd "$build" && "$cpack" -B "$work/debs") >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
[ "$before" = "$(manifests)" ] || { echo "cpack changed what uninstall removes"; exit 1; }

names="libweft-dev libweft0 weft-doc weft-tools"
[ ! -d "$build/python" ] || names="libweft-dev libweft0 python3-weft weft-doc weft-tools"
[ "$(cd "$work/debs" && printf '%s\n' *.deb | sed 's/_.*//' | xargs)" = "$names" ] || { echo "other packages:"; ls "$work/debs"; exit 1; }
deb() { echo "$work/debs/$1"_*.deb; }
for name in $names; do
  dpkg-deb --fsys-tarfile "$(deb "$name")" | tar t | grep -v '/$' >"$work/$name.files"
  for own in copyright changelog.gz; do
    grep -qx "./usr/share/doc/$name/$own" "$work/$name.files" || { echo "$name has no $own"; exit 1; }
  done
  grep -v "^./usr/share/doc/$name/" "$work/$name.files" >>"$work/all" || true
done
(cd "$build/packages/root" && find . ! -type d ! -path './usr/share/weft/modulefiles/*') | sort >"$work/installed"
sort "$work/all" | diff - "$work/installed" || { echo "packages have other files (<) than cmake --install (>)"; exit 1; }

# The maintainer is the person who builds; no address and no homepage is invented.
wanted=$(sed -n 's/^WEFT_MAINTAINER:STRING=//p' "$build/CMakeCache.txt")
has=$(dpkg-deb -f "$(deb libweft0)" Maintainer)
[ "$has" = "${wanted:-$has}" ] || { echo "the maintainer is $has, not $wanted"; exit 1; }
! grep -qE '(example|noreply)' <<<"$has" || { echo "the maintainer has an invented address: $has"; exit 1; }
[ -z "$(dpkg-deb -f "$(deb libweft0)" Homepage)" ] || { echo "there is a homepage"; exit 1; }

depends() { # depends PACKAGE PATTERN... - it depends on packages of these forms and, with !, on none of such a form
  local has pattern
  has=$(dpkg-deb -f "$(deb "$1")" Depends)
  for pattern in "${@:2}"; do
    if [[ $pattern = !* ]]; then
      ! grep -qE -e "${pattern#!}" <<<"$has" || { echo "$1 depends on ${pattern#!}: $has"; exit 1; }
    else
      grep -qE "(^|, )$pattern(,|$| )" <<<"$has" || { echo "$1 does not depend on $pattern: $has"; exit 1; }
    fi
  done
}
version=$(dpkg-deb -f "$(deb libweft0)" Version)
library="libweft0 \(= ${version//./\\.}\)"
depends libweft0 libfabric1 libhwloc15 'libsodium[0-9]+' libc6 'libdnnl[0-9.]+' libopenblas0 libcjson1 '!weft|-dev'
depends libweft-dev "$library" '!fabric|python'
[ ! -d "$build/python" ] || depends python3-weft "$library" python3 python3-cffi-backend '!-dev'
depends weft-tools "$library" python3 '!-dev' # weft-info asks which library computes products
[ -z "$(dpkg-deb -f "$(deb weft-doc)" Depends)" ] && [ "$(dpkg-deb -f "$(deb weft-doc)" Architecture)" = all ]
[ "$(dpkg-deb -I "$(deb libweft0)" shlibs)" = "libweft 0 libweft0 (= $version)" ]

for name in $names; do
  dpkg-deb -x "$(deb "$name")" "$work/root"
done
cd "$work"
! readelf -S root/usr/lib*/libweft*.so.* root/usr/lib/*/libweft*.so.* 2>/dev/null | grep debug_info || { echo "a library is not stripped"; exit 1; }
! grep -rlF "$build" root || { echo "the files above name the build folder"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find root -name weft.pc)")
LD_LIBRARY_PATH=$(realpath "$(dirname "$(find root -name libweft.so.0)")")
export PKG_CONFIG_PATH LD_LIBRARY_PATH
read -ra flags <<<"$(pkg-config --cflags --libs weft)"
"$cc" root/usr/share/doc/weft/examples/hello.c -o hello "${flags[@]}"
[ "$(timeout 60 ./hello)" = 'rank 1: the sum of 1000000 numbers is 499999500000' ]
timeout 60 root/usr/bin/weft-info >/dev/null
