// How fast the CPU engine decodes bench-1b: one sequence against the memory's speed (its weights
// are read once a step), eight sequences against one, and AVX2 against AVX-512.
#include "bench/engine_model.h"
#include "cmd/command.h"

namespace mc {
namespace {

using bench::Measured;

// GB/s of all threads reading a buffer from end to end.
double reading(const Clock& clock, model::ThreadPool& threads,
               const std::vector<uint64_t>& buffer) {
  using Wide [[gnu::vector_size(32), gnu::aligned(8)]] = uint64_t;
  constexpr size_t kParts = 64;
  std::vector<uint64_t> sums(kParts);
  const Time start = clock.now();
  threads.run(kParts, [&](size_t part) {
    const size_t n = buffer.size() / kParts;
    const uint64_t* from = buffer.data() + part * n;
    Wide s[4] = {};
    for (size_t i = 0; i + 16 <= n; i += 16)
      for (size_t j = 0; j < 4; ++j) s[j] ^= *reinterpret_cast<const Wide*>(from + i + 4 * j);
    const Wide all = s[0] ^ s[1] ^ s[2] ^ s[3];
    sums[part] = all[0] ^ all[1] ^ all[2] ^ all[3];
  });
  const double seconds = to_seconds(clock.now() - start);
  uint64_t seen = 0;
  for (const uint64_t s : sums) seen ^= s;
  if (seen == 1) std::fputs("", stderr);  // the sums are wanted
  return static_cast<double>(buffer.size() * sizeof(uint64_t)) / 1e9 / seconds;
}

// Steps of up to eight sequences behind their contexts.
class Steps {
 public:
  Steps(const Clock& clock, bench::EngineModel& m, size_t steps)
      : clock_(clock), m_(m), steps_(steps) {
    for (size_t i = 0; i < kSequences; ++i) {
      blocks_.push_back(m.blocks(kContext));
      m.run({{blocks_.back(), 0, kContext}});
    }
  }
  Measured rate(size_t batch) const {  // tokens a second, and ns of CPU a token
    std::vector<float> logits(batch * m_.transformer().config().vocab);
    std::vector<model::Slice> slices;
    for (size_t i = 0; i < batch; ++i) slices.push_back({blocks_[i], kContext - 1, kContext});
    const double cpu = bench::cpu_seconds();
    const Time start = clock_.now();
    for (size_t i = 0; i < steps_; ++i) {
      const auto x = m_.run(slices);
      m_.transformer().logits(x.data(), batch, logits.data());
    }
    const double seconds = to_seconds(clock_.now() - start);
    const auto tokens = static_cast<double>(batch * steps_);
    return Measured(tokens / seconds, (bench::cpu_seconds() - cpu) * 1e9 / tokens);
  }

 private:
  static constexpr size_t kSequences = 8, kContext = 64;
  const Clock& clock_;
  bench::EngineModel& m_;
  size_t steps_;
  std::vector<std::vector<std::byte*>> blocks_;
};

Result<int> run(const bench::EngineOptions& o) {
  const SteadyClock clock;
  MC_TRY(const auto m, bench::EngineModel::open(o, o.quick ? 8 : 0));
  const model::Weights& w = m->transformer().weights();
  const auto read_bytes = static_cast<double>(w.bytes() - w.embedding.bytes());
  const size_t steps = o.quick ? 2 : 4;
  const Steps wide(clock, *m, steps);
  const std::vector<uint64_t> buffer((size_t{1} << 30) / sizeof(uint64_t), 1);
  const std::string kind = o.activations + " x bf16";
  MC_TRY_(bench::compare(
      {"engine-decode", "one sequence, " + kind, "GB/s", "reading memory", 0.7}, o.turns(),
      [&]() -> Result<Measured> { return Measured(read_bytes / 1e9 * wide.rate(1).value); },
      [&]() -> Result<Measured> { return Measured(reading(clock, m->threads(), buffer)); }));
  MC_TRY_(bench::compare(
      {"engine-decode", "eight sequences, " + kind, "tokens/s", "one", 4}, o.turns(),
      [&]() -> Result<Measured> { return wide.rate(8); },
      [&]() -> Result<Measured> { return wide.rate(1); }));
  if (o.quick) return 0;
  // A second copy of all layers might not fit.
  MC_TRY(const auto narrow_model, bench::EngineModel::open_avx2(o, 8));
  if (narrow_model == nullptr) return 0;
  MC_TRY(const auto wide_model, bench::EngineModel::open(o, 8));
  const Steps narrow(clock, *narrow_model, steps), same(clock, *wide_model, steps);
  for (const size_t batch : {size_t{1}, size_t{8}}) {
    const auto rate = [batch](const Steps& s) -> Result<Measured> { return s.rate(batch); };
    MC_TRY_(bench::compare(
        {"engine-decode", (batch == 1 ? "one sequence, " : "eight sequences, ") + kind + ", avx2",
         "tokens/s", "AVX-512"},
        o.turns(), [&] { return rate(narrow); }, [&] { return rate(same); }));
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::bench::EngineOptions options;
  mc::Program program("engine_decode_bench", "how fast the CPU engine decodes");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
