// The interface of an inference engine: fills, verifies and decodes from KV blocks.
// An engine fills KV blocks layer by layer, checks them, and returns the next tokens. The dummy
// engine computes no model, the CPU and GPU engines compute a transformer.
//
// A block holds block_tokens positions as [layer][K,V][kv_head][token][head_dim]. Layer l starts at
// byte l x layer_bytes and has layer_bytes (cost::ModelSpec).
//
// Requires: views that fit their sequence; a wrong one is a bug of the worker (MC_CHECK).
// Thread: const calls from any thread, several at once if their blocks differ. No other thread may
// write those blocks meanwhile. Units: tokens; time as Duration.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "cost/timing.h"
#include "io/fd.h"
#include "model/forward/logits.h"
#include "serve/protocol/token_logprobs.h"

namespace mc::serve {

using cost::Timing;

// A sequence and its KV blocks. Owns nothing: the caller keeps all alive and unmoved.
struct SequenceView {
  std::span<const int32_t> tokens;  // from position 0
  // parents[i]: digest of block i - 1, on which block i chains; parents[0]: BlockHash{} or the
  // digest of the tenant's salt. One for each block that holds a token.
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
  double min_p = 0;
  model::Penalties penalties{};
  std::span<const model::Bias> bias{};  // kept by the caller, as is
  std::span<const int32_t> held{};      // what may not come yet: stop tokens before min_tokens
  size_t prompt = 0;                    // tokens of the sequence before those it generated
  uint32_t logprobs = 0;                // 1 and the likeliest tokens to tell of; 0: none

  // Whether the logits are drawn from as they are, which a device can do itself.
  bool plain() const { return min_p == 0 && penalties.none() && bias.empty() && held.empty(); }
};

// Says which tokens may come next in an answer that is to have a form.
class TokenMask {
 public:
  struct Allowed {
    std::span<const uint64_t> tokens{};  // a bit each; none at all: any token may come
    bool end_only = false;               // none but those that end an answer
  };
  virtual ~TokenMask() = default;
  // Waits until it is known, beside the forward pass. Valid until the token is drawn.
  virtual Allowed wait() = 0;
};

// A chunk's state between two layers. Empty before the first layer; in an engine with a later slice
// of the layers, what the slice before left.
struct Activations {
  std::vector<float> rows;          // [token][hidden]
  std::shared_ptr<void> elsewhere;  // for an engine that keeps them in device memory
};

struct DecodeItem {
  SequenceView sequence;
  Sampling sampling;
  bool written = false;  // the last token's KV is there: it came with the prompt's
  // Gets the probability of the chosen token, as `sampling.logprobs` asks. nullptr: nothing.
  TokenLogprobs* logprobs = nullptr;
  TokenMask* mask = nullptr;  // nullptr: any token may come
  // Tokens that may come next, in order, for generate(). Their KV is written behind the last
  // token's; what follows a wrong guess is no KV of the sequence, and the next pass writes over it.
  std::span<const int32_t> guesses{};

  bool tells() const { return logprobs != nullptr && sampling.logprobs > 0; }
  // Whether a device cannot choose the token itself.
  bool for_host() const { return !sampling.plain() || tells() || mask != nullptr; }
};

// KV blocks that an engine keeps in device memory, and its traffic with it since the start.
struct DeviceKv {
  uint64_t blocks = 0, used = 0;  // capacity; blocks of it that a later pass can reuse
  uint64_t hits = 0;              // blocks that a pass found on the device
  uint64_t uploads = 0;           // blocks copied to the device, to stay
  uint64_t streamed = 0;          // blocks copied for one pass only: the cache was full
  uint64_t evictions = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  // to the device; new KV, back to host blocks
  uint64_t graph_steps = 0;              // decode steps launched as one graph
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const cost::ModelSpec& spec() const = 0;
  virtual uint32_t block_tokens() const = 0;
  virtual uint32_t ranks() const { return 1; }  // of its blocks: serve/connector/kv_shape.h
  virtual bool ends_answer(int32_t token) const = 0;
  // True: work takes at least the time of the spec's cost model (an engine without a model).
  virtual bool modelled_time() const = 0;

  // A file for the memory of all blocks, if other processes of the engine map it too; else empty.
  virtual Result<io::Fd> pool_file() const { return io::Fd(); }
  // The memory of all blocks, of pool_file() if there is one; called before any work. An engine
  // with a device pins it.
  virtual void use_pool(std::span<std::byte>) const {}

  virtual std::optional<DeviceKv> device_kv() const { return {}; }

  // Writes the KV of the chunk's tokens for one layer. Requires: layers 0, 1, ... with the same
  // activations; chunks in order; the KV before the chunk is written or loaded for that layer.
  virtual void prefill_layer(const ChunkView& chunk, uint32_t layer,
                             Activations& activations) const = 0;

  // Compares every KV byte of every token of the sequence with its expected value. Returns the
  // number of blocks with a wrong byte; 0 if the engine cannot verify.
  virtual uint64_t verify(const SequenceView& sequence) const = 0;

  // The token after each sequence, in [0, vocab), from its KV as it is in memory. Requires: all
  // layers of all tokens but the last, which this writes. Batch mates change no result.
  virtual std::vector<int32_t> decode(std::span<const DecodeItem> batch) const = 0;

  // Takes a sequence's next token. Returns the item to draw the token after it from; its sequence
  // has that token, its KV the same blocks. nullopt: the sequence wants no more.
  using Next = std::function<std::optional<DecodeItem>(size_t item, int32_t token)>;
  // Whether generate() computes guesses. An engine that does not ignores them.
  virtual bool checks_guesses() const { return false; }
  // As decode(), with guesses: one pass computes what follows each sequence's last token and each
  // of its guesses. Then a token is drawn, and another while the last one is as guessed: those that
  // as many steps of decode() give. Requires: blocks for the guesses' KV.
  virtual void generate(std::span<const DecodeItem> batch, const Next& next) const {
    const std::vector<int32_t> tokens = decode(batch);
    for (size_t i = 0; i < batch.size(); ++i) (void)next(i, tokens[i]);
  }

  void write(const ChunkView& chunk) const {  // all layers
    Activations activations;
    for (uint32_t layer = 0; layer < spec().layers; ++layer)
      prefill_layer(chunk, layer, activations);
  }
};

}  // namespace mc::serve
