// An engine without a model: writes KV of the true size and checks it.
// The bytes depend on exactly what real KV depends on, so a block that is misplaced, stale or
// damaged fails verification.
//
// The bytes of a token are a keyed pseudo-random function of (digest of the full blocks before,
// tokens of its block up to and including it, layer, K or V, head). Partial blocks and generated
// tokens verify too, and how a prompt was cut into chunks does not matter. The next token is a
// function of the last position's KV as read: wrong KV there gives wrong text. verify() recomputes
// everything and compares every byte.
//
// A request with penalties, biases or min_p is drawn from made-up logits. The token that it had
// without them has the greatest.
//
// The function is no cipher: it detects faults, not forgery.
//
// Thread: const calls, any. Units: tokens, bytes.
// Source: Mooncake paper section 8 (its experiments use a dummy model the same way).
#pragma once
#include <cstdint>

#include "serve/engine/engine.h"

namespace mc::serve {

class DummyEngine final : public Engine {
 public:
  static constexpr int32_t kEos = 2;      // and ids below 3 are special, as in LLaMA
  static constexpr int32_t kSpecial = 3;  // the first that is not

  // Requires: spec.vocab above kSpecial. Engines of equal spec, block size and key agree.
  DummyEngine(cost::ModelSpec spec, uint32_t block_tokens, uint64_t key = 0);

  const cost::ModelSpec& spec() const override { return spec_; }
  uint32_t block_tokens() const override { return block_tokens_; }
  bool ends_answer(int32_t token) const override { return token == kEos; }
  bool modelled_time() const override { return true; }
  void prefill_layer(const ChunkView& chunk, uint32_t layer,
                     Activations& activations) const override;
  uint64_t verify(const SequenceView& sequence) const override;
  std::vector<int32_t> decode(std::span<const DecodeItem> batch) const override;
  // The token after a sequence. Requires: all its KV.
  int32_t next_token(const SequenceView& sequence, const Sampling& sampling) const;

 private:
  int32_t adjusted(const DecodeItem& item, int32_t plain) const;
  // A token's state depends on the tokens of its block up to it, and on all blocks before.
  uint64_t start_state(const BlockHash& parent) const;
  static uint64_t advance(uint64_t state, int32_t token);
  uint64_t row_key(uint64_t state, uint32_t layer, uint32_t plane) const;
  bool block_ok(const SequenceView& sequence, size_t block) const;

  cost::ModelSpec spec_;
  uint32_t block_tokens_;
  uint64_t key_;
  uint32_t planes_;     // a layer's rows of a token: (K, V) x heads
  uint64_t row_bytes_;  // a token of a head
};

}  // namespace mc::serve
