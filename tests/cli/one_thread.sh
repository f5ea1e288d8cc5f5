#!/usr/bin/env bash
# A test of tests/one-thread.txt fails when it starts a thread, since the gate's thread sanitizer does not
# see it; other tests may start what they like.
source "$(dirname "$0")/../common.inc"
[ -z "${MC_SANITIZE:-}" ] || skip "a sanitizer has the function that is watched: the release build runs this"

with_threads() {
  "$MC_BIN/unit_store" --source-file='*/unit/store/cluster_test.cc' -tc='a port that another node*'
}
one() { "$MC_BIN/unit_base" --source-file='*/unit/base/hash_test.cc'; }
expect 0 with_threads
MC_ONE_THREAD=1 expect 0 one
MC_ONE_THREAD=1 expect 1 with_threads
grep -q 'a thread was started' "$T/err" || die "it does not say why: $(cat "$T/err")"
