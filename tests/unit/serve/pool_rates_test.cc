// Fetches from the pool, weighed by where the blocks are.
#include "serve/connector/pool_rates.h"

#include <doctest/doctest.h>

#include <vector>

namespace mc::serve {
namespace pool_rates_test {
namespace {

using store::StoredAt;
using store::StoredPlace;
constexpr uint64_t kBlock = 1 << 20;
const StoredPlace kHost{StoredAt::kHost}, kMemory{StoredAt::kMemory}, kDisk{StoredAt::kDisk};
constexpr double kBlockSeconds = 0.01;  // of computing one

// The pool as it is: a round trip, then bytes at the rates of its places.
double takes(const std::vector<StoredPlace>& places, double memory, double disk) {
  double seconds = 0.001;
  for (const StoredPlace& place : places)
    seconds += static_cast<double>(kBlock) / (place.at == StoredAt::kDisk ? disk : memory);
  return seconds;
}

// Nodes are numbers; 0: not told.
std::vector<StoredPlace> places(size_t memory, size_t disk, uint32_t node = 0) {
  std::vector<StoredPlace> all(memory, {StoredAt::kMemory, node});
  all.resize(memory + disk, {StoredAt::kDisk, node});
  return all;
}

double computing(size_t blocks) { return static_cast<double>(blocks) * kBlockSeconds; }

TEST_CASE("blocks on a slow disk are computed, those before them in memory are fetched") {
  PoolRates rates;
  const auto mixed = places(6, 6);
  CHECK(rates.worth(mixed, kBlock, computing) == 12);  // nobody knows yet
  for (int i = 0; i < 30; ++i) {
    rates.learn(PoolRates::of(mixed, kBlock), takes(mixed, 2e9, 20e6) - 0.001);
    rates.learn(PoolRates::of(places(8, 0), kBlock), takes(places(8, 0), 2e9, 0) - 0.001);
  }
  CHECK(rates.bytes_per_s({StoredAt::kMemory}) == doctest::Approx(2e9).epsilon(0.05));
  CHECK(rates.bytes_per_s({StoredAt::kDisk}) == doctest::Approx(20e6).epsilon(0.05));
  CHECK(rates.worth(mixed, kBlock, computing) == 6);
  CHECK(rates.worth(places(0, 12), kBlock, computing) == 0);
  CHECK(rates.worth(places(12, 0), kBlock, computing) == 12);
  // A few on the disk are worth it for the many in memory behind them.
  auto behind = places(0, 1);
  behind.resize(40, {StoredAt::kMemory});
  CHECK(rates.worth(behind, kBlock, computing) == 40);
}

TEST_CASE("memory starts as fast as the network is said to be, so that a first fetch is tried") {
  CHECK(PoolRates(80e9).bytes_per_s({StoredAt::kMemory}) == doctest::Approx(80e9));
  CHECK(PoolRates(80e9).bytes_per_s({StoredAt::kDisk}) == doctest::Approx(500e6));
  CHECK(PoolRates(1e6).bytes_per_s({StoredAt::kDisk}) == doctest::Approx(1e6));
  CHECK(PoolRates(0).bytes_per_s({StoredAt::kMemory}) > 0);
  // Blocks that 2 GB/s would bring more slowly than they are computed.
  const auto quick = [](size_t n) { return static_cast<double>(n * kBlock) / 10e9; };
  const auto many = places(100, 0);
  CHECK(PoolRates().worth(many, kBlock, quick) == 0);
  PoolRates rates(80e9);
  CHECK(rates.worth(many, kBlock, quick) == 100);
  for (int i = 0; i < 30; ++i)  // they were not so fast
    rates.learn(PoolRates::of(many, kBlock), takes(many, 1e9, 0) - 0.001);
  CHECK(rates.worth(many, kBlock, quick) == 0);
  Time now{std::chrono::hours(1)};
  rates.advance(now);
  rates.advance(now + std::chrono::minutes(20));  // tried again
  CHECK(rates.worth(many, kBlock, quick) == 100);
}

TEST_CASE("of two nodes with disks only the slow one's blocks are computed") {
  PoolRates rates;
  Time now{std::chrono::hours(1)};
  rates.advance(now);
  const auto fast = places(0, 6, 1), slow = places(0, 6, 2), memory = places(6, 0, 2);
  for (int i = 0; i < 30; ++i) {
    rates.learn(PoolRates::of(fast, kBlock), takes(fast, 2e9, 1e9) - 0.001);
    rates.learn(PoolRates::of(slow, kBlock), takes(slow, 2e9, 20e6) - 0.001);
    rates.learn(PoolRates::of(memory, kBlock), takes(memory, 2e9, 20e6) - 0.001);
  }
  CHECK(rates.bytes_per_s(fast[0]) == doctest::Approx(1e9).epsilon(0.05));
  CHECK(rates.bytes_per_s(slow[0]) == doctest::Approx(20e6).epsilon(0.05));
  CHECK(rates.worth(fast, kBlock, computing) == 6);
  CHECK(rates.worth(slow, kBlock, computing) == 0);
  CHECK(rates.worth(memory, kBlock, computing) == 6);
  auto both = fast;
  both.insert(both.end(), slow.begin(), slow.end());
  CHECK(rates.worth(both, kBlock, computing) == 6);
  auto pooled = memory;
  pooled.insert(pooled.end(), slow.begin(), slow.end());
  CHECK(rates.worth(pooled, kBlock, computing) == 6);
  const double took = takes(fast, 2e9, 1e9) + takes(slow, 2e9, 20e6) - 0.002;
  for (int i = 0; i < 100; ++i) rates.learn(PoolRates::of(both, kBlock), took);
  CHECK(rates.bytes_per_s(fast[0]) == doctest::Approx(1e9).epsilon(0.1));
  CHECK(rates.bytes_per_s(slow[0]) == doctest::Approx(20e6).epsilon(0.1));
  // It may have become faster: nobody fetches from it, so what is known of it fades.
  rates.advance(now += std::chrono::minutes(11));
  CHECK(rates.worth(slow, kBlock, computing) == 6);
}

TEST_CASE("nodes that were not fetched from lately are forgotten for others") {
  PoolRates rates;
  const auto disk_of = [](size_t node) {
    return StoredPlace{StoredAt::kDisk, static_cast<uint32_t>(node)};
  };
  constexpr size_t kLast = 2 * PoolRates::kNodesMax;
  for (size_t node = 1; node <= kLast; ++node) {
    rates.advance(Time{std::chrono::seconds(node)});
    rates.learn({{disk_of(node), kBlock}}, 10);
  }
  for (int i = 0; i < 5; ++i) {
    rates.learn({{disk_of(kLast), kBlock}}, 0.001);
    rates.learn({{disk_of(kLast - 1), kBlock}}, 10);
  }
  const double all = rates.bytes_per_s(kDisk);
  CHECK(rates.bytes_per_s(disk_of(1)) == all);
  CHECK(rates.bytes_per_s(disk_of(kLast)) > all);
  CHECK(rates.bytes_per_s(disk_of(kLast - 1)) < all);
}

TEST_CASE("what was learned of a slow place fades, and it is tried again") {
  PoolRates rates;
  Time now{std::chrono::hours(1)};
  rates.advance(now);
  for (int i = 0; i < 30; ++i) rates.learn(PoolRates::of(places(0, 6), kBlock), 60);
  rates.advance(now += std::chrono::seconds(10));
  CHECK(rates.worth(places(0, 6), kBlock, computing) == 0);
  rates.advance(now += std::chrono::minutes(30));
  CHECK(rates.worth(places(0, 6), kBlock, computing) == 6);
}

TEST_CASE("memory of this host has a rate of its own, and a slow place does not spoil a fast one") {
  PoolRates rates;
  for (int i = 0; i < 50; ++i) {
    rates.learn({{kHost, kBlock}}, static_cast<double>(kBlock) / 10e9);
    rates.learn({{kHost, kBlock}, {kMemory, kBlock}},
                static_cast<double>(kBlock) / 10e9 + kBlock / 1e9);
    rates.learn({{kDisk, kBlock}}, 1.0);
  }
  CHECK(rates.bytes_per_s({StoredAt::kHost}) == doctest::Approx(10e9).epsilon(0.05));
  CHECK(rates.bytes_per_s({StoredAt::kMemory}) == doctest::Approx(1e9).epsilon(0.05));
  CHECK(rates.bytes_per_s({StoredAt::kDisk}) == doctest::Approx(kBlock).epsilon(0.05));
}

TEST_CASE("times that mean nothing change nothing") {
  PoolRates rates;
  const PoolRates::Bytes each{{kHost, kBlock}, {kMemory, kBlock}, {kDisk, kBlock}};
  const double before = rates.fetch_seconds(each);
  rates.learn({}, 1);
  rates.learn({{kMemory, kBlock}}, -1);
  rates.learn({{kMemory, kBlock}, {kDisk, kBlock}}, 1e-9);  // faster than memory alone
  CHECK(rates.fetch_seconds(each) == before);
  CHECK(rates.worth({}, kBlock, computing) == 0);
}

}  // namespace
}  // namespace pool_rates_test
}  // namespace mc::serve
