// The model the engine's benchmarks compute: bench-1b, its weights random bf16 in memory, and the
// sequences they compute it for.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "bench/figure.h"
#include "model/forward/model.h"
#include "model/forward/transformer.h"

namespace mc::bench {

struct EngineOptions : Options {
  uint32_t threads = 0;
  std::string kernels = "auto", activations = "bf16";
  void describe(OptionList& v) {
    Options::describe(v);
    v("threads", threads, "threads that compute; 0: one for each CPU");
    v("kernels", kernels, "instruction set");
    v("activations", activations, "what weights of bf16 are multiplied by", {"f32", "bf16"});
  }
};

class EngineModel {
 public:
  static Result<std::unique_ptr<EngineModel>> open(const EngineOptions& o, uint32_t layers) {
    const model::Kernels* kernels = model::kernels_named(o.kernels);
    if (kernels == nullptr) return fail(Code::kUnsupported, "no kernels '%s'", o.kernels.c_str());
    return std::unique_ptr<EngineModel>(new EngineModel(o, *kernels, layers));
  }
  // The same with the kernels of AVX2; null: this CPU or the options have nothing wider.
  static Result<std::unique_ptr<EngineModel>> open_avx2(const EngineOptions& o, uint32_t layers) {
    if (o.kernels != "auto" || model::kernels_named("avx512") == nullptr)
      return std::unique_ptr<EngineModel>();
    EngineOptions narrow = o;
    narrow.kernels = "avx2";
    return open(narrow, layers);
  }
  const model::Transformer& transformer() const { return transformer_; }
  model::ThreadPool& threads() { return threads_; }

  // Blocks for a sequence of that many tokens.
  std::vector<std::byte*> blocks(size_t tokens) {
    const model::ModelConfig& c = transformer_.config();
    const size_t bytes = size_t{c.layers} * 2 * c.kv_rows() * 2 * kBlock;
    std::vector<std::byte*> all;
    for (size_t i = 0; i * kBlock < tokens; ++i) {
      memory_.push_back(std::make_unique<std::byte[]>(bytes));
      all.push_back(memory_.back().get());
    }
    return all;
  }
  // The rows of these slices, through all layers.
  std::vector<float> run(const std::vector<model::Slice>& slices) {
    const model::ModelConfig& c = transformer_.config();
    std::vector<int32_t> tokens;
    for (const model::Slice& s : slices)
      for (size_t p = s.begin; p < s.end; ++p)
        tokens.push_back(static_cast<int32_t>((p * 7919 + slices.size()) % c.vocab));
    std::vector<float> x(tokens.size() * c.hidden);
    transformer_.embed(tokens, x.data());
    for (uint32_t l = 0; l < c.layers; ++l) transformer_.layer(l, slices, x.data());
    return x;
  }

 private:
  static constexpr uint32_t kBlock = 64;
  static model::ModelConfig config(uint32_t layers) {
    model::ModelConfig c = model::bench_config();
    c.layers = layers == 0 ? c.layers : layers;
    return c;
  }
  EngineModel(const EngineOptions& o, const model::Kernels& kernels, uint32_t layers)
      : threads_(o.threads),
        transformer_(config(layers),
                     model::random_weights(config(layers), 1, model::DType::kBf16, threads_),
                     {model::DType::kBf16, kBlock}, kernels, threads_,
                     o.activations == "bf16" ? model::DType::kBf16 : model::DType::kF32) {}
  model::ThreadPool threads_;
  model::Transformer transformer_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace mc::bench
