#!/usr/bin/env bash
# Each rule of scripts/tidy.py finds what it is for, in a small tree that is else in order.
. "$(dirname "$0")/../common.inc"
ROOT=$T/tree

write() { # FILE LINE...
  mkdir -p "$(dirname "$ROOT/$1")"
  printf '%s\n' "${@:2}" >"$ROOT/$1"
}

tree() { # three layers, one of them with sub-folders
  rm -rf "$ROOT"
  write lib/layers.txt '# a comment' 'base: | values' 'io: base | sockets' 'pool: base | objects' \
    'pool/core!: | decides' 'pool/.: pool/core | the face' 'cmd: io pool | programs'
  write scripts/exceptions.txt '# none'
  write lib/base/time.h '#pragma once'
  write lib/base/units.h '#pragma once'
  write lib/io/file.h '#pragma once' '#include "base/units.h"'
  write lib/pool/pool.h '#pragma once' '#include "pool/core/table.h"'
  write lib/pool/core/table.h '#pragma once' '#include "base/time.h"'
  write lib/pool/core/table.cc '#include "pool/core/table.h"'
  write cmd/main.cc '#include "io/file.h"' '#include "pool/pool.h"'
}

layer() { sed -i "s#^$1!\?:.*#$2#" "$ROOT/lib/layers.txt"; } # NAME LINE
members() { # FILE COUNT: a class of so many
  write "$1" '#pragma once' 'class Wide : public Base<int> {' ' public:' \
    '  Wide() : a_{1}, b_(2) {}' \
    '  bool operator==(const Wide& other) const { return a_ == other.a_; }' \
    '  template <class T = std::vector<int>>' \
    '  void add(T value, int times = 3) { if (value) add(value, times); }' \
    '  enum class Kind : uint8_t { kOne, kTwo };' '  struct Inner { int x, y; };' \
    '  Wide(const Wide&) = delete;' '  friend class Other;' '  using Map = std::map<int, int>;' \
    ' private:' '  int a_ = 0, b_{1};' \
    "$(seq -f '  int m%g_ MC_GUARDED_BY(mutex_) = 0;  // class {' "$(($2 - 4))")" '};'
}

finds() { # WHAT: tidy fails, and this is all that it says
  expect 1 python3 "$MC_SOURCE/scripts/tidy.py" "$ROOT"
  [ "$(wc -l <"$T/out")" = 1 ] || { cat "$T/out" >&2; die "more than one fault, for: $1"; }
  grep -qF "$1" "$T/out" || { cat "$T/out" >&2; die "did not find: $1"; }
  tree
}
passes() {
  expect 0 python3 "$MC_SOURCE/scripts/tidy.py" "$ROOT"
  tree
}

tree
passes

# Includes, by folder and sub-folder.
write lib/base/time.h '#pragma once' '#include "io/file.h"'
finds 'lib/base/time.h:2: base may not include io'
write lib/io/file.h '#pragma once' '#include "base/time.h"' '#include "pool/pool.h"'
finds 'lib/io/file.h:3: io may not include pool/.'
write lib/pool/core/table.h '#pragma once' '#include "base/time.h"' '#include "pool/pool.h"'
write lib/pool/pool.h '#pragma once'
layer pool/. 'pool/.: | the face'
finds 'lib/pool/core/table.h:3: pool/core may not include pool/.'
write lib/pool/pool.h '#pragma once' '#include "pool/core/lost/x.h"' '#include "pool/core/table.h"'
finds 'pool/core/lost/x.h: no such folder'

# The table allows what is used, and no more.
layer cmd 'cmd: base io pool | programs'
finds 'lib/layers.txt:7: cmd never includes base'
layer pool/core 'pool/core!: base | decides'
finds 'pool/core never includes base'
write lib/pool/new/x.h '#pragma once'
finds 'pool/new: this folder has no line in lib/layers.txt'
write lib/other/x.h '#pragma once'
finds 'other: this folder has no line'
sed -i '$ a pool/gone: | nothing' "$ROOT/lib/layers.txt"
finds 'pool/gone has no source file'
layer base 'base: io | values'
finds 'lib/layers.txt:2: io has no line above this one, of base'
layer base 'base | values'
expect 1 python3 "$MC_SOURCE/scripts/tidy.py" "$ROOT"
grep -q 'lib/layers.txt:2: not of the form' "$T/out" || die 'a line without a colon passed'
tree

