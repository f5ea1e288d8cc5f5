// Runs the forward pass of a LLaMA-family model on a device. It computes the same layers over the
// same KV blocks as the CPU's (model/forward/transformer.h), in kernels of this build
// (device/kernels/model_kernels.h).
//
//   MC_TRY(auto pass, t.begin(prompt, slices));
//   for (uint32_t l = 0; l < layers; ++l) MC_TRY_(t.layer(pass, l));
//   MC_TRY(auto next, t.step(last_tokens, slices, choices));
//
// Blocks lie in host memory. Streams upload what a layer reads and the device lacks, and copy back
// what the layer writes. step() loads the next layer's blocks while one computes; a prompt whose
// earlier blocks are resident computes the next layer while one is copied back. With
// keep_blocks(), blocks stay on the device for later passes (gpu/vram_block_cache.h). A step whose
// blocks are all resident is launched as one graph once its shape was seen.
//
// With f32 activations every number is bit for bit the CPU's. With bf16 the tensor cores compute
// the products, and numbers are near the CPU's. In both cases a token does not depend on what is
// computed with it.
//
// Errors: those of the device (device/device.h). After an error the KV of the rows may be written
// or not, and the pass cannot go on. Thread: one at a time. Source: LLaMA (Touvron et al. 2023);
// PagedAttention (Kwon et al. 2023).
#pragma once
#include <atomic>
#include <compare>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device_buffer_pool.h"
#include "gpu/gemm_dispatcher.h"
#include "gpu/vram_block_cache.h"
#include "gpu/weights.h"
#include "model/forward/sampler.h"
#include "model/forward/transformer.h"
#include "model/kernels/rope.h"

namespace mc::gpu {

// Working memory of a pass.
struct Buffers {
  DeviceBufferPool::Buffer host;     // pinned: the source of `input`, then the sampled tokens
  DeviceBufferPool::Buffer input;    // tables, draws, rows, rotations
  DeviceBufferPool::Buffer x;        // [rows][hidden]
  DeviceBufferPool::Buffer scratch;  // within a layer
  DeviceBufferPool::Buffer parts;    // of attention in splits
  DeviceBufferPool::Buffer out;      // logits, tokens, normalized rows
  bool operator==(const Buffers&) const = default;
};

// A batch of rows while it goes through the layers.
struct Pass {
  std::vector<model::Slice> slices;  // the blocks' addresses are kept by the caller
  size_t rows = 0;
  uint32_t table_width = 0;  // blocks of the longest sequence, or more
  uint32_t splits = 1;       // of attention, side by side
  Buffers buffers;
  uint64_t table_bytes = 0, input_bytes = 0;
  std::byte *table = nullptr, *draws = nullptr, *row_list = nullptr, *rotations = nullptr;
  std::shared_ptr<VramBlockCache> cache;         // of the claim
  std::unique_ptr<VramBlockCache::Claim> claim;  // null: all blocks are streamed through `staged`
  DeviceBufferPool::Buffer staged;
  std::byte* kv = nullptr;                             // what block slots count from
  std::vector<VramBlockCache::BlockSlot> block_slots;  // block after block of the slices
  uint32_t launched = 0;                               // layers that compute or have computed
  std::unique_ptr<device::Event> computed;             // of the last of them
  uint64_t tokens_bytes() const { return rows * sizeof(int32_t); }
  // Some blocks have all layers in their slots, others two: a table for each layer.
  bool mixed() const { return claim != nullptr && claim->streams(); }
};

// KV traffic between host memory and the device since the start.
struct KvTraffic {
  VramBlockCache::Counts cache;
  uint64_t bytes_in = 0, bytes_out = 0;
  uint64_t graph_steps = 0;  // decode steps that were one launch
};

// How the token after a row is chosen.
struct Choice {
  model::Draw draw{};   // `never` is the transformer's, of masked rows
  bool masked = false;  // tokens that end an answer must not come
  // Gets the row's logits, to draw from them on the host. nullptr: they stay on the device.
  std::vector<float>* logits = nullptr;
};

struct TransformerOptions {
  // Format of activations. The weights' own 16-bit format: on the tensor cores.
  model::DType factors = model::DType::kF32;
  Gemm gemm = Gemm::kAuto;
  bool graphs = true;  // where the device has them
};

class Transformer {
 public:
  // kUnsupported: options that this model, these weights or this device do not have.
  static Result<std::unique_ptr<Transformer>> open(device::DevicePtr device,
                                                   const model::ModelConfig& config,
                                                   const model::WeightSources& sources,
                                                   model::DType weights, model::KvLayout kv,
                                                   model::ThreadPool& threads,
                                                   const TransformerOptions& options = {});
  const model::ModelConfig& config() const { return config_; }
  const model::KvLayout& kv() const { return kv_; }
  const Weights& weights() const { return weights_; }
  device::Device& device() const { return *device_; }
  const GemmDispatcher& gemm() const { return gemm_; }

