#!/usr/bin/env bash
# serving.sh PROGRAM CASE WEFT-RUN - the programs and the script of docs/serving.md.
set -uo pipefail
program=$1 case=$2 weft_run=$3
source "$(dirname "$0")/common.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
unset RANK WORLD_SIZE

server() { sed -n 's/.*process \([0-9]*\) serves from .*/\1/p' "$log" | tail -n 1; }
served() { [ "$(cksum <"$dir/state" 2>/dev/null)" != "$1" ]; }
is_new() { [ -n "$(server)" ] && [ "$(server)" != "$1" ]; }

case "$case" in
sharded) # the mean of 2, 3 and 4 on each trainer; each batch has all three
  timeout 300 "$program" >"$log" 2>&1 || fail "exit code $?"
  for rank in 0 1; do says "^rank $rank: 300 updates in 100 batches$" || fail "rank $rank prints something else"; done
  for rank in 2 3 4; do says "^rank $rank: the parameters are 3.000 and 3.000$" || fail "rank $rank prints something else"; done
  [ "$(wc -l <"$log")" = 5 ] || fail "it prints something else"
  ;;
restarted) # the server is killed three times, each time after it has saved updates
  "$weft_run" --elastic 4:4 --restarts 10 "$program" "$dir/state" >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  killed= before=$(cksum <"$dir/state" 2>/dev/null)
  for time in 1 2 3; do
    within 300 is_new "$killed" || fail "expected a new server"
    within 300 served "$before" || fail "expected it to save updates"
    killed=$(server)
    kill -KILL "$killed" || fail "the job has ended before time $time"
    before=$(cksum <"$dir/state")
  done
  ends_within 300000 0 "$job"
  says 'restarting it (3 of 10)' || fail "expected three restarts"
  says '^\[0\] the total is 1001000$' || fail "an update was lost, or added twice"
  code=0
  "$program" >"$log" 2>&1 || code=$?
  [ $code = 2 ] && says '^start it by: weft-run ' || fail "without a launcher: expected exit code 2 and how to start it"
  ;;
nics) # here the loopback interface stands for both NICs
  awk '/^```sh$/ { code = 1; next } /^```$/ { code = 0 } code' "$root/docs/serving.md" >"$dir/per_nic.sh"
  "$weft_run" -n 3 sh "$dir/per_nic.sh" ib0,ib1,eth2 sh -c 'echo "uses $WEFT_IFACE"' >"$log" 2>&1 || fail "exit code $?"
  [ "$(sort "$log" | tr '\n' ' ')" = '[0] uses ib0 [1] uses ib1 [2] uses eth2 ' ] || fail "expected one NIC for each worker"
  WEFT_FABRIC=tcp "$weft_run" -n 2 sh "$dir/per_nic.sh" lo,lo "$program" >"$log" 2>&1 || fail "exit code $?"
  says '^\[1\] rank 1: the sum of 1000000 numbers is 499999500000$' || fail "expected a sum"
  "$weft_run" -n 2 sh "$dir/per_nic.sh" lo "$program" >"$log" 2>&1 && fail "a worker without a NIC is no error"
  says 'per_nic.sh: local rank 1 has no NIC in lo' || fail "expected the worker without a NIC to say so"
  ;;
page) # what the page shows of the programs stands there, block by block
  python3 - "$root/docs/serving.md" "$root"/examples/{sharded,restarted}_server.c >"$log" 2>&1 <<'END' || fail "the page shows other code"
import re, sys
page, *programs = [open(path).read() for path in sys.argv[1:]]
blocks = re.findall(r"^```c fragment\n(.*?)^```$", page, re.M | re.S)
for block in blocks:
    if not any(block in program for program in programs):
        print(block)
sys.exit(not blocks or any(not any(block in program for program in programs) for block in blocks))
END
  ;;
*) fail "no such case" ;;
esac
