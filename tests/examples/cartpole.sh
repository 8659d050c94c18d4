#!/usr/bin/env bash
# cartpole.sh - runs the CartPole programs as their users do: cartpole.sh BATCH_PROGRAM MANUAL_PROGRAM STRAY_OBSERVER CASE
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 manual=$2 stray=$3 case=$4
source "$(dirname "$0")/common.sh"
steady=(--death-timeout 20000) # a machine that has other work makes nobody dead

rewards() { grep -o '"rewards":[^]]*' "$1"; } # rewards FILE
train() { # train FILE PROGRAM OPTIONS... - to its end, with a report
  local to=$1
  shift
  "$@" "${steady[@]}" --report "$to" >"$log" 2>&1 || fail "$*: expected it to train"
}
same_rewards() { # same_rewards FILE FILE
  [ -n "$(rewards "$1")" ] && [ "$(rewards "$1")" = "$(rewards "$2")" ] ||
    fail "expected the same rewards: $(rewards "$1") and $(rewards "$2")"
}

case_usage() {
  local one option
  for one in "$program" "$manual"; do
    "$one" --help >"$log" || fail "--help: expected exit code 0"
    for option in world-size rank master-addr master-port fabric on-death num-episode steps envs hidden dropout lr gamma \
      normalise running seed solve render load save report quiet; do
      says "^  --$option" || fail "$one --help: expected --$option"
    done
    says '^example: ' || fail "--help: expected an example"
  done
  ! says '--sweep runs' || fail "--help of the manual form: expected no sweep"
  refuses "unknown option '--episodes'" --episodes 1
  refuses "\-\-gamma is '1.5'" --gamma 1.5
  refuses "\-\-world-size is '1'" --world-size 1
  refuses "\-\-envs is '0'" --envs 0
  refuses "\-\-steps is 'many'" --steps many
  refuses "\-\-dropout is '1'" --dropout 1
  refuses "\-\-envs times --steps is" --envs 4096 --steps 5000
  refuses "\-\-batch or --no-batch, not both" --batch --no-batch
  refuses "\-\-out and --peer belong to --sweep" --out "$dir/figure"
  refuses "\-\-sweep runs both modes itself" --sweep --no-batch
  refuses "\-\-sweep runs both modes itself" --sweep --report "$dir/report"
  refuses "\-\-sweep shows no running reward" --sweep --running 0.5
  refuses "\-\-sweep times whole jobs" --sweep --on-death continue
  refuses "\-\-sweep needs an episode" --sweep --num-episode 0
  refuses "cannot be written" --sweep --out "$dir/none/figure"
  refuses "cannot be written" --report "$dir/none/report"
  refuses "\-\-rank needs a --world-size" --rank 1
  refuses "less than the world size" --rank 3 --world-size 3
  RANK=1 refuses "WORLD_SIZE is not set" --world-size 3
  RANK=0 WORLD_SIZE=2 refuses "the launcher started 2 workers" --world-size 3
  RANK=0 WORLD_SIZE=2 refuses "no worker of another one" --sweep
  WORLD_SIZE=3 refuses "WORLD_SIZE is '3', and RANK is not set"
  WORLD_SIZE=3 refuses "WORLD_SIZE is '3', and RANK is not set" --sweep
  for one in "$program" "$manual"; do
    program=$one refuses "\-\-threads is '257': expected a whole number from 1 to 256" --threads 257
    program=$one refuses_fabric 'this build has no "nosuch"' --fabric tcp,nosuch
    program=$one refuses_fabric 'it names tcp twice' --fabric tcp,tcp
    WEFT_FABRIC=sim program=$one refuses_fabric 'a simulated world'
    "$one" --num-episode 0 --quiet --world-size 2 --fabric verbs,tcp "${steady[@]}" >"$log" 2>&1 ||
      fail "expected a list of fabrics to be taken"
    WORLD_SIZE=4 WEFT_FABRIC=sim "$one" --num-episode 0 --quiet --world-size 2 --threads 256 --fabric tcp "${steady[@]}" \
      >"$log" 2>&1 || fail "expected options to count, and 256 threads to do"
  done
  program=$manual refuses "unknown option '--no-batch'" --no-batch
  local code=0
  "$program" --load "$dir/none" >"$log" 2>&1 || code=$?
  [ $code = 1 ] && says "$dir/none" || fail "expected a line about a policy that is not there"
}