  // Pins the memory of the host blocks, so that copies to and from it are direct.
  Result<> pin(std::span<std::byte> pool);
  // Caches blocks in `bytes` of the device. Requires: no pass has begun. Returns: the blocks that
  // fit; 0, and no cache, with too few bytes or a model of one layer.
  Result<uint64_t> keep_blocks(uint64_t bytes);
  uint64_t block_bytes() const { return config_.layers * layer_bytes(); }
  KvTraffic traffic() const;  // from any thread

  // A prompt's rows: one token for each position of the slices, in order. `contents`: of each
  // slice, or none, without which blocks are not kept.
  Result<Pass> begin(std::span<const int32_t> tokens, std::span<const model::Slice> slices,
                     std::span<const Content> contents = {});
  // Layers come in order. Writes the rows' KV; it is in its blocks when this returns. `kv_only` as
  // model::Transformer, of the last layer.
  Result<> layer(Pass& pass, uint32_t layer, bool kv_only = false);
  Result<std::vector<float>> logits(Pass& pass);  // [rows][vocab], after the last layer
  // A decode step: one token of each slice through all layers, then the token after it. `choices`:
  // of each slice.
  Result<std::vector<int32_t>> step(std::span<const int32_t> tokens,
                                    std::span<const model::Slice> slices,
                                    std::span<const Choice> choices,
                                    std::span<const Content> contents = {});
  // Waits until all work of a failed pass has ended.
  void drain();

 private:
  struct Names {
    std::string embed, normalize, store, attend, flash, prompt, round, gate;
  };
  // Steps of a kind: the same launches with the same arguments.
  struct Shape {
    size_t rows;
    uint32_t table_width, splits;
    auto operator<=>(const Shape&) const = default;
  };
  Transformer(device::DevicePtr device, const model::ModelConfig& config, model::KvLayout kv);
  uint64_t head_bytes() const { return config_.head_dim * size_of(kv_.type.type()); }
  uint64_t layer_bytes() const { return 2 * config_.kv_heads * kv_.block_tokens * head_bytes(); }
  bool is_pinned(const std::byte* at, uint64_t bytes) const;
  Result<> assign_slots(Pass& pass, std::span<const Content> contents);
  Result<> reserve(Pass& pass);
  void fill(Pass& pass, std::span<const int32_t> tokens, std::span<const Choice> choices) const;
  void fill_tables(const Pass& pass, uint64_t* to) const;
  uint64_t layer_offset(const Pass& pass, uint32_t layer) const;
  const uint64_t* table_of(const Pass& pass, uint32_t layer) const;
  Result<> embed(Pass& pass);
  std::vector<device::Block> uploads(const Pass& pass, uint32_t layer) const;
  Result<> load(const Pass& pass, uint32_t layer);
  Result<> compute(Pass& pass, uint32_t layer, bool kv_only);
  Result<> start(Pass& pass, uint32_t layer, bool kv_only);
  Result<> keep(device::Stream& stream, const Pass& pass, uint32_t first, uint32_t end);
  Result<> attend(Pass& pass, uint32_t layer, const std::byte* qkv, std::byte* out);
  Result<> flash(Pass& pass, uint32_t layer, const std::byte* qkv, std::byte* out);
  Result<> multiply(const Matrix& m, const std::byte* x, std::byte* y, size_t rows, bool add) {
    return gemm_.multiply(*computing_, m, x, y, rows, add);
  }
  Result<> choose_gemm(const TransformerOptions& options);
  Result<> normalize(const std::byte* x, const device::Memory& weight, std::byte* out, size_t rows);
  Result<> head(Pass& pass);
  Result<> choose(Pass& pass);
  bool is_resident(const Pass& pass) const;
  Result<> streamed_step(Pass& pass);
  Result<> resident_step(Pass& pass);
  Result<> compute_all(Pass& pass);
  Result<> capture(Pass& pass, std::unique_ptr<device::Graph>& graph);
  Result<device::Graph*> graph_for(Pass& pass);
  uint64_t logits_bytes(const Pass& pass) const {
    return pass.rows * uint64_t{config_.vocab} * sizeof(float);
  }
  Result<> finish(device::Stream& stream);

  const device::DevicePtr device_;
  const model::ModelConfig config_;
  const model::KvLayout kv_;
  const model::RotaryEmbedding rope_;
  DeviceBufferPool pool_;
  Weights weights_;
  GemmDispatcher gemm_;
  Names names_;
  bool tensor_ = false;    // products on the tensor cores
  bool flash_ = false;     // attention too
  device::Memory ends_{};  // tokens that end an answer
  std::vector<device::Memory> pinned_;
  std::shared_ptr<VramBlockCache> cache_;  // null: no blocks are kept
  std::atomic<uint64_t> bytes_in_{0}, bytes_out_{0}, graph_steps_{0};
  bool graphs_on_ = true;
  Buffers step_buffers_;  // of resident steps: graphs hold their addresses
  std::map<Shape, std::unique_ptr<device::Graph>> graphs_;  // null: seen once
  std::unique_ptr<device::Stream> computing_, loading_, keeping_;
};

}  // namespace mc::gpu
