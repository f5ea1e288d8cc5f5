// How fast the CPU engine computes a prompt's chunk, with the shapes of bench-1b: against the most
// this CPU multiplies in the engine's formats when nothing is loaded, OpenBLAS's sgemm where it is
// installed, AVX2 against AVX-512, and a long prompt against a short one.
#include <dlfcn.h>

#include <algorithm>
#if defined(__x86_64__)
#if !defined(__clang__)  // g++ 12's own header again
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include "bench/engine_model.h"
#include "cmd/command.h"

namespace mc {
namespace {

using bench::Measured;
constexpr size_t kRows = 512;
constexpr size_t kLong = 4200, kShort = 400, kLongTurns = 3;  // tokens; a long turn takes seconds

#if defined(__x86_64__)
constexpr int kSums = 16;

[[gnu::target("avx512f,avx512bf16")]] float dots(uint64_t rounds) {
  __m512 s[kSums];
  for (auto& v : s) v = _mm512_setzero_ps();
  __m512i a = _mm512_set1_epi32(0x3C003C00);
  for (uint64_t i = 0; i < rounds; ++i) {
    asm("" : "+v"(a));  // not known to be the same each time
    for (auto& v : s)
      v = _mm512_dpbf16_ps(v, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(a));
  }
  float sum = 0;
  for (const auto& v : s) sum += _mm512_cvtss_f32(v);
  return sum;
}
[[gnu::target("avx512f")]] float fused(uint64_t rounds) {
  __m512 s[kSums];
  for (auto& v : s) v = _mm512_setzero_ps();
  __m512 a = _mm512_set1_ps(1e-6f);
  for (uint64_t i = 0; i < rounds; ++i) {
    asm("" : "+v"(a));
    for (auto& v : s) v = _mm512_fmadd_ps(a, a, v);
  }
  float sum = 0;
  for (const auto& v : s) sum += _mm512_cvtss_f32(v);
  return sum;
}

[[gnu::target("avx2,fma")]] float fused_eights(uint64_t rounds) {
  __m256 s[8];  // 16 registers are fewer
  for (auto& v : s) v = _mm256_setzero_ps();
  __m256 a = _mm256_set1_ps(1e-6f);
  for (uint64_t i = 0; i < 4 * rounds; ++i) {
    asm("" : "+v"(a));
    for (auto& v : s) v = _mm256_fmadd_ps(a, a, v);
  }
  float sum = 0;
  for (const auto& v : s) sum += _mm256_cvtss_f32(v);
  return sum;
}

// GFLOP/s of all threads in registers, by the instructions that the kernels have; 0: this CPU is
// not measured.
double peak(const Clock& clock, model::ThreadPool& threads, std::string_view kernels, bool bf16) {
  constexpr uint64_t kRounds = 8'000'000;
  const bool eights = kernels == "avx2";
  if (!(eights ? __builtin_cpu_supports("fma") : __builtin_cpu_supports("avx512f"))) return 0;
  const bool pairs = !eights && bf16 && __builtin_cpu_supports("avx512bf16");
  std::vector<float> sums(threads.count());
  const Time start = clock.now();
  threads.run(sums.size(), [&](size_t i) {
    sums[i] = eights ? fused_eights(kRounds) : pairs ? dots(kRounds) : fused(kRounds);
  });
  const double flops = static_cast<double>(kRounds) * kSums * 16 * (pairs ? 4 : 2);
  return flops * static_cast<double>(sums.size()) / 1e9 / to_seconds(clock.now() - start);
}
#else
double peak(const Clock&, model::ThreadPool&, std::string_view, bool) { return 0; }
#endif

struct Shape {
  size_t n, k;  // of a layer's matrices
};
std::vector<Shape> shapes_of(const model::ModelConfig& c) {
  return {{c.q_rows() + 2 * c.kv_rows(), c.hidden},
          {c.hidden, c.q_rows()},
          {2 * c.intermediate, c.hidden},
          {c.hidden, c.intermediate}};
}

using Gemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                      float, float*, int);

// GFLOP/s of OpenBLAS over a layer's shapes.
Measured sgemm(const Clock& clock, Gemm gemm, const std::vector<Shape>& shapes) {
  static std::vector<float> x(kRows * 16384, 0.5f), w(16384 * 4096, 0.25f), y(kRows * 16384);
  double flops = 0;
  const Time start = clock.now();
  for (const Shape& s : shapes) {
    const auto n = static_cast<int>(s.n), k = static_cast<int>(s.k);
    gemm(101, 111, 112, kRows, n, k, 1, x.data(), k, w.data(), k, 0, y.data(), n);
    flops += 2.0 * static_cast<double>(kRows * s.n * s.k);
  }
  return flops / 1e9 / to_seconds(clock.now() - start);
}

Result<int> run(const bench::EngineOptions& o) {
  const SteadyClock clock;
  const uint32_t layers = 2;
  MC_TRY(const auto m, bench::EngineModel::open(o, layers));
  const model::ModelConfig& c = m->transformer().config();
  const auto shapes = shapes_of(c);
  double flops = 0;  // of the matrices alone: attention is on top of it
  for (const Shape& s : shapes) flops += 2.0 * layers * static_cast<double>(kRows * s.n * s.k);
  const auto blocks = m->blocks(kRows);
  const auto chunk = [&](bench::EngineModel& model) {
    const Time start = clock.now();
    model.run({{blocks, 0, kRows}});
    return Measured(flops / 1e9 / to_seconds(clock.now() - start));
  };
  const auto ours = [&]() -> Result<Measured> { return chunk(*m); };
  const bool bf16 = o.activations == "bf16";
  const std::string name =
      "chunk of 512, " + o.activations + " x bf16" + (o.kernels == "auto" ? "" : ", " + o.kernels);
  if (peak(clock, m->threads(), o.kernels, bf16) > 0)
    MC_TRY_(bench::compare({"engine-prefill", name, "GFLOP/s", "peak of its CPUs", 0.6}, o.turns(),
                           ours, [&]() -> Result<Measured> {
                             return Measured(peak(clock, m->threads(), o.kernels, bf16));
                           }));
  MC_TRY(const auto narrow, bench::EngineModel::open_avx2(o, layers));
  if (narrow != nullptr)
    MC_TRY_(bench::compare(
        {"engine-prefill", name + ", avx2", "GFLOP/s", "AVX-512"}, o.turns(),
        [&]() -> Result<Measured> { return chunk(*narrow); }, ours));
  // A long prompt beside a short one: what attention takes.
  const auto room = m->blocks(kLong);
  const auto prompt = [&](size_t tokens) -> Result<Measured> {
    const Time start = clock.now();
    for (size_t at = 0; at < tokens; at += kRows)
      m->run({{room, at, std::min(tokens, at + kRows)}});
    return Measured(static_cast<double>(tokens) / to_seconds(clock.now() - start));
  };
  MC_TRY_(bench::compare(
      {"engine-prefill", strf("prompt of %zu, ", kLong) + o.activations + " x bf16", "tokens/s",
       strf("prompt of %zu", kShort), 0.8},
      kLongTurns, [&] { return prompt(kLong); }, [&] { return prompt(kShort); }));
  void* blas = ::dlopen("libopenblas.so.0", RTLD_NOW);
  if (blas == nullptr) return 0;
  const auto gemm = reinterpret_cast<Gemm>(::dlsym(blas, "cblas_sgemm"));
  if (gemm == nullptr) return 0;
  MC_TRY_(bench::compare({"engine-prefill", name, "GFLOP/s", "OpenBLAS sgemm", 0.6}, o.turns(),
                         ours, [&]() -> Result<Measured> { return sgemm(clock, gemm, shapes); }));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::bench::EngineOptions options;
  mc::Program program("engine_prefill_bench", "how fast the CPU engine computes prompts");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