# What is at the place of a report or a policy stays what it is; only a plain file is replaced.
case_outputs() {
  local quick=(--num-episode 1 --steps 20 --quiet "${steady[@]}") one option
  mkdir "$dir/folder" "$dir/folder.csv"
  for one in "$program" "$manual"; do
    for option in report save; do
      program=$one refuses "\-\-$option is '$dir/folder': that is a folder" "--$option" "$dir/folder"
      program=$one refuses "\-\-$option is '$log/report', which cannot be written" "--$option" "$log/report"
    done
  done
  refuses "\-\-out is '$dir/folder.csv': that is a folder" --sweep --out "$dir/folder"

  mkfifo "$dir/pipe"
  cat "$dir/pipe" >"$dir/piped" &
  pids+=($!)
  "$program" "${quick[@]}" --report "$dir/pipe" >"$log" 2>&1 || fail "expected it to write to a pipe"
  [ -p "$dir/pipe" ] || fail "expected the pipe to be left"
  wait "${pids[-1]}"
  holds "$(value observers "$dir/piped") == 1"
  cat "$dir/pipe" >"$dir/piped" &
  pids+=($!)
  "$program" "${quick[@]}" --save "$dir/pipe" >"$log" 2>&1 || fail "expected it to save into a pipe"
  [ -p "$dir/pipe" ] || fail "expected the pipe to be left"
  wait "${pids[-1]}"
  "$program" --num-episode 0 --quiet --load "$dir/piped" >"$log" 2>&1 || fail "expected the policy that came through the pipe"

  (umask 027 && exec "$program" "${quick[@]}" --report "$dir/new" --save "$dir/policy") >"$log" 2>&1 || fail "expected files"
  [ "$(stat -c %a "$dir/new" "$dir/policy" | tr '\n' ' ')" = '640 640 ' ] || fail "expected the mode that the umask leaves"
  chmod 604 "$dir/new" "$dir/policy"
  ln -s new "$dir/link"
  ln -s /proc/self/fd/1 "$dir/standard"
  "$program" "${quick[@]}" --report "$dir/link" --save "$dir/policy" --seed 7 >"$log" 2>&1 || fail "expected files"
  [ -L "$dir/link" ] && [ "$(value seed "$dir/new")" = 7 ] || fail "expected the file behind the link to be replaced"
  [ "$(stat -c %a "$dir/new" "$dir/policy" | tr '\n' ' ')" = '604 604 ' ] || fail "expected the mode of the old files"
  "$program" --num-episode 1 --steps 20 "${steady[@]}" --report "$dir/standard" >"$log" 2>&1 || fail "expected a report on standard output"
  says '^Episode 0' && says '"observers":' && says '^1 episodes of 20 steps' || fail "expected all of it on standard output"
  [ -L "$dir/standard" ] && [ "$(ls "$dir" | tr '\n' ' ')" = 'folder folder.csv link log new pipe piped policy standard ' ] ||
    fail "expected nothing beside them: $(ls "$dir")"

  { # a reader that goes away
    within 20 [ -e "$dir/closed" ]
    trap '' PIPE
    "$program" --num-episode 1 --steps 20 "${steady[@]}" 2>"$log"
    echo $? >"$dir/code"
  } | { exec <&- && touch "$dir/closed"; }
  [ "$(cat "$dir/code")" = 1 ] && says 'standard output cannot be written' || fail "expected lost output to be a failure"
}

case_closed() {
  local one
  for one in "$program" "$manual"; do
    closed "$one" --num-episode 2 --steps 20 "${steady[@]}"
    full "$one" --num-episode 2 --steps 20 "${steady[@]}"
  done
}

case_read_only() { # refused at the start, for one who is no superuser
  [ "$(id -u)" = 0 ] && ! command -v setpriv >/dev/null && exit 77
  local as=() code=0
  [ "$(id -u)" != 0 ] || as=(setpriv --reuid=65534 --clear-groups)
  chmod 777 "$dir"
  echo kept >"$dir/kept"
  chmod 444 "$dir/kept"
  "${as[@]}" test -x "$program" || exit 77
  "${as[@]}" "$program" --report "$dir/kept" >"$log" 2>&1 || code=$?
  [ $code = 2 ] && says "'$dir/kept', which cannot be written: Permission denied" || fail "expected it to be refused, found $code"
  [ "$(cat "$dir/kept")" = kept ] || fail "expected the file to be left"
}

