// Computes a real model on this machine's CPU.
// Prompts are computed layer by layer, decode steps for a whole batch at a time. The tokens do not
// depend on how a request was cut, batched or reused (model/forward/transformer.h), so a cluster
// gives the same answer as one process.
//
// Thread: const calls, any; they share the engine's threads in turns.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/forward/model.h"
#include "model/forward/transformer.h"
#include "serve/engine/engine.h"
#include "serve/engine/rank_group.h"
#include "serve/engine/rank_processes.h"
#include "serve/protocol/model_info.h"

namespace mc::serve {

struct CpuOptions {
  uint32_t threads = 0;              // 0: one for each CPU
  std::string kernels = "auto";      // amx, avx512bf16, avx512, avx2, plain
  std::string device = "cuda:0";     // of the cuda engine: cuda:1, or stand-in
  std::string gemm = "auto";         // of the cuda engine: own kernels, or cublaslt
  std::string graphs = "auto";       // of the cuda engine: a step as one launch, or off
  std::string vram = "auto";         // of the cuda engine: "8GiB" of its memory for KV
  uint32_t tp = 1;                   // tensor-parallel ranks of the block layout
  std::string tp_processes = "off";  // on: a process for each rank
  // Of main(): what ranks are started as, and with; empty: none can be started.
  std::vector<std::string> command{}, environment{};
  void describe(OptionList& v);
};

// The model's layers that a process has: slice `stage` (from 0) of `stages`.
struct Slicing {
  uint32_t stage = 0, stages = 1;
};

// The chosen engine, with the weights of its slice only. Errors: those of open_model_info,
// cost::slice_of, the weights and the device; the text says what is missing.
Result<std::unique_ptr<Engine>> open_engine(const EngineChoice& choice, const CpuOptions& cpu,
                                            uint32_t block_tokens, Slicing slicing = {});

// What a process does that open_engine() started as a rank, with the same options. Returns an exit
// status, or ends with the process of the first rank.
Result<int> run_rank(const EngineChoice& choice, const CpuOptions& cpu, uint32_t block_tokens,
                     RankSeat seat);

class CpuEngine final : public Engine {
 public:
  // With `ranks` it is the first of several: `config` is the whole model's, the weights are the
  // first rank's share, and `kv` is laid out for as many ranks.
  CpuEngine(cost::ModelSpec spec, model::ModelConfig config, model::Weights weights,
            model::KvLayout kv, const model::Kernels& kernels,
            std::unique_ptr<model::ThreadPool> threads, model::DType factors = model::DType::kF32,
            std::unique_ptr<RankGroup> ranks = nullptr);

  const cost::ModelSpec& spec() const override { return spec_; }
  uint32_t block_tokens() const override { return transformer_.kv().block_tokens; }
  uint32_t ranks() const override { return layout_ranks_; }
  Result<io::Fd> pool_file() const override;
  void use_pool(std::span<std::byte> pool) const override;
  bool ends_answer(int32_t token) const override;
  bool modelled_time() const override { return false; }
  void prefill_layer(const ChunkView& chunk, uint32_t layer,
                     Activations& activations) const override;
  uint64_t verify(const SequenceView&) const override { return 0; }  // cannot verify
  std::vector<int32_t> decode(std::span<const DecodeItem> batch) const override;
  bool checks_guesses() const override { return true; }
  void generate(std::span<const DecodeItem> batch, const Next& next) const override;

 private:
  // Of rows of `slices`; logits nullptr: none.
  void compute(RankGroup::Pass pass, size_t rows) const;

  const cost::ModelSpec spec_;
  const uint32_t layout_ranks_;
  const std::unique_ptr<model::ThreadPool> threads_;
  const std::unique_ptr<RankGroup> ranks_;  // null: this process computes all
  const model::Transformer transformer_;
};

}  // namespace mc::serve
