#!/usr/bin/env bash
# python.sh PARTNER EXAMPLES - what weft writes is read by Python with numpy alone, and the other way round; 77: no numpy here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import numpy' 2>/dev/null; then
    "$1" write "$work"
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$2 "$python" "$here/partner.py" "$work"
    "$1" read "$work"
    exit 0
  fi
done
echo "no numpy here"
exit 77
