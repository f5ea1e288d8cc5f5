#include "store/liveness.h"

#include <doctest/doctest.h>

namespace mc::store {
namespace {

using namespace std::chrono_literals;
const Time t0{100s};

TEST_CASE("a silent node is suspect after three seconds and gone after ten") {
  Liveness liveness({10s, 3s});
  liveness.heard("a", t0);
  liveness.heard("b", t0);
  CHECK_FALSE(liveness.is_suspect("a", t0 + 3s));
  CHECK(liveness.is_suspect("a", t0 + 3001ms));
  for (Time now = t0; now < t0 + 10s; now = liveness.deadline()) {
    liveness.heard("b", now);
    CHECK(liveness.tick(now).empty());
  }
  CHECK(liveness.tick(t0 + 10s) == std::vector<NodeId>{"a"});
  CHECK(liveness.tick(t0 + 10s).empty());
}

TEST_CASE("a watcher that stood still expires nobody it could not have heard") {
  Liveness liveness({10s, 3s});
  liveness.heard("a", t0);
  CHECK(liveness.tick(t0 + 1s).empty());
  CHECK(liveness.tick(t0 + 60s).empty());
  CHECK(liveness.stalls() == 1);
  Time now = t0 + 60s;
  for (; now < t0 + 70s; now = liveness.deadline()) CHECK(liveness.tick(now).empty());
  CHECK(liveness.tick(t0 + 70s) == std::vector<NodeId>{"a"});
}

TEST_CASE("a reported node is suspect at once, until it is heard") {
  Liveness liveness({10s, 3s});
  liveness.heard("a", t0);
  liveness.suspect("a");
  CHECK(liveness.is_suspect("a", t0));
  liveness.heard("a", t0 + 1s);
  CHECK_FALSE(liveness.is_suspect("a", t0 + 1s));
  liveness.suspect("nobody");
  CHECK(liveness.is_suspect("nobody", t0));
}

TEST_CASE("with nobody to watch there is no deadline, and a late first node is not a stall") {
  Liveness liveness({10s, 3s});
  CHECK(liveness.deadline() == Time::max());
  liveness.heard("a", t0 + 1h);
  CHECK(liveness.tick(t0 + 1h + 1s).empty());
  CHECK(liveness.stalls() == 0);
}

}  // namespace
}  // namespace mc::store
