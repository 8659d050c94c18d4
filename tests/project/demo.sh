#!/usr/bin/env bash
# demo.sh ROOT - tools/demo shows how far the build is, builds its program alone, without kernels for GPUs, and shows the log of a
# build that fails. A stand-in for cmake and for the program makes the test short.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools" "$work/bin"
cp "$1/tools/demo" "$work/tools/"
printf '#!/bin/sh\n' >"$work/tools/setup"
cat >"$work/bin/cmake" <<'END'
#!/usr/bin/env bash
echo "cmake $*" >>calls
[ "$1" = --build ] || exit 0
for ((i = 1; i <= 120; i++)); do echo "[$i/120] Building $i"; done
[ ! -e fails ] || { echo "error: no disk"; exit 1; }
mkdir -p "$2/bin"
printf '#!/bin/sh\necho "trained $*"\n' >"$2/bin/batch_parameter_server"
chmod +x "$2/bin/batch_parameter_server"
END
chmod +x "$work/tools/setup" "$work/bin/cmake"
demo() { PATH=$work/bin:$PATH "$work/tools/demo" >"$work/said" 2>&1; }
fail() { echo "$1"; cat "$work/said" "$work/calls"; exit 1; }
demo || fail "the demo fails"
grep -qx "demo: 100 of 120 build steps done" "$work/said" || fail "no progress is shown"
grep -qx "demo: 120 of 120 build steps done" "$work/said" || fail "the end of the build is not shown"
[ "$(wc -l <"$work/said")" -le 12 ] || fail "the output is long"
[ "$(grep -c '^trained ' "$work/said")" = 2 ] || fail "two trainings should run"
grep -q -- '-DWEFT_CUDA=OFF' "$work/calls" || fail "kernels for GPUs would be built"
grep -q -- '--build .* --target batch_parameter_server$' "$work/calls" || fail "more than the demo's program would be built"
touch "$work/fails"
! demo || fail "a failed build is not noticed"
grep -q "error: no disk" "$work/said" || fail "the error of the build is not shown"
