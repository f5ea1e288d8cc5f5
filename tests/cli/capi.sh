#!/usr/bin/env bash
# The installed C interface: a C program built by pkg-config, and by CMake, against the installed
# tree alone, moves bytes between two processes.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
[ -z "${MC_SANITIZE:-}" ] || skip "the library of a sanitizer build needs its runtime preloaded"

tree=$T/tree
cmake --install "$MC_BIN" --prefix "$tree" >"$T/install.log" 2>&1 || die "install: $(tail -3 "$T/install.log")"
# Only the C headers are installed, and only mc_* is exported.
[ "$(cd "$tree/include" && find . -type f | sort | xargs)" = "./mc/store.h ./mc/transfer.h" ] ||
  die "headers: $(find "$tree/include")"
others=$(nm -D --defined-only "$tree/lib/libmc.so" | awk '$3 !~ /^mc_/ { print $3 }')
[ -z "$others" ] || die "exported besides mc_*: $others"

example=$tree/share/mc/example
export PKG_CONFIG_PATH=$tree/lib/pkgconfig
built() { # PROGRAM OUTPUT
  # shellcheck disable=SC2046  # flags are words
  cc -std=c11 -Wall -Wextra -Werror "$example/$1.c" -o "$2" \
    $(pkg-config --cflags --libs mc) -Wl,-rpath,"$tree/lib" || die "pkg-config build of $1"
}
built exchange "$T/by-pkg-config"
built connector "$T/connector"
cmake -S "$example" -B "$T/by-cmake" -DCMAKE_PREFIX_PATH="$tree" >"$T/cmake.log" 2>&1 &&
  cmake --build "$T/by-cmake" >>"$T/cmake.log" 2>&1 || die "CMake build: $(tail -5 "$T/cmake.log")"

mkfifo "$T/stdin" "$T/stdout"
"$T/by-pkg-config" serve <"$T/stdin" >"$T/stdout" &
server=$!
exec 7>"$T/stdin" 8<"$T/stdout"
read -r -t 60 segment <&8 || die "the server printed no address"
for program in "$T/by-pkg-config" "$T/by-cmake/exchange"; do
  out=$("$program" visit "$segment") || die "$program: exit $?"
  [ "$out" = "1048576 bytes there and back" ] || die "$program: $out"
done
exec 7>&-
wait "$server" || die "the server: exit $?"
# A peer that is not there: a message and an exit code, no hang.
if out=$("$T/by-pkg-config" visit 127.0.0.1:9 2>&1); then die "no peer: $out"; fi
[[ $out == "exchange: open: "* ]] || die "no peer: $out"

# The store: the calls of an engine's connector, against a master and a node.
here=(--listen 127.0.0.1:0 --http 127.0.0.1:0)
launch master "$MC_BIN/mc-master" "${here[@]}"
master=$(address master)
launch store "$MC_BIN/mc-store" serve --size 16MiB --master "$master" "${here[@]}"
expect 0 "$T/connector" "$master"
[ "$(cat "$T/out")" = "absent before, 600000 bytes after, a prefix of 1" ] || die "$(cat "$T/out")"
expect 0 "$T/by-cmake/connector" "$master"
[ "$(cat "$T/out")" = "there before, 600000 bytes after, a prefix of 1" ] || die "$(cat "$T/out")"
expect 0 "$MC_BIN/mc-store" get "model@2@0@chunk-17" --master "$master"
[ "$(stat -c %s "$T/out")" = 600000 ] || die "mc-store reads something else"
expect 1 "$T/connector" 127.0.0.1:9
grep -q "connector: exists: .*127.0.0.1:9" "$T/err" || die "no master: $(cat "$T/err")"
