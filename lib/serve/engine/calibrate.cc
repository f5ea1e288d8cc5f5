#include "serve/engine/calibrate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/units.h"

namespace mc::serve {
namespace {

constexpr uint64_t kTokensMin = 64;  // of the longest prompt; shorter ones measure noise
constexpr uint64_t kBatches[] = {1, 2, 4, 8};

struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* p) const { (void)::munmap(p, bytes); }
};

// Memory for blocks; of the engine's file where other processes map it too.
class BlockMemory {
 public:
  static Result<BlockMemory> open(const Engine& engine, uint64_t bytes) {
    BlockMemory m;
    MC_TRY(const io::Fd file, engine.pool_file());
    if (file && ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
      return fail_errno("%s of KV blocks", rounded_bytes_text(bytes).c_str());
    void* const p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file.get(), 0);
    if (p == MAP_FAILED) return fail_errno("%s of KV blocks", rounded_bytes_text(bytes).c_str());
    m.memory_ = {static_cast<std::byte*>(p), Unmap{bytes}};
    if (file) engine.use_pool({m.memory_.get(), bytes});
    return m;
  }
  std::byte* get() const { return memory_.get(); }

 private:
  std::unique_ptr<std::byte, Unmap> memory_;
};

uint64_t blocks_for(const Engine& engine, uint64_t tokens) {
  return (tokens + engine.block_tokens() - 1) / engine.block_tokens();
}
uint64_t blocks_of_bench(const Engine& engine, const CalibrateOptions& options, uint64_t tokens) {
  return std::min<uint64_t>(options.blocks,
                            kBatches[std::size(kBatches) - 1] * blocks_for(engine, tokens));
}

// Runs one engine over `blocks` blocks and a text.
class Bench {
 public:
  Bench(const Engine& engine, const Clock& clock, const CalibrateOptions& options, uint64_t tokens,
        std::byte* memory, uint64_t blocks)
      : engine_(engine), clock_(clock), options_(options) {
    const uint64_t bytes = engine.spec().block_bytes(engine.block_tokens());
    for (uint64_t i = 0; i < blocks; ++i) blocks_.push_back(memory + i * bytes);
    for (uint64_t i = 0; i < tokens; ++i)
      text_.push_back(static_cast<int32_t>(i * 7919 % engine.spec().vocab));
    for (uint8_t i = 0; i < kBatches[std::size(kBatches) - 1]; ++i) parents_.push_back(chain(i));
  }
  uint64_t blocks_of(uint64_t tokens) const { return blocks_for(engine_, tokens); }
  bool holds(uint64_t batch, uint64_t context) const {
    return batch * blocks_of(context) <= blocks_.size();
  }

  // Seconds for a prompt of n tokens whose first p are reused.
  double prompt(uint64_t n, uint64_t p) const {
    compute(0, p);
    return median([&] { compute(p, n); });
  }
  // Seconds for a step of `batch` requests, each with its own KV of `context` tokens.
  double step(uint64_t batch, uint64_t context) const {
    const std::span text = std::span(text_).first(context);
    std::vector<DecodeItem> items;
    for (uint64_t i = 0; i < batch; ++i) {
      const auto own = std::span(blocks_).subspan(i * blocks_of(context), blocks_of(context));
      engine_.write({{text, parents_[i], own}, 0, context});
      items.push_back({{text, parents_[i], own}, {}, true});
    }
    return median([&] { (void)engine_.decode(items); });
  }

 private:
  // Differ by tenant, so that an engine that caches blocks by hash shares none among requests.
  std::vector<BlockHash> chain(uint8_t tenant) const {
    std::vector<BlockHash> parents(1);
    parents[0].bytes[0] = tenant;
    for (size_t at = 0; at + engine_.block_tokens() < text_.size(); at += engine_.block_tokens())
      parents.push_back(chain_hash(
          parents.back(), std::span<const int32_t>(text_).subspan(at, engine_.block_tokens())));
    return parents;
  }
  void compute(uint64_t begin, uint64_t end) const {
    for (uint64_t at = begin; at < end; at += options_.chunk_tokens)
      engine_.write({{std::span(text_).first(end), parents_[0], blocks_},
                     at,
                     std::min(end, at + options_.chunk_tokens)});
  }
  template <class F>
  double median(F run) const {
    std::vector<double> times;
    for (uint32_t i = 0; i < options_.repeats; ++i) {
      const Time start = clock_.now();
      run();
      times.push_back(to_seconds(clock_.now() - start));
    }
    std::nth_element(times.begin(), times.begin() + options_.repeats / 2, times.end());
    return times[options_.repeats / 2];
  }

  const Engine& engine_;
  const Clock& clock_;
  const CalibrateOptions options_;
  std::vector<std::byte*> blocks_;
  std::vector<std::vector<BlockHash>> parents_;  // of the text, for each tenant of a batch
  std::vector<int32_t> text_;
};

}  // namespace

Result<Calibration> calibrate(const Engine& engine, const Clock& clock,
                              const CalibrateOptions& options,
                              const std::function<void(const std::string&)>& progress) {
  if (engine.modelled_time())
    return fail(Code::kUnsupported,
                "--calibrate: the dummy engine computes nothing that could be measured: want "
                "--engine cpu, or a "
                "--model with weights");
  const uint64_t tokens = std::min({options.tokens, engine.spec().context_max,
                                    uint64_t{options.blocks} * engine.block_tokens()});
  if (options.chunk_tokens == 0 || options.repeats == 0)
    return fail(Code::kInvalid, "chunks of %llu tokens, %u times: want 1 or more of both",
                static_cast<unsigned long long>(options.chunk_tokens), options.repeats);
  if (tokens < kTokensMin)
    return fail(Code::kInvalid,
                "%llu tokens (of --calibrate-tokens, the model's context and the pool, the least): "
                "want %llu or more",
                static_cast<unsigned long long>(tokens),
                static_cast<unsigned long long>(kTokensMin));
  const uint64_t blocks = blocks_of_bench(engine, options, tokens);
  MC_TRY(const BlockMemory memory,
         BlockMemory::open(engine, blocks * engine.spec().block_bytes(engine.block_tokens())));
  const Bench bench(engine, clock, options, tokens, memory.get(), blocks);
  Calibration found;
  (void)bench.prompt(tokens / 4, 0);  // warms pages, caches and threads
  for (const uint64_t n : {tokens / 16, tokens / 8, tokens / 4, tokens / 2, tokens})
    for (const uint64_t p : {uint64_t{0}, n / 2, n - n / 8}) {
      found.prefill.push_back({n, p, bench.prompt(n, p)});
      progress(strf("prompt of %llu tokens, %llu reused: %.3f ms",
                    static_cast<unsigned long long>(n), static_cast<unsigned long long>(p),
                    found.prefill.back().seconds * 1e3));
    }
  for (const uint64_t context : {tokens / 16, tokens / 4, tokens})
    for (const uint64_t batch : kBatches) {
      if (!bench.holds(batch, context)) break;
      found.steps.push_back({batch, batch * context, bench.step(batch, context)});
      progress(strf("step of %llu requests of %llu tokens: %.3f ms",
                    static_cast<unsigned long long>(batch),
                    static_cast<unsigned long long>(context), found.steps.back().seconds * 1e3));
    }
  MC_TRY(found.fit, cost::fit_cost(engine.spec(), found.prefill, found.steps));
  return found;
}

}  // namespace mc::serve
