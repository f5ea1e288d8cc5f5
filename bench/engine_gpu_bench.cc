// How fast a GPU computes: decode steps against the memory's speed and against each other, prompts
// against a large product by the same library. Weights are random; --shape picks the model's sizes.
#include <algorithm>

#include "bench/figure.h"
#include "cmd/command.h"
#include "device/named.h"
#include "gpu/transformer.h"

namespace mc {
namespace {

using bench::Measured;
using model::DType;

constexpr uint32_t kBlock = 16;

struct GpuOptions : bench::Options {
  std::string device = "cuda:0", shape = "8b", gemm = "auto";
  uint32_t layers = 0, context = 1024, prompt = 2048;
  void describe(OptionList& v) {
    Options::describe(v);
    v("device", device, "what computes: cuda:0, cuda:1, or stand-in, whose figures say nothing");
    v("shape", shape, "sizes of the model's layers", {"1b", "8b", "small"});
    v("layers", layers, "layers; 0: as many as the model has");
    v("gemm", gemm, "matrix products", {"auto", "own", "cublaslt"});
    v("context", context, "tokens before a decode step");
    v("prompt", prompt, "tokens of a prompt");
  }
};

model::ModelConfig config_of(const GpuOptions& o) {
  model::ModelConfig c = model::bench_config();
  c.context_max = 32768;
  if (o.shape == "8b") {
    c.name = "bench-8b";
    c.vocab = 128256;
    c.hidden = 4096;
    c.intermediate = 14336;
    c.layers = 32;
    c.kv_heads = 8;
    c.head_dim = 128;
  } else if (o.shape == "small") {
    c.name = "bench-small";
    c.vocab = 640;
    c.hidden = 256;
    c.intermediate = 512;
    c.layers = 3;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_dim = 64;
  }
  if (o.layers > 0) c.layers = o.layers;
  return c;
}

// One layer's random numbers serve all layers: what is computed takes as long.
model::WeightSources sources_of(const model::ModelConfig& c) {
  model::ModelConfig one = c;
  one.layers = 1;
  one.vocab = std::min(c.vocab, 4096u);
  model::WeightSources s = model::random_sources(one, 1);
  for (model::Source* const table : {&s.embedding, &s.head}) {
    if (table->rows == 0) continue;
    table->rows = c.vocab;
    table->read = [read = table->read, n = one.vocab](uint32_t row, float* out) {
      read(row % n, out);
    };
  }
  s.layers.resize(c.layers, s.layers.front());
  return s;
}

// A sequence: its tokens, what its blocks chain on, and their memory.
struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<BlockHash> parents;
  std::vector<std::byte*> blocks;
  gpu::Content content() const { return {tokens, parents}; }
  model::Slice slice(size_t begin) const { return {blocks, begin, tokens.size()}; }
};

class Gpu {
 public:
  static Result<std::unique_ptr<Gpu>> open(const GpuOptions& o, const Clock& clock) {
    MC_TRY(device::DevicePtr device, device::open_named(o.device, clock));
    const model::ModelConfig c = config_of(o);
    std::unique_ptr<Gpu> g(new Gpu(clock));
    const gpu::Gemm gemm = o.gemm == "own"    ? gpu::Gemm::kOwn
                           : o.gemm == "auto" ? gpu::Gemm::kAuto
                                              : gpu::Gemm::kLibrary;
    MC_TRY(g->t_,
           gpu::Transformer::open(std::move(device), c, sources_of(c), DType::kBf16,
                                  {DType::kBf16, kBlock}, g->threads_, {DType::kBf16, gemm}));
    return g;
  }
  gpu::Transformer& t() { return *t_; }

