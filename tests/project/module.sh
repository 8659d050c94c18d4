#!/usr/bin/env bash
# module.sh PREFIX - the environment-module file: each folder that it names is there, and with the settings a compiler and pkg-config find weft.
# Where there is a tclsh, it reads the file, with stand-ins for the commands of Environment Modules.
set -euo pipefail
prefix=$1
file=$(find "$prefix/share/weft/modulefiles/weft" -type f)
[ "$(head -c 8 "$file")" = '#%Module' ] || { echo "$file does not begin with #%Module"; exit 1; }
! grep -n '@' "$file" || { echo "the lines above of $file were not filled in"; exit 1; }

settings=$(sed -n 's/^prepend-path \([A-Z_]*\) "\(.*\)"$/\1 \2/p' "$file")
if command -v tclsh >/dev/null; then
  settings=$(tclsh <<TCL
proc module-whatis {text} {}
proc conflict {name} {}
proc prepend-path {name path} { puts "\$name \$path" }
source $file
TCL
  )
fi
while read -r name path; do
  [ -d "$path" ] || { echo "$file: $name names $path, which is no folder"; exit 1; }
  [ "$name" != PKG_CONFIG_PATH ] || [ "$(PKG_CONFIG_PATH=$path pkg-config --variable=prefix weft | xargs realpath)" = "$(realpath "$prefix")" ] ||
    { echo "$file: pkg-config does not find weft in $path"; exit 1; }
  seen+="$name "
done <<<"$settings"
[ "${seen:-}" = "PATH CPATH LIBRARY_PATH LD_LIBRARY_PATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH " ] || { echo "$file sets ${seen:-nothing}"; exit 1; }
