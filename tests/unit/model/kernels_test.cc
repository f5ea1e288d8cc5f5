#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "base/random.h"
#include "model/kernels/kernels.h"

using namespace mc;
using namespace mc::model;

namespace {

std::vector<float> some_floats(uint64_t seed, size_t n) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random.uniform(-1, 1));
  return values;
}

struct Attended {
  float most, total;
  std::vector<float> values;
  bool operator==(const Attended&) const = default;
};

// Two tiles: a whole one, then one of `count` keys.
Attended attended(const Kernels& set, uint32_t count, uint32_t dim, float cap) {
  const auto query = some_floats(1, dim), keys = some_floats(2, size_t{kTile} * dim);
  const auto values = some_floats(3, size_t{kTile} * dim);
  const auto last = some_floats(4, size_t{count} * dim);  // nothing lies behind them
  std::vector<float> sums(dim);
  Attention a;
  a.values = sums.data();
  FloatAttention job;
  job.queries = query.data();
  job.count = 1;
  job.dim = dim;
  job.cap = cap;
  job.states = &a;
  job.keys = keys.data();
  job.values = values.data();
  job.positions = kTile;
  set.attend(job);
  job.keys = job.values = last.data();
  job.positions = count;
  set.attend(job);
  return {a.most, a.total, sums};
}

}  // namespace

TEST_CASE("kernels: numbers of every format are widened bit for bit") {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16})
    for (size_t n = 0; n < 50; ++n) {
      const auto from = some_floats(n, n);
      std::vector<std::byte> bytes(n * size_of(type));
      from_floats(type, from.data(), bytes.data(), n);
      std::vector<float> want(n), got(n);
      to_floats(type, bytes.data(), want.data(), n);
      for (const Kernels* set : kernels_here()) {
        CAPTURE(set->name);
        std::fill(got.begin(), got.end(), 9.0f);
        set->widen(type, bytes.data(), n, got.data());
        REQUIRE(got == want);
      }
    }
}

TEST_CASE("kernels: attention to any number of keys gives the same bits in every set") {
  for (const uint32_t dim : {16u, 64u, 80u})
    for (uint32_t count = 1; count <= kTile; ++count) {
      CAPTURE(count);
      const float cap = count % 8 == 0 ? 2.0f : 0.0f;
      const Attended want = attended(*kernels_named("plain"), count, dim, cap);
      for (const Kernels* set : kernels_here()) {
        CAPTURE(set->name);
        REQUIRE(attended(*set, count, dim, cap) == want);
      }
    }
}

TEST_CASE("kernels: attention is the mean of values, by the exponentials of their scores") {
  constexpr uint32_t kDim = 32, kCount = 37;
  const auto query = some_floats(1, kDim), keys = some_floats(2, size_t{kTile} * kDim);
  const auto values = some_floats(3, size_t{kTile} * kDim);
  const auto last = some_floats(4, size_t{kCount} * kDim);
  double total = 0;
  std::vector<double> mean(kDim);
  for (uint32_t t = 0; t < kTile + kCount; ++t) {
    const bool second = t >= kTile;
    const float* const key = second ? &last[(t - kTile) * kDim] : &keys[t * kDim];
    const float* const value = second ? key : &values[t * kDim];
    double score = 0;
    for (uint32_t d = 0; d < kDim; ++d) score += double{query[d]} * double{key[d]};
    total += std::exp(score);
    for (uint32_t d = 0; d < kDim; ++d) mean[d] += std::exp(score) * double{value[d]};
  }
  for (const Kernels* set : kernels_here()) {
    const Attended got = attended(*set, kCount, kDim, 0);
    for (uint32_t d = 0; d < kDim; ++d)
      CHECK(got.values[d] / got.total == doctest::Approx(mean[d] / total).epsilon(1e-5));
  }
}
