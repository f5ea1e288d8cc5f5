// Runs the forward pass of a model over paged KV blocks. It embeds, then computes layer by layer,
// then the logits of the rows that the caller names. Rows of several sequences go through a layer
// together. What a layer is made of is in the configuration (model/files/families.h).
//
//   std::vector<float> x(tokens.size() * config.hidden);
//   t.embed(tokens, x.data());
//   for (uint32_t l = 0; l < layers; ++l) t.layer(l, slices, x.data());
//   t.logits(x.data() + last_row * hidden, 1, out);
//
// A block holds block_tokens positions as [layer][K,V][kv_head][token][head_dim] of its type; keys
// are stored rotated, in half-rotation order. A row's numbers depend on its sequence's tokens
// before it and on nothing else, bit for bit (see kernels.h). Attention reads keys and values as
// they are stored, its own row's too. With KV of bf16 it rounds queries and shares to bf16 where
// products with weights are rounded too: with `factors` of bf16, and where weights are quantized;
// with KV in 8 bits it always rounds them (model/kernels/attention.h). Else it is of f32.
//
// Of latent attention a position has one plane and one head: [layer][token][kv_rank + rope_dim],
// the normalized latent vector and the turned numbers. A query is taken to the latent vector's side
// first (a head's key matrix is absorbed), so that it goes through the latent vectors as they are,
// as through keys and values that all heads share; the sums become values afterwards. Prompts and
// steps do the same, so that their bits are the same.
//
// Requires: valid slices (MC_CHECK). Errors: none. Thread: const calls from any; they take turns at
// the thread pool. Source: LLaMA (Touvron et al. 2023); RoFormer (Su et al. 2021); GQA (Ainslie et
// al. 2023); MLA with absorbed matrices (DeepSeek-V2, 2024, section 2.1.2).
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "model/forward/tensor_parallel.h"
#include "model/forward/weights.h"
#include "model/kernels/rope.h"

namespace mc::model {

// Positions [begin, end) of a sequence, in rows that follow those of the slice before.
struct Slice {
  std::span<std::byte* const> blocks{};
  size_t begin = 0, end = 0;
};

struct KvLayout {
  KvFormat type = DType::kF32;
  uint32_t block_tokens = 256;
  uint32_t first_layer = 0;  // of the model: the one that blocks begin with
  // Blocks are as many parts, each [layer][K,V][kv_heads / ranks][token][head_dim].
  uint32_t ranks = 1;
};

class Transformer {
 public:
  // `threads` and `exchange` outlive it. `factors`: what weights of bf16 are multiplied by
  // (Matrix). With `exchange` it is a rank: configuration and weights are its share, and so are
  // the blocks that it is given (tensor_parallel.h).
  Transformer(ModelConfig config, Weights weights, KvLayout kv, const Kernels& kernels,
              ThreadPool& threads, DType factors = DType::kF32, RankExchange* exchange = nullptr);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  const KvLayout& kv() const { return kv_; }

  void embed(std::span<const int32_t> tokens, float* x) const;
  // Reads and replaces the rows of x ([rows][hidden]); writes their keys and values. `kv_only`: the
  // rows of x are not wanted any more, as after the last layer of a prompt's prefill.
  void layer(uint32_t layer, std::span<const Slice> slices, float* x, bool kv_only = false) const;
  // out: [rows][vocab]; nullptr: of a rank that computes its share only.
  void logits(const float* x, size_t rows, float* out) const;

 private:
  struct Group {  // rows of one slice and one KV head: what attention does at a time
    const Slice* slice;
    size_t begin, end;  // positions
    size_t row;         // of `begin`, in x
    uint32_t kv_head;
  };
  size_t plane_at(uint32_t layer, bool value, uint32_t kv_head) const;
  size_t row_floats() const { return config_.q_rows() + config_.planes() * config_.kv_rows(); }
  void project(const LayerWeights& w, const float* x, size_t rows, bool kv_only, float* qkv) const;
  void expand(const LayerWeights& w, const float* attended, size_t rows, float* out) const;
  void heads(uint64_t work, const std::function<void(size_t)>& one) const;
  void prepare(uint32_t layer, size_t position, float* qkv) const;
  void store(uint32_t layer, const Slice& slice, float* qkv) const;
  void rows_at(size_t plane_at, const Slice& slice, size_t begin, size_t end,
               const std::byte** rows) const;
  // `next`: the group that this thread takes next, or null.
  template <class Tiles>
  void attend_by(uint32_t layer, const Group& group, const Group* next, const float* qkv,
                 float* out) const;
  void attend(uint32_t layer, const Group& group, const Group* next, const float* qkv,
              float* out) const;
  void normalize(const std::vector<float>& weight, const float* x, size_t rows, float* out) const;
  void add(const std::vector<float>& norm, float* parts, size_t rows, float* x) const;
  void attention(uint32_t layer, std::span<const Slice> slices, std::span<const Group> groups,
                 const float* qkv, float* out) const;
  const float* whole(const float* own, size_t rows, size_t columns) const;
  void product(const Matrix& m, const float* x, size_t rows, size_t outputs, float* y) const;
  void mlp(const Matrix& gate_up, const Matrix& down, const float* x, size_t rows,
           float* out) const;
  void experts(const LayerWeights& w, const float* x, size_t rows, float* out) const;

  const ModelConfig config_;
  const Weights weights_;
  const KvLayout kv_;
  const Kernels& kernels_;
  ThreadPool& threads_;
  const DType factors_;
  RankExchange* const exchange_;  // null: this is the only rank
  const RotaryEmbedding rope_, local_rope_;
};

}  // namespace mc::model
