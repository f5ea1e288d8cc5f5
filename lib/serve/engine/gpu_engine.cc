#include "serve/engine/gpu_engine.h"

#include <algorithm>

#include "base/log.h"
#include "serve/engine/next_token.h"

namespace mc::serve {

GpuEngine::GpuEngine(cost::ModelSpec spec, std::unique_ptr<gpu::Transformer> transformer,
                     Fallback fallback, uint64_t vram)
    : spec_(std::move(spec)),
      transformer_(std::move(transformer)),
      fallback_(std::move(fallback)),
      vram_(vram) {}
GpuEngine::~GpuEngine() = default;

bool GpuEngine::ends_answer(int32_t token) const {
  const auto& eos = transformer_->config().eos;
  return std::find(eos.begin(), eos.end(), token) != eos.end();
}

bool GpuEngine::given_up() const {
  Lock lock(mutex_);
  return cpu_ != nullptr;
}

void GpuEngine::use_pool(std::span<std::byte> pool) const {
  Lock lock(mutex_);
  if (const auto pinned = transformer_->pin(pool); !pinned)
    log_warn("engine", "cannot pin the KV pool, so copies to %s are slower: %s",
             transformer_->device().info().location().c_str(), pinned.error().what.c_str());
  uint64_t bytes = std::min<uint64_t>(vram_, pool.size());
  if (vram_ == kVramAuto) {
    const auto free = transformer_->device().free_bytes();
    bytes = std::min<uint64_t>(bytes, free ? *free / 4 * 3 : 0);
  }
  const auto kept = transformer_->keep_blocks(bytes);
  if (!kept)
    log_warn("engine", "no KV block stays on %s, so each step copies them there: %s",
             transformer_->device().info().location().c_str(), kept.error().what.c_str());
  else
    log_info("engine", "%llu KV blocks stay on %s", static_cast<unsigned long long>(*kept),
             transformer_->device().info().location().c_str());
}

std::optional<DeviceKv> GpuEngine::device_kv() const {
  const gpu::KvTraffic t = transformer_->traffic();
  return DeviceKv{t.cache.slots,     t.cache.used, t.cache.hits, t.cache.uploads, t.cache.streamed,
                  t.cache.evictions, t.bytes_in,   t.bytes_out,  t.graph_steps};
}

// Switches to the CPU. Aborts the process if that fails too: nothing can compute then.
const Engine& GpuEngine::give_up(const Error& why) const {
  if (cpu_ != nullptr) return *cpu_;
  log_error("engine", "%s failed, the CPU computes from now on: %s",
            transformer_->device().info().location().c_str(), why.what.c_str());
  transformer_->drain();
  auto cpu = fallback_();
  if (!cpu) log_error("engine", "the CPU engine failed too: %s", cpu.error().what.c_str());
  MC_CHECK(cpu.has_value());
  cpu_ = std::move(*cpu);
  return *cpu_;
}

Result<> GpuEngine::on_device(const ChunkView& chunk, uint32_t layer,
                              Activations& activations) const {
  const SequenceView& s = chunk.sequence;
  if (layer == 0) {
    const model::Slice slice{s.blocks, chunk.begin, chunk.end};
    const gpu::Content content{s.tokens, s.parents};
    MC_TRY(gpu::Pass begun,
           transformer_->begin(s.tokens.subspan(chunk.begin, chunk.end - chunk.begin), {&slice, 1},
                               {&content, 1}));
    activations.elsewhere = std::make_shared<gpu::Pass>(std::move(begun));
  }
  auto* const pass = static_cast<gpu::Pass*>(activations.elsewhere.get());
  return transformer_->layer(*pass, layer, layer + 1 == spec_.layers);
}

void GpuEngine::prefill_layer(const ChunkView& chunk, uint32_t layer,
                              Activations& activations) const {
  MC_CHECK(chunk.begin <= chunk.end && chunk.end <= chunk.sequence.tokens.size() &&
           layer < spec_.layers);
  if (chunk.begin == chunk.end) return;
  Lock lock(mutex_);
  if (cpu_ == nullptr) {
    const auto done = on_device(chunk, layer, activations);
    if (done) return;
    (void)give_up(done.error());
  }
  if (activations.elsewhere == nullptr) return cpu_->prefill_layer(chunk, layer, activations);
  // The device's activations of the chunk are lost: compute it from the first layer.
  activations = {};
  for (uint32_t l = 0; l <= layer; ++l) cpu_->prefill_layer(chunk, l, activations);
}

Result<std::vector<int32_t>> GpuEngine::on_device(std::span<const DecodeItem> batch) const {
  std::vector<int32_t> last;
  std::vector<model::Slice> slices;
  std::vector<gpu::Choice> choices;
  std::vector<gpu::Content> contents;
  std::vector<std::vector<float>> logits(batch.size());  // of those that the host draws
  for (const DecodeItem& item : batch) {
    const size_t n = item.sequence.tokens.size();
    MC_CHECK(n > 0);
    last.push_back(item.sequence.tokens[n - 1]);
    slices.push_back({item.sequence.blocks, n - 1, n});
    contents.push_back({item.sequence.tokens, item.sequence.parents});
    const Sampling& s = item.sampling;
    choices.push_back({{s.temperature, s.top_k, s.top_p, s.seed, n, {}},
                       !s.eos_allowed && !s.ignore_eos,
                       item.for_host() ? &logits[choices.size()] : nullptr});
  }
  MC_TRY(std::vector<int32_t> tokens, transformer_->step(last, slices, choices, contents));
  for (size_t i = 0; i < batch.size(); ++i)
    if (choices[i].logits != nullptr)
      tokens[i] = next_token(logits[i], batch[i], transformer_->config().eos);
  return tokens;
}

std::vector<int32_t> GpuEngine::decode(std::span<const DecodeItem> batch) const {
  if (batch.empty()) return {};
  Lock lock(mutex_);
  if (cpu_ != nullptr) return cpu_->decode(batch);
  auto tokens = on_device(batch);
  return tokens ? *std::move(tokens) : give_up(tokens.error()).decode(batch);
}

}  // namespace mc::serve
