#!/usr/bin/env bash
# The installed C interface: a C program built by pkg-config, and by CMake, against the installed
# tree alone, moves bytes between two processes.
. "$(dirname "$0")/../common.inc"
[ -z "${MC_SANITIZE:-}" ] || skip "the library of a sanitizer build needs its runtime preloaded"

tree=$T/tree
cmake --install "$MC_BIN" --prefix "$tree" >"$T/install.log" 2>&1 || die "install: $(tail -3 "$T/install.log")"
# Only the C header is installed, and only mc_* is exported.
[ "$(cd "$tree/include" && find . -type f)" = ./mc/transfer.h ] || die "headers: $(find "$tree/include")"
others=$(nm -D --defined-only "$tree/lib/libmc.so" | awk '$3 !~ /^mc_/ { print $3 }')
[ -z "$others" ] || die "exported besides mc_*: $others"

example=$tree/share/mc/example
export PKG_CONFIG_PATH=$tree/lib/pkgconfig
# shellcheck disable=SC2046  # flags are words
cc -std=c11 -Wall -Wextra -Werror "$example/exchange.c" -o "$T/by-pkg-config" \
  $(pkg-config --cflags --libs mc) -Wl,-rpath,"$tree/lib" || die "pkg-config build"
cmake -S "$example" -B "$T/by-cmake" -DCMAKE_PREFIX_PATH="$tree" >"$T/cmake.log" 2>&1 &&
  cmake --build "$T/by-cmake" >>"$T/cmake.log" 2>&1 || die "CMake build: $(tail -5 "$T/cmake.log")"

mkfifo "$T/stdin" "$T/stdout"
"$T/by-pkg-config" serve <"$T/stdin" >"$T/stdout" &
server=$!
exec 7>"$T/stdin" 8<"$T/stdout"
read -r -t 10 address <&8 || die "the server printed no address"
for program in "$T/by-pkg-config" "$T/by-cmake/exchange"; do
  out=$("$program" visit "$address") || die "$program: exit $?"
  [ "$out" = "1048576 bytes there and back" ] || die "$program: $out"
done
exec 7>&-
wait "$server" || die "the server: exit $?"
# A peer that is not there: a message and an exit code, no hang.
if out=$("$T/by-pkg-config" visit 127.0.0.1:9 2>&1); then die "no peer: $out"; fi
[[ $out == "exchange: open: "* ]] || die "no peer: $out"
