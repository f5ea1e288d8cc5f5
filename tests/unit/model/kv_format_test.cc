// KV in 8 bits: what is read is near what was written, and a model's answers stay near.
#include "model/files/kv_format.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

using namespace mc;
using namespace mc::model;

namespace mc::kv_format_test {
namespace {

std::vector<float> back(const std::vector<float>& row) {
  const auto dim = static_cast<uint32_t>(row.size());
  const KvFormat q8 = KvFormat::q8();
  std::vector<std::byte> bytes(q8.row_bytes(dim));
  q8.write(row.data(), dim, bytes.data());
  std::vector<float> out(row.size());
  q8.read(bytes.data(), 1, dim, dim, out.data());
  return out;
}

TEST_CASE("a row of q8 has a byte a number and two a group, and is off by half a step at most") {
  CHECK(KvFormat::q8().row_bytes(8) == 10);
  CHECK(KvFormat::q8().row_bytes(64) == 68);
  CHECK(KvFormat::q8().row_bytes(80) == 86);
  CHECK(KvFormat::q8().row_bytes(576) == 612);
  Random random(7);
  for (const size_t dim : {2u, 8u, 32u, 80u, 576u}) {
    CAPTURE(dim);
    std::vector<float> row(dim);
    for (size_t i = 0; i < dim; ++i)  // groups of very different sizes
      row[i] = static_cast<float>(random.uniform(-1, 1) * std::pow(10.0, i / 32 % 5));
    const auto got = back(row);
    for (size_t i = 0; i < dim; ++i) {
      float most = 0;
      for (size_t k = i / 32 * 32; k < std::min(dim, (i / 32 + 1) * 32); ++k)
        most = std::max(most, std::fabs(row[k]));
      CHECK(std::fabs(got[i] - row[i]) <= most * (0.5 / 127 + 1.0 / 2048));
    }
  }
}

TEST_CASE("rows of q8 lie side by side, and are read with zeros behind them") {
  const KvFormat q8 = KvFormat::q8();
  const std::vector<float> row = {1, -2, 3, 4, 0.5, 6, -7, 8};
  std::vector<std::byte> bytes(3 * q8.row_bytes(8));
  for (size_t i = 0; i < 3; ++i) q8.write(row.data(), 8, bytes.data() + i * q8.row_bytes(8));
  std::vector<float> out(3 * 16, 9);
  q8.read(bytes.data(), 3, 8, 16, out.data());
  const auto one = back(row);
  for (size_t i = 0; i < 3; ++i)
    for (size_t d = 0; d < 16; ++d) CHECK(out[i * 16 + d] == (d < 8 ? one[d] : 0.0f));
}

TEST_CASE("zeros stay zeros, and what q8 cannot have is the greatest number that it can") {
  CHECK(back(std::vector<float>(40, 0.0f)) == std::vector<float>(40, 0.0f));
  CHECK(back({1e-12f, -1e-12f}) == std::vector<float>{0, 0});
  const float huge = std::numeric_limits<float>::infinity();
  const auto all = back({huge, -huge, std::numeric_limits<float>::quiet_NaN(), 1e30f});
  for (size_t i = 0; i < 4; ++i) CHECK(all[i] == (i == 1 ? -1.0f : 1.0f) * 127 * 65504);
}

TEST_CASE("formats of KV by name") {
  for (const char* text : {"f32", "f16", "bf16", "q8"})
    CHECK(std::string_view(name(*kv_format_named(text))) == text);
  CHECK_FALSE(kv_format_named("q4").has_value());
  CHECK(KvFormat(DType::kBf16).row_bytes(64) == 128);
}

}  // namespace
}  // namespace mc::kv_format_test
