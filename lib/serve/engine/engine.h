// The seam between serving and what computes: an engine fills KV blocks with the KV of tokens,
// layer by layer, checks them, and says the next tokens. The dummy engine computes no model, the
// CPU engine a transformer.
//
// A block holds block_tokens positions as [layer][K,V][kv_head][token][head_dim]: layer l of it is
// the layer_bytes at l x layer_bytes (cost::ModelSpec).
//
// Thread: const calls from any thread, also several at once on blocks that differ; nobody else may
// write the blocks meanwhile. Units: tokens; time as Duration. Errors: none: a view that is wrong
// is the worker's bug (MC_CHECK).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "cost/model_spec.h"

namespace mc::serve {

// How long work takes, by the cost model times `scale` (0: no waiting at all). The chunks of a
// prompt add up to prefill(n, reused), however it is cut.
struct Timing {
  cost::ModelSpec spec;
  double scale = 1;

  Duration prefill(uint64_t n, uint64_t reused) const {
    return scaled(cost::prefill_seconds(spec, n, reused));
  }
  Duration load(uint64_t reused) const {  // of reused KV, part of prefill()
    return scaled(static_cast<double>(reused * spec.kv_bytes_per_token()) /
                  spec.cost.load_bytes_per_s);
  }
  // Tokens [begin, end) of a prompt; the first chunk (begin == reused) bears the fixed cost. The
  // load is not in it. A layer takes 1 / layers of it.
  Duration chunk(uint64_t begin, uint64_t end, uint64_t reused) const {
    const auto b = static_cast<double>(begin), e = static_cast<double>(end);
    const cost::CostModel& c = spec.cost;
    return scaled((begin == reused ? c.c0 : 0) + c.c1 * (e - b) + c.c2 * (e * e - b * b));
  }
  // One decode step of `batch` requests whose contexts sum to `context_tokens`.
  Duration step(uint64_t batch, uint64_t context_tokens) const {
    return scaled(cost::step_seconds(spec, batch, context_tokens));
  }

 private:
  Duration scaled(double seconds) const { return from_seconds(seconds * scale); }
};

// A sequence and where its KV lies. Holds nothing: the caller keeps all alive and unmoved.
struct SequenceView {
  std::span<const int32_t> tokens;  // from position 0
  // parents[i]: digest of block i - 1, that is what block i chains on; parents[0]: BlockHash{} or
  // that of the tenant's salt. One for each block that holds a token.
  std::span<const BlockHash> parents;
  std::span<std::byte* const> blocks;  // at least as many
};

struct ChunkView {  // tokens [begin, end) of the sequence; need not be aligned to blocks
  SequenceView sequence;
  size_t begin = 0, end = 0;
};

struct Sampling {
  double temperature = 0;  // 0: greedy
  uint64_t seed = 0;
  bool eos_allowed = false;  // false: no token that ends an answer, unless `ignore_eos`
  bool ignore_eos = false;   // such tokens are like any other
  uint32_t top_k = 0;        // 0: all
  double top_p = 1;
};

// What an engine carries of a chunk from one layer to the next; before its first layer empty, or,
// of an engine that has a slice of a model's layers, as the slice before left them.
struct Activations {
  std::vector<float> rows;          // [token][hidden]
  std::shared_ptr<void> elsewhere;  // of an engine that keeps them in a device's memory
};

struct DecodeItem {
  SequenceView sequence;
  Sampling sampling;
  bool written = false;  // the last token's KV is there: it came with the prompt's
};

// KV blocks that an engine keeps in a device's memory, and what went there and back: since its
// start.
struct DeviceKv {
  uint64_t blocks = 0, used = 0;  // that there is room for; of them, with what may be found again
  uint64_t hits = 0;              // blocks that a pass found there
  uint64_t uploads = 0;           // that it brought there, to stay
  uint64_t streamed = 0;          // that it brought there for itself alone: there was no room
  uint64_t evictions = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  // to the device; new KV, back to its blocks
  uint64_t graph_steps = 0;              // decode steps that were launched as one
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const cost::ModelSpec& spec() const = 0;
  virtual uint32_t block_tokens() const = 0;
  virtual uint32_t ranks() const { return 1; }  // of its blocks: serve/connector/kv_shape.h
  virtual bool ends_answer(int32_t token) const = 0;
  // Work takes the time the spec's cost model says, if it took less (an engine without a model).
  virtual bool modelled_time() const = 0;

  // Told once, before any work: the memory that blocks will lie in. An engine with a device pins
  // it.
  virtual void use_pool(std::span<std::byte>) const {}

  virtual std::optional<DeviceKv> device_kv() const { return {}; }

  // Writes the KV of the chunk's tokens for one layer. Layers go 0, 1, ... with the same
  // activations; chunks in order; what lies before the chunk has been written or loaded for that
  // layer.
  virtual void prefill_layer(const ChunkView& chunk, uint32_t layer,
                             Activations& activations) const = 0;

  // Compares every KV byte of every token of the sequence with what it must be; the number of
  // blocks with a wrong one. An engine that cannot tell returns 0.
  virtual uint64_t verify(const SequenceView& sequence) const = 0;

  // The token after each sequence, in [0, vocab), from its KV as it lies in memory: all layers of
  // all tokens must be there but the last one's, which is written. Each is as if it were alone.
  virtual std::vector<int32_t> decode(std::span<const DecodeItem> batch) const = 0;

  void write(const ChunkView& chunk) const {  // all layers
    Activations activations;
    for (uint32_t layer = 0; layer < spec().layers; ++layer)
      prefill_layer(chunk, layer, activations);
  }
};

}  // namespace mc::serve
