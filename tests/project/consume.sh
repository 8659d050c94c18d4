# consume.sh - what both consume_*.sh share: a program runs against the installed tree, says the right thing, and needs no more than it
# should.

# run_consumer PROGRAM PART FORM PREFIX
run_consumer() {
  local said expected linked=static needed
  LD_LIBRARY_PATH=$(dirname "$(find "$4" -name libweft_rpc.so)")
  export LD_LIBRARY_PATH
  said=$("$1")
  expected=PEER_DEAD
  [ "$2" = weft ] || expected='sum 499500'
  if [ "$said" != "$expected" ]; then
    echo "the program said '$said', not $expected"
    return 1
  fi
  if readelf -d "$1" | grep -q "NEEDED.*lib$2\.so"; then
    linked=shared
  fi
  if [ "$linked" != "$3" ]; then
    echo "the program is linked $linked, not $3"
    return 1
  fi
  needed=$(ldd "$1")
  if [ "$2" = weft_rpc ] && grep -E 'dnnl|openblas|libweft\.so' <<<"$needed"; then
    echo "a program of the component rpc needs the above"
    return 1
  fi
  grep -q libfabric <<<"$needed" || { echo "ldd names no libfabric: is this the program?"; return 1; }
}
