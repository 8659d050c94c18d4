# consume.sh - what both consume_*.sh share: a program runs against the installed tree and says the right thing.

# run_consumer PROGRAM FORM PREFIX
run_consumer() {
  local said
  said=$(LD_LIBRARY_PATH=$(dirname "$(find "$3" -name libweft.so)") "$1")
  if [ "$said" != PEER_DEAD ]; then
    echo "the program said '$said', not PEER_DEAD"
    return 1
  fi
  local linked=static
  if readelf -d "$1" | grep -q 'NEEDED.*libweft'; then
    linked=shared
  fi
  if [ "$linked" != "$2" ]; then
    echo "the program is linked $linked, not $2"
    return 1
  fi
}
