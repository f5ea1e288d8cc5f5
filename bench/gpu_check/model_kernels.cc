// The kernels of the forward pass, each against a reference in double on the host, then timed: the
// memory-bound ones against a copy of as many bytes, products against the plain kernel.
#include "bench/gpu_check/bed.h"

namespace mc::gpu_check {
namespace {

Result<> check_rows(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  constexpr uint32_t kRows = 5, kWide = 2100, kVocab = 33;
  const std::vector<mc_row> rows{
      {3, 0, 0, 0}, {32, 1, 0, 0}, {0, 2, 0, 0}, {7, 3, 0, 0}, {7, 4, 0, 0}};
  MC_TRY(const Buffer list, bed.put(rows.data(), rows.size() * sizeof(mc_row)));
  const Values x = numbers(kRows * 2 * kWide, 1), weight = numbers(kWide, 2);
  MC_TRY(const Buffer in, bed.put(x, DType::kF32));
  MC_TRY(const Buffer weights, bed.put(weight, DType::kF32));
  for (const DType type : kTypes) {
    const Values table = numbers(kVocab * kWide, 3, type);
    MC_TRY(const Buffer tables, bed.put(table, type));
    MC_TRY(const Buffer embedded, b.device->allocate(kRows * kWide * sizeof(float)));
    MC_TRY(const Buffer out, b.device->allocate(kRows * kWide * size_of(type)));
    MC_TRY_(
        bed.run(named(MC_EMBED, type), {kRows}, tables.data(), rows_at(list), at(embedded), kWide));
    std::vector<double> want, normed, gated;
    for (size_t r = 0; r < kRows; ++r) {
      double squares = 0;
      for (size_t i = 0; i < kWide; ++i) squares += double{x[r * kWide + i]} * x[r * kWide + i];
      const double scale = 1 / std::sqrt(squares / kWide + 1e-5);
      for (size_t i = 0; i < kWide; ++i) {
        want.push_back(table[static_cast<size_t>(rows[r].token) * kWide + i]);
        normed.push_back(x[r * kWide + i] * scale * weight[i]);
        const double g = x[r * 2 * kWide + i];
        gated.push_back(g / (1 + std::exp(-g)) * x[r * 2 * kWide + kWide + i]);
      }
    }
    MC_TRY(const Values tokens, bed.get(embedded, DType::kF32));
    MC_TRY_(near(tokens, want, 0, named(MC_EMBED, type)));
    MC_TRY_(
        bed.run(named(MC_NORMALIZE, type), {kRows}, at(in), at(weights), out.data(), kWide, 1e-5));
    MC_TRY(const Values n, bed.get(out, type));
    MC_TRY_(near(n, normed, tolerance_of(type), named(MC_NORMALIZE, type)));
    MC_TRY_(bed.run(named(MC_GATE, type), {kRows, over(kWide, MC_GATE_PART)}, at(in), out.data(),
                    kWide));
    MC_TRY(const Values g, bed.get(out, type));
    MC_TRY_(near(g, gated, tolerance_of(type), named(MC_GATE, type)));
  }
  return {};
}

struct Shape {
  uint32_t outputs, k, rows, segments;
};

Result<> check_product(Bed& bed, const std::string& kernel, DType type, DType by, Shape s) {
  const Values w = numbers(size_t{s.outputs} * s.k, 5, type),
               x = numbers(size_t{s.rows} * s.k, 6, by);
  const Values before = numbers(size_t{s.rows} * s.outputs, 7);
  MC_TRY(const Buffer ws, bed.put(w, type));
  MC_TRY(const Buffer xs, bed.put(x, by));
  for (const uint32_t add : {0u, 1u}) {
    MC_TRY(const Buffer y, bed.put(before, DType::kF32));
    const bool tensor = kernel == MC_TENSOR;
    const auto ran =
        tensor ? bed.run(named(MC_TENSOR, type),
                         {over(s.outputs, MC_TENSOR_OUTPUTS), over(s.rows, MC_TENSOR_ROWS)},
                         ws.data(), xs.data(), at(y), s.outputs, s.k, s.rows, add)
               : bed.run(named(MC_MULTIPLY, type),
                         {over(s.outputs, MC_PLAIN_OUTPUTS), over(s.rows, MC_PLAIN_ROWS)},
                         ws.data(), at(xs), at(y), s.outputs, s.k, s.rows, s.segments, add);
    MC_TRY_(ran);
    std::vector<double> want(before.begin(), before.end());
    for (size_t r = 0; r < s.rows; ++r)
      for (size_t o = 0; o < s.outputs; ++o) {
        double sum = add ? want[r * s.outputs + o] : 0;
        for (size_t i = 0; i < s.k; ++i) sum += double{x[r * s.k + i]} * w[o * s.k + i];
        want[r * s.outputs + o] = sum;
      }
    MC_TRY(const Values got, bed.get(y, DType::kF32));
    MC_TRY_(near(got, want, 1e-4, named(kernel.c_str(), type)));
  }
  return {};
}

Result<> check_products(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  for (const DType type : kTypes)
    for (const Shape s : {Shape{1, 1, 1, 1}, Shape{130, 200, 9, 8}, Shape{129, 43 * 4, 20, 4}}) {
      MC_TRY_(check_product(bed, MC_MULTIPLY, type, DType::kF32, s));
      if (type != DType::kF32 && s.k % 8 == 0) {
        MC_TRY_(check_product(bed, MC_TENSOR, type, type, s));
      }
    }
  for (const DType type : {DType::kF16, DType::kBf16})
    MC_TRY_(check_product(bed, MC_TENSOR, type, type, {200, 136, 131, 1}));
  return {};
}

bool tiny(const Bench& b) { return b.device->info().kind == "stand-in"; }

// Bytes that are read and written, against copies that move as many; `times` one after the other.
Result<> normalize_rows(const Bench& b, DType type, uint32_t rows, size_t times) {
  MC_TRY(Bed bed, Bed::make(b));
  constexpr uint32_t kWide = 4096;
  const uint64_t numbers_in = uint64_t{rows} * kWide;
  const uint64_t bytes = numbers_in * (sizeof(float) + size_of(type));
  MC_TRY(const Buffer x, b.device->allocate(numbers_in * sizeof(float)));
  MC_TRY(const Buffer out, b.device->allocate(numbers_in * sizeof(float)));
  MC_TRY(const Buffer weight, bed.put(numbers(kWide, 1), DType::kF32));
  const auto rate = [&](const std::function<Result<>()>& submit) -> bench::Turn {
    return [&, submit]() -> Result<bench::Measured> {
      return bench::gigabytes(b.clock, bytes * times, 1, [&] {
        return finish(*bed.stream, [&]() -> Result<> {
          for (size_t i = 0; i < times; ++i) MC_TRY_(submit());
          return {};
        });
      });
    };
  };
  const std::string kernel = named(MC_NORMALIZE, type);
  return bench::compare(
      {.bench = "gpu-kernel",
       .name = strf("normalize %u rows of %u, %s", rows, kWide, model::name(type)),
       .against = "one copy"},
      b.turns(), rate([&] {
        return launch(*bed.stream, kernel, {rows}, at(x), at(weight), at(out), kWide, 1e-5);
      }),
      rate([&] { return bed.stream->copy(out.data(), x.data(), bytes / 2); }));
}
Result<> time_normalize(const Bench& b) {
  for (const DType type : {DType::kF32, DType::kBf16}) {
    MC_TRY_(normalize_rows(b, type, tiny(b) ? 16 : 16384, 1));
    MC_TRY_(normalize_rows(b, type, 8, tiny(b) ? 1 : 200));  // a step's
  }
  return {};
}

Result<> time_products(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  const uint32_t n = tiny(b) ? 128 : 4096;
  const uint64_t flops = 2 * uint64_t{n} * n * n, bytes = uint64_t{n} * n * 2;
  MC_TRY(const Buffer w, bed.put(numbers(size_t{n} * n, 1), DType::kBf16));
  MC_TRY(const Buffer x16, bed.put(numbers(size_t{n} * n, 2), DType::kBf16));
  MC_TRY(const Buffer x32, bed.put(numbers(size_t{n} * n, 2), DType::kF32));
  MC_TRY(const Buffer y, b.device->allocate(2 * bytes));
  const auto tensor = [&]() -> Result<bench::Measured> {
    return bench::gigabytes(b.clock, flops, 1, [&] {
      return bed.run(named(MC_TENSOR, DType::kBf16),
                     {over(n, MC_TENSOR_OUTPUTS), over(n, MC_TENSOR_ROWS)}, w.data(), x16.data(),
                     at(y), n, n, n, 0u);
    });
  };
  const auto plain = [&]() -> Result<bench::Measured> {
    return bench::gigabytes(b.clock, flops, 1, [&] {
      return bed.run(named(MC_MULTIPLY, DType::kBf16),
                     {over(n, MC_PLAIN_OUTPUTS), over(n, MC_PLAIN_ROWS)}, w.data(), at(x32), at(y),
                     n, n, n, 1u, 0u);
    });
  };
  return bench::compare({.bench = "gpu-kernel",
                         .name = strf("product of %u cubed, bf16", n),
                         .unit = "GFLOP/s",
                         .against = "the plain kernel"},
                        b.turns(), tensor, plain);
}

}  // namespace

std::vector<Case> kernel_figures() {
  return {
      {"time-normalize", "normalization against a copy", time_normalize},
      {"time-products", "products on the tensor cores against plain ones", time_products},
  };
}

std::vector<Case> kernel_checks() {
  return {
      {"activations", "embedding, normalization and gate", check_rows},
      {"products", "plain products, and the tensor cores'", check_products},
  };
}

}  // namespace mc::gpu_check
