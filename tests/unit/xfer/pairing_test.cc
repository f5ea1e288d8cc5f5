#include "xfer/rails/pairing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace mc::xfer {
namespace {

Nic nic(const char* name, const char* address, uint32_t bits = 24, int numa = -1) {
  Nic n;
  n.name = name;
  n.address = address;
  n.prefix_bits = bits;
  n.numa = numa;
  return n;
}

std::string map_of(const std::vector<RailPair>& pairs) {
  std::string out;
  for (const auto& p : pairs)
    if (p.mapped)
      out += std::to_string(p.local) + "-" + std::to_string(p.remote) + ":" + p.why + " ";
  return out;
}

double least_by_trying(const std::vector<double>& cost, size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  double best = std::numeric_limits<double>::infinity();
  do {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += cost[i * n + order[i]];
    best = std::min(best, sum);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

}  // namespace

TEST_SUITE("pairing") {
  TEST_CASE("the subnet decides before the name, the name before the order") {
    CHECK(map_of(pair_rails({nic("a", "10.0.1.1"), nic("b", "10.0.2.1")},
                            {nic("a", "10.0.2.9"), nic("b", "10.0.1.9")})) ==
          "0-1:subnet 1-0:subnet ");
    CHECK(map_of(pair_rails({nic("mlx5_0", ""), nic("mlx5_1", "")},
                            {nic("mlx5_1", ""), nic("mlx5_0", "")})) == "0-1:name 1-0:name ");
    CHECK(map_of(pair_rails({nic("a", "", 0, 0), nic("b", "", 0, 1)},
                            {nic("c", "", 0, 1), nic("d", "", 0, 0)})) == "0-1:numa 1-0:numa ");
  }

  TEST_CASE("what no hint pairs takes turns, so that every NIC has a rail") {
    const auto pairs =
        pair_rails({nic("a", "10.0.1.1"), nic("b", "10.0.9.1")},
                   {nic("x", "10.0.1.2"), nic("y", "10.0.7.1"), nic("z", "10.0.8.1")});
    CHECK(map_of(pairs) == "0-0:subnet 0-2:round-robin 1-1:round-robin ");
    CHECK(pairs.size() == 6);
  }

  TEST_CASE("loopback does not reach another host's NIC, nor IPv4 an IPv6 address") {
    CHECK(pair_rails({nic("lo", "127.0.0.1", 8)}, {nic("eth0", "10.0.0.1")}).empty());
    CHECK(pair_rails({nic("eth0", "10.0.0.2")}, {nic("eth0", "fd00::1", 64)}).empty());
    CHECK(pair_rails({nic("eth0", "fd00::2", 64)}, {nic("e", "fd00::1", 64)}).size() == 1);
  }

  TEST_CASE("probed round trips decide over every hint, and what is unreachable is no rail") {
    const Probed probed{{Duration(900), Duration(50), Duration(60), std::nullopt}};
    const auto pairs = pair_rails({nic("a", "10.0.1.1"), nic("b", "10.0.2.1")},
                                  {nic("a", "10.0.1.9"), nic("b", "10.0.2.9")}, &probed);
    CHECK(map_of(pairs) == "0-1:probed 1-0:probed ");
    CHECK(pairs.size() == 3);
  }

  TEST_CASE("the cheapest assignment is found, as trying all of them finds it") {
    Random random(5);
    for (int round = 0; round < 200; ++round) {
      const size_t n = 1 + random.below(6);
      std::vector<double> cost(n * n);
      for (double& c : cost) c = random.uniform(-100, 100);
      const auto match = match_least_cost(cost, n, n);
      double sum = 0;
      std::vector<bool> used(n);
      for (size_t i = 0; i < n; ++i) {
        REQUIRE(match[i] >= 0);
        CHECK(!used[static_cast<size_t>(match[i])]);
        used[static_cast<size_t>(match[i])] = true;
        sum += cost[i * n + static_cast<size_t>(match[i])];
      }
      CHECK(sum == doctest::Approx(least_by_trying(cost, n)));
    }
  }

  TEST_CASE("more rows than columns leave rows over; what cannot be is not chosen") {
    constexpr double kCannot = std::numeric_limits<double>::infinity();
    CHECK(match_least_cost({5, 1, 3}, 3, 1) == std::vector<int>{-1, 0, -1});
    CHECK(match_least_cost({kCannot, 1, kCannot, 2}, 2, 2) == std::vector<int>{1, -1});
    CHECK(match_least_cost({}, 0, 0).empty());
  }

  TEST_CASE("subnets are compared bit by bit, by the shorter prefix") {
    CHECK(same_subnet(nic("", "10.1.2.3", 16), nic("", "10.1.9.9", 24)));
    CHECK(!same_subnet(nic("", "10.1.2.3", 24), nic("", "10.1.9.9", 24)));
    CHECK(same_subnet(nic("", "10.1.2.130", 25), nic("", "10.1.2.200", 25)));
    CHECK(!same_subnet(nic("", "10.1.2.130", 25), nic("", "10.1.2.3", 25)));
    CHECK(!same_subnet(nic("", "10.1.2.3", 0), nic("", "10.1.2.3", 0)));
    CHECK(!same_subnet(nic("", "nonsense", 8), nic("", "10.1.2.3", 8)));
  }
}

}  // namespace mc::xfer
