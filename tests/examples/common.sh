# common.sh - what the scripts that run an example share: a folder, a log, processes that are gone at the end, and what is expected of
# them. To be sourced after `program` and `case` are set.
dir=$(mktemp -d)
log=$dir/log
pids=()

clean_up() {
  local p
  for p in "${pids[@]}"; do kill -KILL "$p" 2>/dev/null; done
  wait
  rm -rf "$dir"
}
trap clean_up EXIT

fail() {
  echo "$case: $*" >&2
  [ ! -s "$log" ] || { echo "--- what the program said:" >&2; tail -n 30 "$log" >&2; }
  exit 1
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }
within() { # within SECONDS COMMAND... - tries it until it succeeds
  local end=$(($(now_ms) + $1 * 1000))
  shift
  until "$@"; do
    [ "$(now_ms)" -lt "$end" ] || return 1
    sleep 0.02
  done
}
says() { grep -q -- "$1" "$log"; }
ended() { ! [ -e "/proc/$1" ] || grep -q '^State:.[ZX]' "/proc/$1/status" 2>/dev/null; }
code_of() { wait "$1"; code=$?; } # sets code: a subshell could not wait for our children
children() { # of a process, oldest first, in a line; proc(5): the kernel's own lists of them may miss some while others end
  cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent="$1" '{ pid = $1; sub(/.*\) /, "") } $2 == parent { print $20, pid }' |
    sort -k 1n -k 2n | awk '{ printf "%s ", $2 } END { print "" }'
}
value() { # value NAME FILE - of a line of the final table
  awk -v name="$1" '{ own = substr($0, 3, 20); sub(/ *$/, "", own) } /^  / && own == name { split(substr($0, 24), words, " "); print words[1] }' "$2"
}
join() { # join RANK SIZE PORT PROGRAM OPTIONS... - a worker of a job, in the background; its output is in $log (rank 0) or $log$RANK
  local rank=$1 size=$2 port=$3
  shift 3
  RANK=$rank WORLD_SIZE=$size MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" >"$log${rank#0}" 2>&1 &
  pids+=($!)
}
some_port() { # nobody listens there, and the system gives it to nobody by itself
  local port
  while port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000)); (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}
by_hand() { # by_hand SIZE PROGRAM OPTIONS... - a job, all of whose workers we start
  local size=$1 rank port
  shift
  port=$(some_port)
  for ((rank = 0; rank < size; rank++)); do join $rank "$size" "$port" "$@"; done
}
all_end_well() {
  local p
  for p in "${pids[@]}"; do
    code_of "$p"
    [ "$code" = 0 ] || fail "expected each worker to exit with 0: $(cat "$log"*)"
  done
}
holds() { awk "BEGIN { exit !($1) }" || fail "expected $1"; }
ends_within() { # ends_within MS CODE PIDS... - all end in time; the first with that exit code
  local end=$(($(now_ms) + $1)) wanted=$2 p
  shift 2
  for p; do
    until ended "$p"; do
      [ "$(now_ms)" -lt "$end" ] || fail "expected process $p to have ended by now"
      sleep 0.01
    done
  done
  code_of "$1"
  [ "$code" = "$wanted" ] || fail "expected exit code $wanted, found $code"
}
refuses() { # refuses WORDS OPTIONS... - exit code 2 and one line with the words
  local words=$1 code=0
  shift
  "$program" "$@" >"$log" 2>&1 || code=$?
  [ $code = 2 ] || fail "$*: expected exit code 2, found $code"
  [ "$(wc -l <"$log")" = 1 ] || fail "$*: expected one line"
  says "$words" || fail "$*: expected '$words'"
}
full() { # full PROGRAM OPTIONS... - output that is lost is a failure, and the line about it is not
  local code=0
  "$@" >/dev/full 2>"$log" || code=$?
  [ $code = 1 ] && says 'standard output cannot be written' || fail "$1: expected lost output to be a failure, found $code"
}
