# consume.sh - what both consume_*.sh share: a program runs against the installed tree, and says the right thing.

# run_consumer PROGRAM FORM PREFIX
run_consumer() {
  local said linked=static
  LD_LIBRARY_PATH=$(dirname "$(find "$3" -name libweft.so)")
  export LD_LIBRARY_PATH
  said=$("$1")
  if [ "$said" != 'sum 499500' ]; then
    echo "the program said '$said', not sum 499500"
    return 1
  fi
  if readelf -d "$1" | grep -q "NEEDED.*libweft\.so"; then
    linked=shared
  fi
  if [ "$linked" != "$2" ]; then
    echo "the program is linked $linked, not $2"
    return 1
  fi
}
