// Matrices of quantized blocks, and their products, for tests of the kernels.
#pragma once
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "model/kernels/matrix.h"
#include "seeded_blocks.h"

namespace mc::test {

// The rows that `bytes` hold, which have to outlive them.
inline model::BlockRows rows_in(const model::BlockFormat& f, uint32_t rows, uint32_t columns,
                                const std::vector<std::byte>& bytes) {
  const size_t row = size_t{columns} / f.elements * f.bytes;
  MC_CHECK(bytes.size() >= rows * row);
  return {&f, rows,
          [&bytes, row](uint32_t n, std::vector<std::byte>&) { return bytes.data() + n * row; }};
}

// Scales of MXFP4 go up to 2^127: sums of these are no numbers.
inline std::vector<std::byte> moderate_blocks(const model::BlockFormat& f, size_t count) {
  auto bytes = seeded_blocks(f, count);
  for (size_t b = 0; f.ggml == 39 && b < count; ++b)
    bytes[b * f.bytes] = static_cast<std::byte>(120 + b % 8);
  return bytes;
}

inline std::vector<float> random_numbers(uint64_t seed, size_t n) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random.uniform(-1, 1));
  return values;
}

inline std::vector<float> product(const model::Matrix& m, const model::Kernels& kernels,
                                  model::ThreadPool& threads, std::span<const float> x) {
  const size_t count = x.size() / m.columns();
  std::vector<float> y(count * m.rows());
  m.multiply(kernels, threads, x.data(), count, y.data());
  return y;
}

// Equal, or both NaN, each of them.
inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return a.size() == b.size();
}

// A matrix of Q8_0, and rows with infinite, huge, tiny and missing numbers.
struct OddNumbers {
  static constexpr uint32_t kColumns = 64;
  model::Matrix matrix;

  explicit OddNumbers(model::ThreadPool& threads) {
    const model::BlockFormat& f = *model::block_format_numbered(8);
    const auto bytes = moderate_blocks(f, size_t{16} * kColumns / f.elements);
    const model::BlockRows part = rows_in(f, 16, kColumns, bytes);
    matrix = model::Matrix::pack_blocks(kColumns, 1, {&part, 1}, threads);
  }
  // Odd numbers in this place of groups, and next to it.
  std::vector<std::vector<float>> rows(uint32_t count, uint32_t at) const {
    std::vector<std::vector<float>> all;
    for (const float odd : {std::numeric_limits<float>::infinity(), 1e-38f, 3e38f,
                            std::numeric_limits<float>::quiet_NaN()}) {
      auto x = random_numbers(3, size_t{count} * kColumns);
      x[at] = odd;
      for (uint32_t r = 1; r < count; ++r) {
        x[size_t{r} * kColumns + (at + r) % kColumns] = odd;
        x[size_t{r} * kColumns + (at + 3 * r) % kColumns] = -odd;
      }
      all.push_back(std::move(x));
    }
    return all;
  }
};

}  // namespace mc::test
