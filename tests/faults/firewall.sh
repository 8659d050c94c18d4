#!/usr/bin/env bash
# firewall.sh SEVERED - the sentences about closed ports (severed.c), in a network of this process's own: routing rules reject or
# drop what is sent to a port or address. Needs no root. Without user namespaces or iproute2 it exits with 77. tools/long.d/firewalls
# has whole jobs behind real firewalls.
set -uo pipefail
skip() { echo "firewall: skipped: $*"; exit 77; }
if [ "${2-}" != inside ]; then
  command -v ip >/dev/null || skip "there is no ip (iproute2)"
  unshare -rn true 2>/dev/null || skip "no user namespaces with a network of their own"
  exec unshare -rn "$0" "$1" inside
fi

severed=$1 logs=$(mktemp -d) failed=0
ulimit -c 0
trap 'rm -rf "$logs"' EXIT
export WEFT_FABRIC=tcp WEFT_SECRET_FILE=$logs/secret TEST_RENDEZVOUS_MS=600 TEST_BOUND_MS=300
(umask 077 && head -c 32 /dev/urandom >"$WEFT_SECRET_FILE")
# The rules for ports come before the one for local addresses.
ip link set lo up && ip addr add 198.51.100.1/32 dev lo && ip route add 198.51.100.7/32 dev lo &&
  ip route add unreachable 198.51.100.8 && ip rule add pref 100 lookup local && ip rule del pref 0 &&
  ip rule add pref 10 ipproto tcp dport 41000-41039 prohibit && ip rule add pref 11 ipproto tcp dport 29501 prohibit ||
  skip "no rules for ports in a network namespace"

# worker RANK ADDRESS PORT - its data ports are rejected, its output is in the file RANK.PORT
worker() {
  (WEFT_PORTS=$((41000 + 10 * $1))-$((41009 + 10 * $1)) timeout 20 "$severed" "$1" 2 "$2" "$3" 1 >"$logs/$1.$3" 2>&1
    exit 0) 2>/dev/null # severed aborts
}
for rank in 0 1; do worker $rank 198.51.100.1 29500 & done # a job whose store can be reached
worker 1 198.51.100.1 29501 &                              # its port is rejected
worker 1 198.51.100.7 29502 &                              # what is sent to this address is dropped
worker 1 198.51.100.8 29503 &                              # no route leads there
worker 1 198.51.100.1 29504 &                              # nobody listens
wait

says() { # FILE SENTENCE
  grep -q -- "$2" "$logs"/$1 || { echo "firewall: not said: $2"; cat "$logs"/$1; failed=1; }
}
says '[01].29500' 'worker [01] cannot be reached: .* the last attempt to connect to 198.51.100.1:410[01]0: Permission denied; if a firewall .*WEFT_PORTS.*WEFT_IFACE'
setting="(MASTER_ADDR, MASTER_PORT)"
closed() { # ADDRESS PORT REASON
  says "1.$2" "rank 0's store on $1 port $2 could not be reached within 600 ms: $3.*$setting"
}
closed 198.51.100.1 29501 "Permission denied; a firewall rejects the port"
closed 198.51.100.7 29502 "Connection timed out; .* a firewall drops what is sent to the port"
says 1.29503 "no route to '198.51.100.8' (No route to host): .*MASTER_ADDR.*WEFT_IFACE"
says 1.29501 "waiting for rank 0's store on 198.51.100.1 port 29501: Permission denied; .*$setting"
closed 198.51.100.1 29504 "Connection refused; rank 0 does not listen there, or a firewall rejects the port"
exit $failed
