#include "store/metadata/leases.h"

#include <doctest/doctest.h>

#include "store/metadata/evict.h"

namespace mc::store {

namespace leases_test {

namespace {

using namespace std::chrono_literals;
const Time t0{100s};

struct Objects {
  Table table;
  Object &a = table.insert(0, "a"), &b = table.insert(0, "b"), &c = table.insert(0, "c");
};

TEST_CASE("a lease holds until its ttl has passed and not longer") {
  Objects o;
  Leases leases(o.table.slab(), 5s);
  CHECK(leases.grant(o.a, t0) == t0 + 5s);
  CHECK(leases.held(o.a, t0 + 4999ms));
  CHECK_FALSE(leases.held(o.a, t0 + 5s));
  CHECK(leases.expired(t0 + 4999ms) == nullptr);
  CHECK(leases.expired(t0 + 5s) == &o.a);
  CHECK(leases.expired(t0 + 5s) == nullptr);
}

TEST_CASE("extending a lease leaves no stale expiry behind and reorders it") {
  Objects o;
  Leases leases(o.table.slab(), 5s);
  leases.grant(o.a, t0);
  leases.grant(o.b, t0 + 1s);
  leases.grant(o.a, t0 + 2s);
  CHECK(leases.next_expiry() == t0 + 6s);
  CHECK(leases.expired(t0 + 6s) == &o.b);
  CHECK(leases.expired(t0 + 6s) == nullptr);
  CHECK(leases.expired(t0 + 7s) == &o.a);
  CHECK(leases.size() == 0);
  CHECK(leases.next_expiry() == Time::max());
}

TEST_CASE("a dropped lease is no longer held") {
  Objects o;
  Leases leases(o.table.slab(), 5s);
  leases.grant(o.a, t0);
  leases.drop(o.a);
  CHECK_FALSE(leases.held(o.a, t0));
  CHECK(leases.size() == 0);
  leases.drop(o.a);  // harmless
}

const auto none_leased = [](const Object&) { return false; };

TEST_CASE("lru: the least recently used goes first, and use changes that") {
  Objects o;
  EvictQueue queue(o.table.slab(), EvictPolicy::kLru);
  for (Object* x : {&o.a, &o.b, &o.c}) queue.insert(*x);
  queue.use(o.a);
  CHECK(queue.victim(none_leased) == &o.b);
  queue.drop(o.b);
  CHECK(queue.victim(none_leased) == &o.c);
  queue.drop(o.c);
  queue.drop(o.a);
  CHECK(queue.victim(none_leased) == nullptr);
}

TEST_CASE("sieve: used objects are skipped once, and unused ones go before them") {
  Objects o;
  EvictQueue queue(o.table.slab(), EvictPolicy::kSieve);
  for (Object* x : {&o.a, &o.b, &o.c}) queue.insert(*x);
  queue.use(o.a);
  CHECK(queue.victim(none_leased) == &o.b);
  queue.drop(o.b);
  Object& d = o.table.insert(0, "d");
  queue.insert(d);
  CHECK(queue.victim(none_leased) == &o.c);
  queue.drop(o.c);
  CHECK(queue.victim(none_leased) == &d);  // the hand goes on, a keeps its place
  queue.drop(d);
  CHECK(queue.victim(none_leased) == &o.a);
}

TEST_CASE("a leased object leaves the queue when the search meets it") {
  for (const auto policy : {EvictPolicy::kLru, EvictPolicy::kSieve}) {
    Objects o;
    EvictQueue queue(o.table.slab(), policy);
    for (Object* x : {&o.a, &o.b, &o.c}) queue.insert(*x);
    const auto leased = [&](const Object& x) { return &x != &o.c; };
    CHECK(queue.victim(leased) == &o.c);
    CHECK(queue.size() == 1);
    CHECK_FALSE(bool{o.a.queued});
  }
}

TEST_CASE("eviction starts above the watermark and frees down to one ratio below it") {
  CHECK(bytes_to_evict(950, 1000, 0.95, 0.05) == 0);
  CHECK(bytes_to_evict(951, 1000, 0.95, 0.05) == 51);
  CHECK(bytes_to_evict(1000, 1000, 0.95, 0.05) == 100);
  CHECK(bytes_to_evict(10, 0, 0.95, 0.05) == 10);
}

}  // namespace

}  // namespace leases_test
}  // namespace mc::store