# In both modes and by hand: the same rewards, step for step; with batching one evaluation a step, however many observers there are.
forms() { # forms WORLD_SIZE OPTIONS...
  local size=$1 d=$dir/$1
  shift
  mkdir -p "$d"
  train "$d/batch" "$program" --batch --world-size "$size" "$@"
  says '^Episode 0.*Last reward: .*Average reward: ' || fail "expected a line for each episode"
  train "$d/again" "$program" --world-size "$size" "$@"
  train "$d/plain" "$program" --no-batch --world-size "$size" "$@"
  train "$d/manual" "$manual" --world-size "$size" "$@"
  same_rewards "$d/batch" "$d/again"
  same_rewards "$d/batch" "$d/plain"
  same_rewards "$d/batch" "$d/manual"
  train "$d/other" "$program" --world-size "$size" --seed 7 "$@"
  [ "$(rewards "$d/batch")" != "$(rewards "$d/other")" ] || fail "expected another seed to give other rewards"
  local steps=$(($(value steps "$d/batch") * $(value episodes "$d/batch")))
  holds "$(value policy_evaluations "$d/batch") == $steps"
  holds "$(value policy_evaluations "$d/manual") == $steps"
  holds "$(value policy_evaluations "$d/plain") == $steps * ($size - 1)"
  holds "$(value batches "$d/batch") == $steps && $(value batch_mean "$d/batch") == $size - 1"
  holds "$(value us_per_step "$d/batch") > 0"
  holds "$(value observers "$d/batch") == $size - 1 && $(value observers_left "$d/batch") == $size - 1"
  [ "$(value mode "$d/batch") $(value mode "$d/plain") $(value mode "$d/manual")" = '"batch" "no-batch" "manual"' ] ||
    fail "expected each report to name its mode"
  local us
  us=$(value us_per_step "$d/batch")
  holds "$us * $steps / $(value seconds "$d/batch") / 1e6 > 0.999 && $us * $steps / $(value seconds "$d/batch") / 1e6 < 1.001"
}
case_two_workers() { forms 2 --num-episode 3; }
case_four_workers() { forms 4 --num-episode 3; }
case_many_poles() { forms 3 --num-episode 2 --steps 120 --envs 5 --hidden 33 --normalise --gamma 0.9; }
case_no_dropout() { forms 2 --num-episode 2 --steps 100 --dropout 0; }

case_by_hand() { # three workers that nobody of us started
  local rank p port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
  for rank in 0 1 2; do
    RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$program" --num-episode 2 "${steady[@]}" \
      --report "$dir/by_hand" >"$dir/log$rank" 2>&1 &
    pids+=($!)
  done
  for p in "${pids[@]}"; do
    code_of "$p"
    [ "$code" = 0 ] || fail "expected each worker to exit with 0: $(cat "$dir"/log?)"
  done
  train "$dir/spawned" "$program" --num-episode 2 --world-size 3
  same_rewards "$dir/by_hand" "$dir/spawned"
}

strays() { # strays WORDS HOW PROGRAM OPTIONS... - rank 2 of three goes wrong that way: the job ends with these words, and nobody stays
  local words=$1 how=$2 rank p port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
  shift 2
  pids=()
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" "${steady[@]}" >"$dir/log$rank" 2>&1 &
    pids+=($!)
  done
  RANK=2 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$stray" "$how" >"$dir/log2" 2>&1 &
  pids+=($!)
  for p in "${pids[@]}"; do
    code_of "$p"
    [ "$code" = 1 ] || fail "$how: expected each to end with 1, found $code: $(cat "$dir"/log?)"
  done
  for rank in 0 1 2; do
    grep -q "observer 2 fails: .*$words" "$dir/log$rank" || fail "$how: expected '$words' of rank $rank: $(cat "$dir"/log?)"
  done
}
case_stray() { # an observer that lives, and fails
  local mode
  for mode in --batch --no-batch; do
    strays 'the pole is gone' fails "$program" $mode --on-death continue
    strays 'the pole is gone' states "$program" $mode
  done
  strays 'no pole to be had' refuses "$program"
  strays 'shape' returns "$program"
  strays 'the pole is gone' states "$manual"
}

case_learns() { # a trained policy is saved, loaded, shown; and it balances longer than a fresh one
  ! grep -qE '__(asan|tsan)_init' "$program" || exit 77 # minutes, instrumented
  "$program" --solve --num-episode 60 --running 0.5 --save "$dir/policy" --report "$dir/report" --render "${steady[@]}" \
    >"$log" 2>&1
  [ $? = 0 ] && says '^solved after' || says 'not solved in 60 episodes' || fail "expected it to solve, or to say that it did not"
  holds "$(tail -n 2 "$dir/report" | grep -o '[0-9.]*' | tail -n 1) > 200" # the last running reward; at first it is below 20
  local stood
  "$program" --num-episode 0 --load "$dir/policy" --render >"$log" 2>&1 || fail "expected to see the policy"
  stood=$(grep -oE '(stands after|stood for) [0-9]+' "$log" | grep -oE '[0-9]+')
  holds "$stood > 200"
  "$program" --num-episode 0 --render >"$log" 2>&1 || fail "expected to see a fresh policy"
  says 'it stood for [0-9]* steps' || fail "expected a fresh policy to fall"
  holds "$stood > 2 * $(grep -oE 'stood for [0-9]+' "$log" | grep -oE '[0-9]+')"
}

