// The products of the library that the device found (cuBLASLt), against a reference and against
// the own kernel; skipped, with the reason, where it does not load.
#include <cstring>

#include "bench/gpu_check/bed.h"

namespace mc::gpu_check {
namespace {

device::Product::Type library_type(DType type) {
  return type == DType::kF32   ? device::Product::Type::kF32
         : type == DType::kF16 ? device::Product::Type::kF16
                               : device::Product::Type::kBf16;
}

Result<> near_reference(Bed& bed, DType type, uint32_t outputs, uint32_t k, uint32_t rows) {
  const Values w = numbers(size_t{outputs} * k, 5, type), x = numbers(size_t{rows} * k, 6, type),
               before = numbers(size_t{rows} * outputs, 7);
  MC_TRY(const Buffer ws, bed.put(w, type));
  MC_TRY(const Buffer xs, bed.put(x, type));
  for (const bool add : {false, true}) {
    MC_TRY(const Buffer y, bed.put(before, DType::kF32));
    MC_TRY_(finish(*bed.stream, [&] {
      return bed.stream->multiply(
          {library_type(type), ws.data(), xs.data(), y.data(), outputs, k, rows, add});
    }));
    std::vector<double> want(before.begin(), before.end());
    for (size_t r = 0; r < rows; ++r)
      for (size_t o = 0; o < outputs; ++o) {
        double sum = add ? want[r * outputs + o] : 0;
        for (size_t i = 0; i < k; ++i) sum += double{x[r * k + i]} * w[o * k + i];
        want[r * outputs + o] = sum;
      }
    MC_TRY(const Values got, bed.get(y, DType::kF32));
    MC_TRY_(near(got, want, 1e-3, std::string("products of ") + model::name(type)));
  }
  return {};
}

// The last row of many: the same bits when it is computed alone, or with few.
Result<> rows_are_independent(Bed& bed, DType type) {
  constexpr uint32_t kOutputs = 512, kK = 1024, kRows = 300;
  MC_TRY(const Buffer w, bed.put(numbers(size_t{kOutputs} * kK, 5, type), type));
  MC_TRY(const Buffer x, bed.put(numbers(size_t{kRows} * kK, 6, type), type));
  MC_TRY(const Buffer y, bed.device->allocate(uint64_t{kRows} * kOutputs * sizeof(float)));
  Values whole;
  for (const uint32_t rows : {kRows, 1u, 7u, 33u, 129u}) {
    const std::byte* const from = x.data() + uint64_t{kRows - rows} * kK * size_of(type);
    MC_TRY_(finish(*bed.stream, [&] {
      return bed.stream->multiply(
          {library_type(type), w.data(), from, y.data(), kOutputs, kK, rows, false});
    }));
    MC_TRY(const Values all, bed.get(y, DType::kF32));
    const Values last(all.begin() + static_cast<long>((rows - 1) * kOutputs),
                      all.begin() + static_cast<long>(rows * kOutputs));
    if (whole.empty()) whole = last;
    MC_TRY_(same(std::as_bytes(std::span(last)), std::as_bytes(std::span(whole)),
                 strf("a row computed with %u of %s", rows - 1, model::name(type)).c_str()));
  }
  return {};
}

Result<> check_library(const Bench& b) {
  MC_TRY(const std::string name, b.device->products());
  std::fprintf(stderr, "  %s\n", name.c_str());
  MC_TRY(Bed bed, Bed::make(b));
  for (const DType type : kTypes) {
    MC_TRY_(near_reference(bed, type, 136, 200, 9));
    MC_TRY_(near_reference(bed, type, 200, 136, 131));
    MC_TRY_(rows_are_independent(bed, type));
  }
  return {};
}

Result<> time_library(const Bench& b) {
  MC_TRY_(b.device->products());
  MC_TRY(Bed bed, Bed::make(b));
  const uint32_t n = 4096;
  const uint64_t flops = 2 * uint64_t{n} * n * n;
  MC_TRY(const Buffer w, bed.put(numbers(size_t{n} * n, 1), DType::kBf16));
  MC_TRY(const Buffer x, bed.put(numbers(size_t{n} * n, 2), DType::kBf16));
  MC_TRY(const Buffer y, b.device->allocate(uint64_t{n} * n * sizeof(float)));
  const auto library = [&]() -> Result<bench::Measured> {
    return bench::gigabytes(b.clock, flops, 1, [&] {
      return finish(*bed.stream, [&] {
        return bed.stream->multiply(
            {device::Product::Type::kBf16, w.data(), x.data(), y.data(), n, n, n, false});
      });
    });
  };
  const auto own = [&]() -> Result<bench::Measured> {
    return bench::gigabytes(b.clock, flops, 1, [&] {
      return bed.run(named(MC_TENSOR, DType::kBf16),
                     {over(n, MC_TENSOR_OUTPUTS), over(n, MC_TENSOR_ROWS)}, w.data(), x.data(),
                     at(y), n, n, n, 0u);
    });
  };
  return bench::compare({.bench = "gpu-kernel",
                         .name = strf("product of %u cubed, bf16, cuBLASLt", n),
                         .unit = "GFLOP/s",
                         .against = "the own kernel"},
                        b.turns(), library, own);
}

// Few rows by an algorithm for few against the one for many; eight copies of the weights, so that
// they come from memory.
Result<> time_few(const Bench& b) {
  MC_TRY_(b.device->products());
  MC_TRY(Bed bed, Bed::make(b));
  constexpr uint32_t kOutputs = 4096, kK = 4096, kCopies = 8;
  const uint64_t each = uint64_t{2} * kOutputs * kK;
  MC_TRY(const Buffer w, b.device->allocate(kCopies * each));
  MC_TRY(const Buffer first, bed.put(numbers(size_t{kOutputs} * kK, 1), DType::kBf16));
  for (uint32_t i = 0; i < kCopies; ++i)
    MC_TRY_(finish(*bed.stream,
                   [&] { return bed.stream->copy(w.data() + i * each, first.data(), each); }));
  MC_TRY(const Buffer x, bed.put(numbers(size_t{64} * kK, 2), DType::kBf16));
  MC_TRY(const Buffer y, b.device->allocate(uint64_t{64} * kOutputs * sizeof(float)));
  for (const uint32_t rows : {1u, 16u, 64u}) {
    const auto side = [&](uint32_t tuned) {
      return [&, tuned]() -> Result<bench::Measured> {
        return bench::gigabytes(b.clock, kCopies * each, 1, [&] {
          return finish(*bed.stream, [&]() -> Result<> {
            for (uint32_t i = 0; i < kCopies; ++i)
              MC_TRY_(
                  bed.stream->multiply({device::Product::Type::kBf16, w.data() + i * each, x.data(),
                                        y.data(), kOutputs, kK, rows, false, tuned, 0}));
            return {};
          });
        });
      };
    };
    MC_TRY_(bench::compare({.bench = "gpu-kernel",
                            .name = strf("%u rows by 4096 squared, bf16, cuBLASLt", rows),
                            .against = "its algorithm for many"},
                           b.turns(), side(rows > 16 ? 64 : 16), side(0)));
  }
  return {};
}

}  // namespace

std::vector<Case> library_checks() {
  return {{"cublaslt", "products of cuBLASLt against the reference", check_library}};
}
std::vector<Case> library_figures() {
  return {{"time-cublaslt", "products of cuBLASLt against the own kernel", time_library},
          {"time-few", "few rows by cuBLASLt's algorithms for few", time_few}};
}

}  // namespace mc::gpu_check