  // Room for the KV of so many tokens, on the host and on the device.
  Result<> make_room(size_t tokens) {
    host_.resize((tokens / kBlock + 1) * t_->block_bytes());
    MC_TRY_(t_->pin(host_));
    next_ = 0;
    MC_TRY(const uint64_t kept, t_->keep_blocks(host_.size()));
    if (kept == 0) return fail(Code::kNoSpace, "no KV block stays on the device");
    return {};
  }
  Sequence sequence(size_t tokens, uint64_t seed) {
    Sequence s;
    for (size_t p = 0; p < tokens; ++p)
      s.tokens.push_back(static_cast<int32_t>((p * 7919 + seed * 104729) % t_->config().vocab));
    s.parents.assign(1, {});
    for (size_t at = 0; at + kBlock < tokens; at += kBlock)
      s.parents.push_back(
          chain_hash(s.parents.back(), std::span<const int32_t>(s.tokens).subspan(at, kBlock)));
    for (size_t at = 0; at < tokens; at += kBlock, next_ += t_->block_bytes())
      s.blocks.push_back(host_.data() + next_);
    return s;
  }
  // Returns tokens a second.
  Result<double> prefill(const Sequence& s, size_t chunk) {
    const Time start = clock_.now();
    for (size_t at = 0; at < s.tokens.size(); at += chunk) {
      const size_t n = std::min(chunk, s.tokens.size() - at);
      const model::Slice slice{s.blocks, at, at + n};
      const gpu::Content content{std::span(s.tokens).first(at + n), s.parents};
      MC_TRY(gpu::Pass pass,
             t_->begin(std::span(s.tokens).subspan(at, n), {&slice, 1}, {&content, 1}));
      for (uint32_t l = 0; l < t_->config().layers; ++l) MC_TRY_(t_->layer(pass, l));
    }
    return static_cast<double>(s.tokens.size()) / to_seconds(clock_.now() - start);
  }
  // Returns tokens a second of steps of `rows` sequences.
  Result<double> decode(std::span<const Sequence> all, size_t rows, size_t steps,
                        model::Draw draw = {}) {
    std::vector<int32_t> last;
    std::vector<model::Slice> slices;
    std::vector<gpu::Content> contents;
    for (const Sequence& s : all.first(rows)) {
      last.push_back(s.tokens.back());
      slices.push_back(s.slice(s.tokens.size() - 1));
      contents.push_back(s.content());
    }
    gpu::Choice choice;
    choice.draw = draw;
    const std::vector<gpu::Choice> choices(rows, choice);
    const Time start = clock_.now();
    for (size_t i = 0; i < steps; ++i) {
      MC_TRY_(t_->step(last, slices, choices, contents));
    }
    return static_cast<double>(rows * steps) / to_seconds(clock_.now() - start);
  }