case_sweep() {
  local small=(--sweep --world-size 3 --num-episode 1 --steps 20 --out "$dir/it's a figure")
  "$program" "${small[@]}" --peer none >"$log" 2>&1 || fail "expected a figure"
  [ "$(wc -l <"$dir/it's a figure.csv")" = 3 ] || fail "expected a head and two lines in the table"
  grep -qE '^3,2,[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,nan,nan,nan,nan$' "$dir/it's a figure.csv" || fail "expected numbers of both modes"
  says '^3, [0-9.]*, [0-9.]*$' || fail "expected the tutorial's line"
  if command -v gnuplot >/dev/null; then
    grep -q '<svg' "$dir/it's a figure.svg" || fail "expected a figure"
    grep -q 'seconds, from start to end' "$dir/it's a figure.svg" && grep -q 'microseconds a step' "$dir/it's a figure.svg" ||
      fail "expected both panels"
    [ -s "$dir/it's a figure.png" ] || fail "expected a figure"
  else
    says 'gnuplot is not installed' || fail "expected a word about gnuplot"
  fi
  "$program" "${small[@]}" --peer "$program" >"$log" 2>&1 || fail "expected a figure with a peer"
  grep -qE '^2,1(,[0-9.]+){8}$' "$dir/it's a figure.csv" || fail "expected numbers of the peer"
  ! "$program" "${small[@]}" --peer false >"$log" 2>&1 || fail "expected a peer that fails to end it"
  says "'false': a run failed with exit code 1" || fail "expected it to say so"
  local peer
  for peer in true 'echo hi'; do
    ! "$program" "${small[@]}" --peer "$peer" >"$log" 2>&1 || fail "expected a peer without a report to end it"
    says "'$peer' is no program for this figure: it left no report" || fail "expected it to say so"
  done
  WEFT_FABRIC=none "$program" "${small[@]}" --peer none --fabric tcp >"$log" 2>&1 || fail "expected the runs to be given the fabric"
  echo 'tr "\0" "\n" </proc/$$/cmdline >"'"$dir"'/given"; echo "OMP_NUM_THREADS=$OMP_NUM_THREADS" >>"'"$dir"'/given"; exec "$@"' >"$dir/peer.sh"
  "$program" "${small[@]}" --threads 3 --peer "sh '$dir/peer.sh' '$program'" >"$log" 2>&1 || fail "expected a figure"
  grep -qx 'OMP_NUM_THREADS=3' "$dir/given" && grep -qx -e '--steps=20' "$dir/given" || fail "expected the peer to be given them"
  [ -z "$(find "$dir" -name '*report*')" ] || fail "expected no report to be left"
}

# ---- Ends ------------------------------------------------------------------------------------------------------------

start() { # start PROGRAM OPTIONS... - a job in the background, in its third episode; sets job and observers
  "$@" --num-episode 100000 --world-size 4 >"$log" 2>&1 &
  job=$!
  pids+=("$job")
  within 300 says '^Episode 1' || fail "expected episodes"
  read -ra observers <<<"$(children "$job")"
  pids+=("${observers[@]}")
}
goes_on() { # more episodes are shown than before
  local lines
  lines=$(grep -c '^Episode' "$log")
  within 20 eval '[ "$(grep -c ^Episode "$log")" -gt '"$((lines + 1))"' ]' || fail "expected episodes to go on"
}
killed_stop() {
  start "$@" "${steady[@]}"
  kill -KILL "${observers[1]}"
  ends_within 20000 1 "$job" "${observers[@]}"
  says 'agent: observer 2 is dead' || fail "expected the agent to name it"
  says 'observer [13]: the agent ended the job: observer 2 is dead' || fail "expected the observers to name it"
}
case_killed_stop() {
  killed_stop "$program"
  killed_stop "$program" --no-batch
  killed_stop "$manual"
}
case_lost() { # an observer is lost, the others finish: the report and the closing line say so
  local one
  for one in "$program" "$manual"; do
    start "$one" "${steady[@]}" --on-death continue --save "$dir/policy" --report "$dir/report"
    kill -KILL "${observers[1]}"
    within 20 says 'observer 2 is dead.*going on with 2' || fail "expected news of the death"
    goes_on
    kill -INT "$job"
    ends_within 20000 130 "$job" "${observers[@]}"
    holds "$(value observers "$dir/report") == 3 && $(value observers_left "$dir/report") == 2"
    grep -q '"lost_observers":[[:space:]]*\[2\]' "$dir/report" || fail "expected the report to name it"
    says ' 3 observers (2 at the end) with ' || fail "expected the closing line to say so"
  done
}
killed_continue() {
  start "$@" "${steady[@]}" --on-death continue
  kill -KILL "${observers[1]}"
  within 20 says 'observer 2 is dead.*going on with 2' || fail "expected news of the death"
  goes_on
  kill -KILL "${observers[0]}" "${observers[2]}"
  ends_within 20000 1 "$job"
  says 'no observer is left' || fail "expected an end"
}
case_killed_continue() {
  killed_continue "$program"
  killed_continue "$program" --no-batch
  killed_continue "$manual"
}
case_stopped_continue() {
  start "$program" --on-death continue
  kill -STOP "${observers[1]}"
  within 20 says 'observer 2 is dead.*going on with 2' || fail "expected news of the death"
  goes_on
  kill -CONT "${observers[1]}"
  within 20 says 'observer 2: this observer was declared dead, and is out of the job' || fail "expected it to be told"
  within 20 ended "${observers[1]}" || fail "expected it to end"
  goes_on
}
case_agent_killed() {
  start "$program"
  kill -KILL "$job"
  ends_within 20000 137 "$job" "${observers[@]}"
  says 'observer 1: the agent is gone' && says 'observer 3: the agent is gone' || fail "expected observers to say so"
}
interrupted() {
  start "$@"
  kill -TERM "$job"
  ends_within 20000 130 "$job" "${observers[@]}"
  says 'agent: interrupted' || fail "expected it to say so"
}
case_interrupted_learning() { # what has been learned is saved
  local one
  for one in "$program" "$manual"; do
    rm -f "$dir/policy" "$dir/report"
    start "$one" --save "$dir/policy" --report "$dir/report" "${steady[@]}"
    kill -INT "$job"
    ends_within 20000 130 "$job" "${observers[@]}"
    says 'agent: interrupted' || fail "expected it to say so"
    grep -q '"interrupted":.*true' "$dir/report" || fail "expected the report to say so"
    holds "$(value episodes "$dir/report") >= 2"
    "$one" --num-episode 0 --quiet --load "$dir/policy" >"$log" 2>&1 || fail "expected a policy"
  done
}
starts() { # the program at $1 has begun, and SIGINT waits or is caught
  cmp -s "/proc/$1/exe" "$program" || return 1
  grep -qE '^Sig(Blk|Cgt):.*[2367abef]$' "/proc/$1/status"
}
case_interrupted_start() { # at any moment of the start: at once, with the same end
  local n
  for n in 0 1 2 3 4 5 6 8 10 15 20 25 30; do
    "$program" --num-episode 100000 --world-size 3 >"$log" 2>&1 &
    pids+=($!)
    within 20 starts "$!" || fail "expected it to begin"
    sleep "$(printf '0.%02d' "$n")"
    kill -INT "$!"
    ends_within 20000 130 "$!"
    says 'interrupted' || fail "expected it to say so, after $n hundredths of a second"
  done
}
sweep_runs() { # its run has processes of its own
  local run
  for run in $(children "$job"); do
    [ -z "$(children "$run")" ] || { read -ra observers <<<"$run $(children "$run")"; return 0; }
  done
  return 1
}
case_interrupted_sweep() { # when nobody but the program itself gets the signal
  local signal
  for signal in INT TERM; do
    "$program" --sweep --peer none --num-episode 100000 --out "$dir/figure" >"$log" 2>&1 &
    job=$!
    pids+=("$job")
    within 20 sweep_runs || fail "expected a run"
    kill "-$signal" "$job"
    ends_within 20000 130 "$job" "${observers[@]}"
    says 'agent: interrupted' || fail "expected it to say so"
    [ "$(ls "$dir" | tr '\n' ' ')" = 'figure.csv log ' ] || fail "expected nothing else to be left: $(ls "$dir")"
  done
}
case_interrupted() { # the agent, which has no thread but this one, waits for observers that end: whatever comes of that has to wake it
  local n
  for n in 1 2 3; do
    interrupted "$program"
    interrupted "$manual"
  done
}

"case_$case" || fail "it fails"
