#include "xfer/staging/path_cost.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace path_cost_test {

TEST_SUITE("xfer/path-cost") {
  TEST_CASE("each usable path is tried, then the quickest is taken") {
    PathCostModel costs;
    CHECK(costs.choose(1 << 20, 0b101) == 0);
    costs.record(0, 1 << 20, 100us);
    CHECK(costs.choose(1 << 20, 0b101) == 2);
    costs.record(2, 1 << 20, 50us);
    for (int i = 0; i < 20; ++i) CHECK(costs.choose(1 << 20, 0b101) == 2);
    CHECK(costs.choose(1 << 20, 0b001) == 0);
    // What is quick for much need not be for little.
    CHECK(costs.choose(1 << 10, 0b101) == 0);
  }

  TEST_CASE("a path that became slow is left, and one that recovered is used again") {
    PathCostModel costs;
    costs.record(0, 1 << 20, 100us);
    costs.record(1, 1 << 20, 200us);
    for (int i = 0; i < 8; ++i) costs.record(0, 1 << 20, 1ms);
    CHECK(costs.choose(1 << 20, 0b11) == 1);
    int probes = 0;
    for (uint32_t i = 0; i < 2 * PathCostModel::kProbeEvery; ++i)
      if (costs.choose(1 << 20, 0b11) == 0) {
        ++probes;
        costs.record(0, 1 << 20, 100us);
      }
    CHECK(probes >= 1);
    for (int i = 0; i < 16; ++i) costs.record(0, 1 << 20, 100us);
    CHECK(costs.choose(1 << 20, 0b11) == 0);
  }

  TEST_CASE("an excluded path is not chosen while another is usable") {
    PathCostModel costs;
    costs.exclude(0);
    for (int i = 0; i < 200; ++i) CHECK(costs.choose(4096, 0b11) == 1);
    CHECK(costs.choose(4096, 0b01) == 0);
    costs.record(1, 0, 1s);  // nothing moved: nothing learned
    costs.record(1, 1ull << 60, 1s);
    CHECK(costs.choose(1ull << 60, 0b10) == 1);
  }
}

}  // namespace path_cost_test
