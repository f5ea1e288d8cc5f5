#include "store/leases.h"

#include <doctest/doctest.h>

#include "store/evict.h"

namespace mc::store {
namespace {

using namespace std::chrono_literals;
const Time t0{100s};

TEST_CASE("a lease holds until its ttl has passed and not longer") {
  Leases leases(5s);
  Leased a;
  CHECK(leases.grant(a, t0) == t0 + 5s);
  CHECK(leases.held(a, t0 + 4999ms));
  CHECK_FALSE(leases.held(a, t0 + 5s));
  CHECK(leases.expired(t0 + 4999ms) == nullptr);
  CHECK(leases.expired(t0 + 5s) == &a);
  CHECK(leases.expired(t0 + 5s) == nullptr);
}

TEST_CASE("extending a lease leaves no stale expiry behind and reorders it") {
  Leases leases(5s);
  Leased a, b;
  leases.grant(a, t0);
  leases.grant(b, t0 + 1s);
  leases.grant(a, t0 + 2s);
  CHECK(leases.next_expiry() == t0 + 6s);
  CHECK(leases.expired(t0 + 6s) == &b);
  CHECK(leases.expired(t0 + 6s) == nullptr);
  CHECK(leases.expired(t0 + 7s) == &a);
  CHECK(leases.size() == 0);
  CHECK(leases.next_expiry() == Time::max());
}

TEST_CASE("a dropped lease is held no more") {
  Leases leases(5s);
  Leased a;
  leases.grant(a, t0);
  leases.drop(a);
  CHECK_FALSE(leases.held(a, t0));
  CHECK(leases.size() == 0);
  leases.drop(a);  // harmless
}

TEST_CASE("the least recently used goes first, and touching changes that") {
  Lru lru;
  Evictable a, b, c;
  lru.touch(a);
  lru.touch(b);
  lru.touch(c);
  lru.touch(a);
  CHECK(lru.victim() == &b);
  lru.drop(b);
  CHECK(lru.victim() == &c);
  lru.drop(c);
  lru.drop(a);
  CHECK(lru.victim() == nullptr);
}

TEST_CASE("eviction starts above the watermark and frees down to one ratio below it") {
  CHECK(bytes_to_evict(950, 1000, 0.95, 0.05) == 0);
  CHECK(bytes_to_evict(951, 1000, 0.95, 0.05) == 51);
  CHECK(bytes_to_evict(1000, 1000, 0.95, 0.05) == 100);
  CHECK(bytes_to_evict(10, 0, 0.95, 0.05) == 10);
}

}  // namespace
}  // namespace mc::store