 private:
  explicit Gpu(const Clock& clock) : clock_(clock) {}
  const Clock& clock_;
  model::ThreadPool threads_{0};
  std::vector<std::byte> host_;
  std::unique_ptr<gpu::Transformer> t_;
  uint64_t next_ = 0;
};

double row_flops(const model::ModelConfig& c) {  // of the layers' matrices, for a row
  return 2.0 * c.layers * c.hidden * (2.0 * c.q_rows() + 2.0 * c.kv_rows() + 3.0 * c.intermediate);
}

// GB/s of a copy on the device, read and written.
Result<double> copying(const Clock& clock, device::Stream& stream, const device::Memory& a,
                       const device::Memory& b) {
  const Time start = clock.now();
  for (int i = 0; i < 4; ++i) MC_TRY_(stream.copy(b.data(), a.data(), a.size()));
  MC_TRY(const auto event, stream.record());
  MC_TRY_(event->wait());
  return 8.0 * static_cast<double>(a.size()) / 1e9 / to_seconds(clock.now() - start);
}

// GFLOP/s of 4096 cubed.
Result<double> product(const Clock& clock, device::Stream& stream, const device::Memory& a,
                       const device::Memory& y) {
  constexpr uint32_t kSize = 4096;
  const Time start = clock.now();
  for (int i = 0; i < 8; ++i)
    MC_TRY_(stream.multiply({device::Product::Type::kBf16, a.data(),
                             a.data() + uint64_t{2} * kSize * kSize, y.data(), kSize, kSize, kSize,
                             false}));
  MC_TRY(const auto event, stream.record());
  MC_TRY_(event->wait());
  return 8 * 2.0 * kSize * kSize * kSize / 1e9 / to_seconds(clock.now() - start);
}

Result<int> run(const GpuOptions& o) {
  const SteadyClock clock;
  const bool stand_in = o.device == "stand-in";
  MC_TRY(const auto g, Gpu::open(o, clock));
  gpu::Transformer& t = g->t();
  const model::ModelConfig& c = t.config();
  std::fprintf(stderr, "%s, %u layers, %.2f GB of weights, products by %s\n", c.name.c_str(),
               c.layers, static_cast<double>(t.weights().bytes) / 1e9, t.gemm().by().c_str());
  const size_t most = stand_in ? 2 : 32, steps = stand_in ? 2 : o.quick ? 16 : 32;
  const size_t context = stand_in ? 40 : o.context, prompt = stand_in ? 40 : o.prompt;
  const size_t long_prompt = 4 * prompt;
  if (context == 0 || context > c.context_max || prompt == 0 || long_prompt > c.context_max)
    return fail(Code::kInvalid, "want 1 to %zu tokens of context, and 1 to %zu of a prompt",
                c.context_max, c.context_max / 4);
  const size_t turns = stand_in ? 1 : o.quick ? 3 : 5;
  MC_TRY_(g->make_room(most * (context + kBlock) + prompt + long_prompt + 2 * kBlock));
  std::vector<Sequence> all;
  for (size_t i = 0; i < most; ++i) {
    all.push_back(g->sequence(context, i + 1));
    MC_TRY_(g->prefill(all.back(), context));
  }
  const uint64_t size = stand_in ? 1 << 20 : 1 << 28;
  MC_TRY(const device::Memory a, t.device().allocate(size));
  MC_TRY(const device::Memory b, t.device().allocate(size));
  MC_TRY(const auto stream, t.device().open_stream());
  const std::string name = c.name + strf(" x %u, ", c.layers);
  const double weights =
      static_cast<double>(t.weights().bytes) -
      (t.weights().head.rows > 0 ? static_cast<double>(t.weights().embedding.memory.size()) : 0);
  const double kv_row = static_cast<double>(t.block_bytes()) / kBlock;
  const auto rate = [&](size_t rows, model::Draw draw = {}) {
    return [&, rows, draw]() -> Result<Measured> {
      MC_TRY(const double tokens, g->decode(all, rows, steps, draw));
      return Measured(tokens);
    };
  };
  for (const size_t rows : {size_t{1}, most / 4, most})
    if (rows > 0)
      MC_TRY_(bench::compare(
          {"engine-gpu", name + strf("decode of %zu at %zu", rows, context), "GB/s",
           "memory, read and written", 0.6},
          turns,
          [&]() -> Result<Measured> {
            MC_TRY(const double tokens, g->decode(all, rows, steps));
            const double n = static_cast<double>(rows);
            return Measured(tokens / n * (weights + n * kv_row * static_cast<double>(context)) /
                            1e9);
          },
          [&]() -> Result<Measured> {
            MC_TRY(const double speed, copying(clock, *stream, a, b));
            return Measured(speed);
          }));
  for (const size_t rows : {most / 4, most})
    if (rows > 1)
      MC_TRY_(bench::compare({"engine-gpu", name + strf("decode of %zu", rows), "tokens/s", "one"},
                             turns, rate(rows), rate(1)));
  MC_TRY_(bench::compare(
      {"engine-gpu", name + strf("decode of %zu, drawn", most), "tokens/s", "greedy"}, turns,
      rate(most, {.temperature = 0.8, .top_p = 0.9, .seed = 3}), rate(most)));
  for (const size_t n : {prompt, long_prompt}) {
    const Sequence s = g->sequence(n, 1000 + n);
    const double attention = 2.0 * c.layers * c.q_rows() * static_cast<double>(n);  // of a row
    MC_TRY_(bench::compare(
        {"engine-gpu", name + strf("prompt of %zu", n), "GFLOP/s", "a product of 4096 cubed",
         n == prompt ? 0.6 : 0},
        turns,
        [&]() -> Result<Measured> {
          MC_TRY(const double tokens, g->prefill(s, prompt));
          return Measured(tokens * (row_flops(c) + attention) / 1e9);
        },
        [&]() -> Result<Measured> {
          if (stand_in) return Measured(1);
          MC_TRY(const double speed, product(clock, *stream, a, b));
          return Measured(speed);
        }));
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::GpuOptions options;
  mc::Program program("engine_gpu_bench", "how fast a GPU computes");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
