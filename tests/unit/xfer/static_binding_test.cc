#include "xfer/rails/static_binding.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

namespace mc::xfer {
namespace {

TEST_CASE("a static stripe of the memory stays with its rail") {
  StaticBinding binder(Scheduler::kStatic, 1);
  for (int again = 0; again < 2; ++again)
    for (uint64_t i = 0; i < 8; ++i) CHECK(binder.bind(i * 65536, 65536, 4) == i % 4);
}

TEST_CASE("round robin takes each rail in turn, wherever the bytes lie") {
  StaticBinding binder(Scheduler::kRoundRobin, 1);
  for (uint32_t i = 0; i < 9; ++i) CHECK(binder.bind(0, 65536, 3) == i % 3);
}

TEST_CASE("random takes all rails about as often, the same with the same seed") {
  StaticBinding a(Scheduler::kRandom, 7), b(Scheduler::kRandom, 7);
  std::vector<int> seen(4);
  for (int i = 0; i < 4000; ++i) {
    const uint32_t rail = a.bind(0, 1, 4);
    CHECK(rail == b.bind(0, 1, 4));
    ++seen[rail];
  }
  for (const int n : seen) CHECK(n > 900);
}

TEST_CASE("what failed on a rail is bound to another while there is one") {
  for (const auto scheduler : {Scheduler::kStatic, Scheduler::kRoundRobin, Scheduler::kRandom}) {
    StaticBinding binder(scheduler, 3);
    for (int i = 0; i < 20; ++i) CHECK(binder.bind(0, 1, 3, 0b101) == 1);
    CHECK(binder.bind(0, 1, 3, 0b111) < 3);
    CHECK(binder.bind(0, 1, 1, 0b1) == 0);
  }
}

}  // namespace
}  // namespace mc::xfer
