// Fetches from the pool, weighed by where the blocks are.
#include "serve/connector/pool_rates.h"

#include <doctest/doctest.h>

#include <vector>

namespace mc::serve {
namespace pool_rates_test {
namespace {

using store::StoredAt;
constexpr uint64_t kBlock = 1 << 20;
constexpr double kBlockSeconds = 0.01;  // of computing one

// The pool as it is: a round trip, then bytes at the rates of its places.
double takes(const std::vector<StoredAt>& places, double memory, double disk) {
  double seconds = 0.001;
  for (const StoredAt at : places)
    seconds += static_cast<double>(kBlock) / (at == StoredAt::kDisk ? disk : memory);
  return seconds;
}

std::vector<StoredAt> places(size_t memory, size_t disk) {
  std::vector<StoredAt> all(memory, StoredAt::kMemory);
  all.resize(memory + disk, StoredAt::kDisk);
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
  CHECK(rates.bytes_per_s(StoredAt::kMemory) == doctest::Approx(2e9).epsilon(0.05));
  CHECK(rates.bytes_per_s(StoredAt::kDisk) == doctest::Approx(20e6).epsilon(0.05));
  CHECK(rates.worth(mixed, kBlock, computing) == 6);
  CHECK(rates.worth(places(0, 12), kBlock, computing) == 0);
  CHECK(rates.worth(places(12, 0), kBlock, computing) == 12);
  // A few on the disk are worth it for the many in memory behind them.
  auto behind = places(0, 1);
  behind.resize(40, StoredAt::kMemory);
  CHECK(rates.worth(behind, kBlock, computing) == 40);
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
    rates.learn({kBlock, 0, 0}, static_cast<double>(kBlock) / 10e9);
    rates.learn({kBlock, kBlock, 0}, static_cast<double>(kBlock) / 10e9 + kBlock / 1e9);
    rates.learn({0, 0, kBlock}, 1.0);
  }
  CHECK(rates.bytes_per_s(StoredAt::kHost) == doctest::Approx(10e9).epsilon(0.05));
  CHECK(rates.bytes_per_s(StoredAt::kMemory) == doctest::Approx(1e9).epsilon(0.05));
  CHECK(rates.bytes_per_s(StoredAt::kDisk) == doctest::Approx(kBlock).epsilon(0.05));
}

TEST_CASE("times that mean nothing change nothing") {
  PoolRates rates;
  const double before = rates.fetch_seconds({kBlock, kBlock, kBlock});
  rates.learn({}, 1);
  rates.learn({0, kBlock, 0}, -1);
  rates.learn({0, kBlock, kBlock}, 1e-9);  // faster than memory alone
  CHECK(rates.fetch_seconds({kBlock, kBlock, kBlock}) == before);
  CHECK(rates.worth({}, kBlock, computing) == 0);
}

}  // namespace
}  // namespace pool_rates_test
}  // namespace mc::serve
