// A small transformer on a device and on the CPU, and sequences with KV blocks for both.
#pragma once
#include "gpu/transformer.h"
#include "tests/unit/device/kinds.h"
#include "tests/unit/model/run.h"

namespace mc::gpu {

inline model::ModelConfig small_config() {
  model::ModelConfig c;
  c.name = "small";
  c.vocab = 150;
  c.hidden = 40;
  c.intermediate = 56;
  c.layers = 3;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 20;  // no multiple of the lanes
  c.context_max = 600;
  c.eos = {2, 5};
  return c;
}

// Matrices whose numbers are those of f16.
inline model::WeightSources in_f16(model::WeightSources sources) {
  const auto round = [](model::Source& s) {
    s.read = [read = s.read, n = s.columns](uint32_t row, float* out) {
      read(row, out);
      std::vector<std::byte> halves(2 * size_t{n});
      model::from_floats(model::DType::kF16, out, halves.data(), n);
      model::to_floats(model::DType::kF16, halves.data(), out, n);
    };
  };
  for (model::Source* s : {&sources.embedding, &sources.head}) round(*s);
  for (auto& l : sources.layers)
    for (model::Source* s : {&l.qkv, &l.output, &l.gate_up, &l.down}) round(*s);
  return sources;
}

// The same weights on both sides; those of f16 are f32 to the CPU.
struct Both {
  Both(device::DevicePtr device, model::KvLayout kv, model::DType weights,
       const model::ModelConfig& config = small_config(), uint64_t seed = 7,
       model::DType factors = model::DType::kF32, Gemm gemm = Gemm::kAuto)
      : sources(weights == model::DType::kF16 ? in_f16(model::random_sources(config, seed))
                                              : model::random_sources(config, seed)),
        cpu(config,
            model::pack_weights(
                sources, weights == model::DType::kF16 ? model::DType::kF32 : weights, threads),
            kv, *model::kernels_named("auto"), threads,
            factors == model::DType::kF16 ? model::DType::kF32 : factors),
        gpu(device::must(Transformer::open(std::move(device), config, sources, weights, kv, threads,
                                           {factors, gemm}))) {}
  model::ThreadPool threads{1};
  model::WeightSources sources;
  model::Transformer cpu;
  std::unique_ptr<Transformer> gpu;
};

// KV blocks of a sequence.
struct Blocks {
  Blocks(const model::ModelConfig& c, model::KvLayout kv, size_t tokens) {
    const size_t bytes =
        size_t{c.layers} * 2 * c.kv_rows() * model::size_of(kv.type.type()) * kv.block_tokens;
    for (size_t at = 0; at < tokens; at += kv.block_tokens) memory.emplace_back(bytes);
    for (auto& m : memory) blocks.push_back(m.data());
  }
  model::Slice slice(size_t begin, size_t end) const { return {blocks, begin, end}; }
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> blocks;
};

inline std::vector<int32_t> tokens_of(size_t n, uint64_t seed, uint32_t vocab) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.next() % vocab);
  return tokens;
}

// Logits of all rows, `chunk` at a time; the KV lies in the blocks then.
inline std::vector<float> prefill(Transformer& t, const Blocks& kv,
                                  const std::vector<int32_t>& tokens, size_t chunk) {
  std::vector<float> all;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    const model::Slice slice = kv.slice(at, at + n);
    Pass pass = device::must(t.begin(std::span(tokens).subspan(at, n), {&slice, 1}));
    for (uint32_t l = 0; l < t.config().layers; ++l) device::must(t.layer(pass, l));
    const auto logits = device::must(t.logits(pass));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace mc::gpu
