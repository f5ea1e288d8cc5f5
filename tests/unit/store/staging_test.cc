// Staging slots: leased for a while, and never twice with one generation.
#include <doctest/doctest.h>

#include "store/ssd/staging.h"

using namespace mc;
using namespace mc::store::ssd;
using namespace std::chrono_literals;

namespace staging_test {

namespace {
const Time t0{100s};
}

TEST_CASE("a returned slot is leased again under a newer generation") {
  Staging staging(16384, 5s);
  const auto first = staging.take({5000, 1});
  REQUIRE(first);
  CHECK(first->slots[0].bytes == 8192);
  CHECK(first->slots[1].bytes == 4096);
  staging.start_lease(first->id, t0);
  staging.drop(first->id);
  CHECK(staging.used() == 12288);
  const auto raised = staging.release(first->id);
  REQUIRE(raised.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(raised[i].at == first->slots[i].at);
    CHECK(raised[i].generation > first->slots[1].generation);
  }
  CHECK(staging.used() == 0);
  CHECK(staging.release(first->id).empty());  // idempotent
  const auto second = staging.take({5000});
  REQUIRE(second);
  CHECK(second->slots[0].generation > raised[1].generation);
}

TEST_CASE("a lease that is not released expires, once") {
  Staging staging(16384, 5s);
  const auto a = staging.take({100});
  staging.start_lease(a->id, t0);
  staging.drop(a->id);
  const auto b = staging.take({100});
  staging.start_lease(b->id, t0 + 1s);
  staging.drop(b->id);
  CHECK(staging.deadline() == t0 + 5s);
  CHECK(staging.expire(t0 + 5s - 1ns).empty());
  CHECK(staging.expire(t0 + 5s).size() == 1);
  CHECK(staging.release(a->id).empty());  // the reader that comes late
  CHECK(staging.used() == 4096);
  CHECK(staging.expire(t0 + 60s).size() == 1);
  CHECK(staging.used() == 0);
  CHECK(staging.expired() == 2);
  CHECK(staging.deadline() == Time::max());
}

TEST_CASE("memory that this process still uses is not free when the lease ends") {
  Staging staging(8192, 5s);
  const auto a = staging.take({8192});
  staging.start_lease(a->id, t0);
  staging.hold(a->id);
  staging.drop(a->id);
  CHECK(staging.expire(t0 + 5s).size() == 1);  // stale for readers
  CHECK(staging.take({1}).error().code == Code::kBusy);
  staging.drop(a->id);
  CHECK(staging.take({1}));
}

TEST_CASE("a batch fits as a whole or not at all; one larger than all is no-space") {
  Staging staging(16384, 5s);
  CHECK(staging.take({8192, 8192, 1}).error().code == Code::kBusy);
  CHECK(staging.used() == 0);
  CHECK(staging.take({16385}).error().code == Code::kNoSpace);
  CHECK(staging.take({8192, 8192}));
}

}  // namespace staging_test
