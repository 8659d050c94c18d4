#!/usr/bin/env bash
# circles_test.sh CIRCLES - tools/circles itself: what its list allows it passes; what is new, or listed and gone, it refuses.
set -euo pipefail
circles=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail=0

tree() { # in mem a circle of three; net calls down into mem and, through a pointer, whatever it likes; base is alone
  rm -rf "$work/t"
  mkdir -p "$work/t"/{src/{base,mem,net/low},providers/sim,tests/project}
  cd "$work/t"
  printf '%s\n' '# the layers' base: 'mem: base' 'net/low: mem' 'net: net/low' 'providers/sim: mem' >tests/project/layers.txt
  printf 'int base_one(void)\n{\n    return 1; /* mem_a() */\n}\n' >src/base/base.c
  printf 'int mem_a(void)\n{\n    return mem_b();\n}\n' >src/mem/a.c
  printf 'int mem_b(void)\n{\n    return mem_c();\n}\n' >src/mem/b.c
  printf 'int mem_c(void)\n{\n    return mem_a() + base_one();\n}\n' >src/mem/c.c
  printf 'static int help(void)\n{\n    return mem_a();\n}\nint low(void)\n{\n    return help();\n}\n' >src/net/low/low.c
  printf 'int net(void)\n{\n    return low() + base_one();\n}\n' >src/net/net.c
  printf 'int sim(void)\n{\n    puts("net()");\n    return mem_a();\n}\n' >providers/sim/sim.c
  "$circles" --list . >tests/project/circles.txt
}
complain() {
  echo "$*"
  cat "$work/said"
  fail=1
}
expect() { # expect WORDS WHAT: the check passes, where there are no words; else it fails and says them
  local got=pass
  "$circles" --check . >"$work/said" 2>&1 || got=refuse
  if [ -z "$1" ]; then
    [ $got = pass ] || complain "expected pass: $2"
  elif [ $got = pass ] || ! grep -qF -- "$1" "$work/said"; then
    complain "expected '$1': $2"
  fi
}

tree
expect "" "what is listed"
[ "$(grep -v '^#' tests/project/circles.txt)" = "circle src/mem: a.c b.c c.c" ] || complain "a list: $(cat tests/project/circles.txt)"
tree
printf 'int base_two(void)\n{\n    return net();\n}\n' >src/base/two.c
expect "new, and not to be: up src/base/two.c > src/net/net.c: net" "a call up"
"$circles" --list . >tests/project/circles.txt
expect "" "a call up that is listed"
printf 'int base_three(void)\n{\n    return low();\n}\n' >>src/base/two.c
expect "new, and not to be: up src/base/two.c > src/net/low/low.c: low" "another call up"
tree
printf 'int low_up(void)\n{\n    return net();\n}\n' >>src/net/low/low.c
expect "new, and not to be: up src/net/low/low.c > src/net/net.c: net" "a call from a subfolder to its parent"
tree
printf 'int sim_net(void)\n{\n    return low();\n}\n' >>providers/sim/sim.c
expect "new, and not to be: up providers/sim/sim.c > src/net/low/low.c: low" "a call sideways"
tree
printf 'int mem_d(void)\n{\n    return mem_a();\n}\n' >src/mem/d.c
expect "" "a file that needs a circle, and that the circle does not need"
printf 'int mem_e(void)\n{\n    return mem_d();\n}\n' >>src/mem/c.c
expect "new, and not to be: circle src/mem: a.c b.c c.c d.c" "a circle that grew"
tree
printf 'int low_two(void)\n{\n    return low();\n}\n' >src/net/low/two.c
printf 'int low_three(void)\n{\n    return low_two();\n}\n' >>src/net/low/low.c
expect "new, and not to be: circle src/net/low: low.c two.c" "a new circle"
tree
printf 'int mem_b(void)\n{\n    return mem_a();\n}\n' >src/mem/b.c
expect "less of it now, or none: circle src/mem: a.c b.c c.c" "a circle that shrank"
tree
printf 'int mem_c(void)\n{\n    return base_one();\n}\n' >src/mem/c.c
expect "less of it now, or none: circle src/mem: a.c b.c c.c" "a circle that is gone"
"$circles" --list . >tests/project/circles.txt
expect "" "an empty list"
tree
echo "up src/base/base.c > src/net/net.c: net" >>tests/project/circles.txt
expect "less of it now, or none: up src/base/base.c > src/net/net.c: net" "a listed call that is gone"
exit $fail
