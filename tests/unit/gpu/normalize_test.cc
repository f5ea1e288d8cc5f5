// The kernel that normalizes rows, run by the host: rows of all widths, wherever they lie.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "device/kernels_on_host.h"
#include "gpu/kernels.h"

using namespace mc;
using model::DType;

namespace {

std::vector<std::byte> normalized(DType type, const float* x, const std::vector<float>& weight,
                                  uint32_t rows) {
  const auto n = static_cast<uint32_t>(weight.size());
  std::vector<std::byte> out(size_t{rows} * n * size_of(type));
  const float* const weights = weight.data();
  std::byte* const to = out.data();
  const double eps = 1e-5;
  const void* arguments[] = {&x, &weights, &to, &n, &eps};
  REQUIRE(device::run_kernel_on_host(gpu::named(MC_NORMALIZE, type), {rows},
                                     const_cast<void**>(arguments)));
  return out;
}

}  // namespace

TEST_CASE("rows of 16 bits are near the exact ones, and the same alone, among others, anywhere") {
  constexpr uint32_t kRows = 3;
  for (const DType type : {DType::kF16, DType::kBf16})
    for (const uint32_t n : {1u, 3u, 64u, 130u, 2100u, 4096u, 4099u, 9000u}) {
      CAPTURE(n);
      Random random(n);
      std::vector<float> x(size_t{kRows} * n), weight(n);
      for (float& v : x) v = static_cast<float>(random.uniform(-3, 3));
      for (float& v : weight) v = static_cast<float>(random.uniform(-2, 2));
      const auto all = normalized(type, x.data(), weight, kRows);
      std::vector<float> got(x.size());
      model::to_floats(type, all.data(), got.data(), got.size());
      for (uint32_t r = 0; r < kRows; ++r) {
        const float* const row = &x[size_t{r} * n];
        double squares = 0;
        for (uint32_t i = 0; i < n; ++i) squares += double{row[i]} * row[i];
        const double scale = 1 / std::sqrt(squares / n + 1e-5);
        size_t wrong = 0;
        for (uint32_t i = 0; i < n; ++i) {
          const double want = row[i] * scale * weight[i];
          const double part = type == DType::kF16 ? 0x1p-10 : 0x1p-7;
          if (!(std::fabs(got[size_t{r} * n + i] - want) <= part * (0.01 + std::fabs(want))))
            ++wrong;
        }
        CHECK(wrong == 0);
        const size_t bytes = n * size_of(type);
        for (const size_t pad : {size_t{0}, size_t{1}}) {
          std::vector<float> placed(pad);
          placed.insert(placed.end(), row, row + n);
          const auto alone = normalized(type, placed.data() + pad, weight, 1);
          CHECK(std::memcmp(alone.data(), all.data() + r * bytes, bytes) == 0);
        }
      }
    }
}
