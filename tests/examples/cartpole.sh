#!/usr/bin/env bash
# cartpole.sh - runs the CartPole program as its users do: cartpole.sh PROGRAM STRAY_OBSERVER CASE
#
# Every case ends with all its processes gone. Exits 1 with a line that says what was expected and what was found.
set -uo pipefail
program=$1 stray=$2 case=$3
source "$(dirname "$0")/common.sh"
export WEFT_DEATH_MS=600000 # silence makes nobody dead, as the machine may be busy. The end of a process is noticed at once

rewards() { grep '^Episode ' "$1"; } # rewards FILE
train() { # train FILE PROGRAM OPTIONS... - to its end; FILE gets what it prints
  local to=$1
  shift
  "$@" >"$to" 2>"$log" || fail "$*: expected it to train"
}
same_rewards() { # same_rewards FILE FILE
  [ -n "$(rewards "$1")" ] && [ "$(rewards "$1")" = "$(rewards "$2")" ] ||
    fail "expected the same rewards: $(rewards "$1") and $(rewards "$2")"
}

case_usage() {
  local option
  "$program" --help >"$log" || fail "--help: expected exit code 0"
  for option in world-size batch no-batch num-episode steps envs hidden device seed solve quiet; do
    says "^  --$option" || fail "--help: expected --$option"
  done
  says '^example: ' || fail "--help: expected an example"
  refuses "unknown option '--episodes'" --episodes 1
  refuses "\-\-world-size is '1'" --world-size 1
  refuses "\-\-envs is '0'" --envs 0
  refuses "\-\-steps is 'many'" --steps many
  refuses "\-\-envs times --steps is" --envs 4096 --steps 5000
  refuses "\-\-batch or --no-batch, not both" --batch --no-batch
  RANK=1 refuses "RANK and WORLD_SIZE: expected two numbers"
  RANK=0 WORLD_SIZE=1 refuses "WORLD_SIZE is '1': expected at least 2"
}
case_full() { full "$program" --num-episode 2 --steps 20; }

# In both modes: the same rewards, step for step; with batching one evaluation a step, however many observers there are.
forms() { # forms WORLD_SIZE OPTIONS...
  local size=$1 d=$dir/$1
  shift
  mkdir -p "$d"
  train "$d/batch" "$program" --batch --world-size "$size" "$@"
  rewards "$d/batch" | grep -q '^Episode 0.*Last reward: .*Average reward: ' || fail "expected a line for each episode"
  train "$d/again" "$program" --world-size "$size" "$@"
  train "$d/plain" "$program" --no-batch --world-size "$size" "$@"
  same_rewards "$d/batch" "$d/again"
  same_rewards "$d/batch" "$d/plain"
  train "$d/other" "$program" --world-size "$size" --seed 7 "$@"
  [ "$(rewards "$d/batch")" != "$(rewards "$d/other")" ] || fail "expected another seed to give other rewards"
  local steps=$(($(value "steps of each" "$d/batch") * $(value "episodes" "$d/batch")))
  holds "$(value "policy evaluations" "$d/batch") == $steps"
  holds "$(value "policy evaluations" "$d/plain") == $steps * ($size - 1)"
  holds "$(value "batches" "$d/batch") == $steps && $(value "calls of a batch" "$d/batch") == $size - 1"
  holds "$(value "us a step" "$d/batch") > 0"
  holds "$(value "observers" "$d/batch") == $size - 1 && $(value "at the end" "$d/batch") == $size - 1"
  local us
  us=$(value "us a step" "$d/batch")
  holds "($us * $steps / $(value "seconds" "$d/batch") / 1e6 - 1) ^ 2 < 0.02 ^ 2"
}
case_two_workers() { forms 2 --num-episode 3; }
case_four_workers() { forms 4 --num-episode 3; }
case_many_poles() { forms 3 --num-episode 2 --steps 120 --envs 5 --hidden 33; }

case_by_hand() { # three workers that nobody of us started
  train "$dir/spawned" "$program" --num-episode 2 --world-size 3
  by_hand 3 "$program" --num-episode 2
  all_end_well
  same_rewards "$log" "$dir/spawned"
}

strays() { # strays WORDS HOW PROGRAM OPTIONS... - rank 2 of three goes wrong that way: the agent ends with these words, and nobody stays
  local words=$1 how=$2 port
  shift 2
  pids=()
  port=$(some_port)
  join 0 3 "$port" "$@"
  join 1 3 "$port" "$@"
  join 2 3 "$port" "$stray" "$how"
  ends_within 300000 1 "${pids[@]}"
  says "observer 2 fails: .*$words" || fail "$how: expected '$words' of the agent: $(cat "$log"*)"
}
case_stray() { # an observer that lives, and fails
  local mode
  for mode in --batch --no-batch; do
    strays 'the pole is gone' fails "$program" $mode
    strays 'the pole is gone' states "$program" $mode
  done
  strays 'shape' returns "$program"
}

case_learns() { # the poles of later episodes stand longer
  ! grep -qE '__(asan|tsan)_init' "$program" || exit 77 # minutes, instrumented
  "$program" --solve --num-episode 60 >"$log" 2>&1
  says 'not solved in 60 episodes' || fail "expected it to say that 60 episodes are too few"
  local last
  last=$(grep '^Episode 5[5-9]' "$log" | sed 's/.*Last reward: \([0-9.]*\).*/\1/' | awk '{ sum += $1 } END { print sum / NR }')
  holds "$last > 200" # at first it is below 30
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
  within 300 eval '[ "$(grep -c ^Episode "$log")" -gt '"$((lines + 1))"' ]' || fail "expected episodes to go on"
}
killed() {
  start "$@"
  kill -KILL "${observers[1]}"
  within 300 says 'observer 2 is dead' && within 300 says 'going on with 2' || fail "expected news of the death"
  goes_on
  kill -KILL "${observers[0]}" "${observers[2]}"
  ends_within 300000 1 "$job"
  says 'no observer is left' || fail "expected an end"
}
case_killed() {
  killed "$program"
  killed "$program" --no-batch
}
case_stopped() {
  WEFT_DEATH_MS=3000 start "$program"
  kill -STOP "${observers[1]}"
  within 300 says 'observer 2 is dead' && within 300 says 'going on with 2' || fail "expected news of the death"
  goes_on
  kill -CONT "${observers[1]}"
  within 300 says 'observer 2: declared dead, and out of the job' || fail "expected it to be told"
  within 300 ended "${observers[1]}" || fail "expected it to end"
  goes_on
}
case_agent_killed() {
  start "$program"
  kill -KILL "$job"
  ends_within 300000 137 "$job" "${observers[@]}"
}
interrupted() {
  start "$@"
  kill -TERM "$job"
  ends_within 300000 130 "$job" "${observers[@]}"
  says 'agent: interrupted' || fail "expected it to say so"
}
case_interrupted() { # the agent, which has no thread but this one, waits for observers that end: whatever comes of that has to wake it
  local n
  for n in 1 2 3; do
    interrupted "$program"
  done
}

"case_$case" || fail "it fails"
