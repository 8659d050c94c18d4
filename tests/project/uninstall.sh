#!/usr/bin/env bash
# uninstall.sh CMAKE BUILD SOURCE - the target uninstall's script: it removes all that an installation added, leaves
# what others put beside it, and without a manifest it says so and changes nothing. DESTDIR counts.
set -euo pipefail
cmake=$1 build=$2 source=$3
work=$(mktemp -d)
. "$(dirname "$0")/manifest.sh"
trap 'rm -rf "$work"; restore_manifests' EXIT
uninstall() { "$cmake" -D BUILD="$build" -P "$source/cmake/Uninstall.cmake"; }

mkdir -p "$work/usr/include/weft" "$work/usr/bin"
touch "$work/usr/include/weft/mine.h" "$work/usr/bin/other"
export DESTDIR=$work
"$cmake" --install "$build" --prefix /usr >/dev/null
[ -e "$work/usr/bin/weft-info" ] || { echo "nothing was installed"; exit 1; }
uninstall
left=$(cd "$work" && find . -type f -o -type l | sort | tr '\n' ' ')
[ "$left" = "./usr/bin/other ./usr/include/weft/mine.h " ] || { echo "left: $left"; exit 1; }
left=$(cd "$work" && find . -type d | sort | tr '\n' ' ')
[ "$left" = ". ./usr ./usr/bin ./usr/include ./usr/include/weft " ] || { echo "left: $left"; exit 1; }

# Folders that were there before stay, even if they are empty. A folder that only weft needed goes, and its prefix too.
mkdir -p "$work/there/lib/pkgconfig"
for prefix in /there '/new one'; do
  "$cmake" --install "$build" --prefix "$prefix" --component weft >/dev/null
  "$cmake" --install "$build" --prefix "$prefix" >/dev/null
  uninstall
done
left=$(cd "$work" && find . -type d ! -path './usr*' | sort | tr '\n' ' ')
[ "$left" = ". ./there ./there/lib ./there/lib/pkgconfig " ] || { echo "left: $left"; exit 1; }

! uninstall 2>"$work/said" || { echo "the second time it does not fail"; exit 1; }
tr -s ' \n' ' ' <"$work/said" | grep -q 'install_manifest.txt does not exist' || { cat "$work/said"; exit 1; }