# Sizes.
for n in {1..28}; do write "lib/base/f$n.h" '#pragma once'; done
passes
for n in {1..29}; do write "lib/base/f$n.h" '#pragma once'; done
finds 'lib/base: 31 files, 30 at most'
members lib/base/wide.h 40
passes
members lib/base/wide.h 41
finds 'lib/base/wide.h:2: Wide has 41 members, 40 at most'
members lib/base/wide.h 41
write scripts/exceptions.txt 'class base/wide.h Wide 41'
passes
members lib/base/wide.h 42
write scripts/exceptions.txt 'class base/wide.h Wide 41'
finds 'Wide has 42 members, 41 at most'
members lib/base/wide.h 41
write scripts/exceptions.txt 'class base/wide.h Wide 42'
finds 'exceptions.txt:1: Wide has 41 members now: lower the number'
members lib/base/wide.h 40
write scripts/exceptions.txt 'class base/wide.h Wide 41'
finds 'Wide has 40 members now: take the line away'
write scripts/exceptions.txt 'class base/wide.h Wide 41'
finds 'base/wide.h has no class Wide'
write lib/base/long.cc 'void f() {' "$(seq -f '  g(%g);' 69)" '}'
finds 'lib/base/long.cc:1: function of 71 lines'
write lib/base/long.cc "$(seq -f '// %g' 601)"
finds 'lib/base/long.cc: 601 lines'
write lib/python/mc/long.py '"""What it is."""' 'def f() -> None:' '    """Counts."""' "$(seq -f '    %g' 69)"
finds 'lib/python/mc/long.py:2: function of 71 lines'
write lib/python/mc/typed.py '"""What it is."""' 'def _f(a: int, b) -> None:' '    pass'
finds 'lib/python/mc/typed.py:2: _f: b has no type'
write lib/python/mc/said.py '"""What it is."""' 'class C:' '    """A class."""' '    def f(self) -> None:' '        pass'
finds 'lib/python/mc/said.py:4: f: no docstring'
write lib/base/long.cc "// $(seq -s '' 60)"
finds 'lib/base/long.cc:1: 114 columns'
write lib/base/bare.h 'int x;'
finds 'lib/base/bare.h: no #pragma once'

# Purity: a folder that is marked, and a header that says so with what belongs to it.
write lib/pool/core/table.cc '#include "pool/core/table.h"' '#include "base/mutex.h"'
write lib/base/mutex.h '#pragma once'
finds 'lib/pool/core/table.cc:2: pool/core is a pure folder, yet this includes base/mutex.h'
write lib/pool/core/table.cc '#include "pool/core/table.h"' 'std::atomic<int> n;  // std::atomic'
finds 'lib/pool/core/table.cc:2: pool/core is a pure folder, yet this says std::atomic'
write lib/pool/core/table.cc '#include "pool/core/table.h"' '// a Clock' 'const char* x = "Clock";'
passes
write lib/io/plan.h '// What to do next.' '//' '// Thread: any. Pure.' '#pragma once'
write lib/io/plan_more.cc '#include <mutex>'
write lib/io/planner.cc '#include <mutex>'
finds 'lib/io/plan_more.cc:1: plan.h says Pure, yet this includes mutex'
write lib/io/plan.h '// Pure.' '#pragma once' '#include "io/file.h"'
finds 'lib/io/plan.h:3: plan.h says Pure, yet this includes io/file.h'
write lib/io/plan.h '// Pure.' '#pragma once' '#include "io/address.h"'
write lib/io/address.h '// Pure.' '#pragma once'
passes

# Circles of units; an X_impl.h is of X.
circle() {
  write lib/base/a.h '#pragma once'
  write lib/base/a.cc '#include "base/a.h"' '#include "base/b.h"'
  write lib/base/b.h '#pragma once' '#include "base/a.h"'
}
circle
finds 'these include each other in a circle: base/a base/b'
circle
write scripts/exceptions.txt 'circle base/a base/b'
passes
write scripts/exceptions.txt 'circle base/a base/b'
finds 'exceptions.txt:1: this circle is no more'
write lib/base/a.h '#pragma once'
write lib/base/a_impl.h '#pragma once' '#include "base/a.h"'
write lib/base/a.cc '#include "base/a_impl.h"'
passes

# What is banned, and what is heavy.
write lib/base/a.cc 'auto t = steady_clock::now();'
finds 'lib/base/a.cc:1: steady_clock::now: take Time now'
write lib/base/a.cc '// TODO: more'
finds 'lib/base/a.cc:1: TODO: finish it'
write lib/base/a.cc '#include <zmq.h>'
finds 'zmq.h is heavy'
write lib/base/a.cc '// never getenv' '#include <vector>'
passes

# Words that do not come back, also in parts of names; and waits in scripts.
write lib/base/time.h '#pragma once' '// Somebody waits.'
finds 'lib/base/time.h:2: "somebody"'
write lib/base/time.h '#pragma once' 'int newGraves_ = 0;'
finds 'lib/base/time.h:2: "graves"'
write tests/net/wait.sh 'sleep 1'
finds 'tests/net/wait.sh:1: a wait'
