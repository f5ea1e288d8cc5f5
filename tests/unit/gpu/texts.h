// Sequences whose blocks are known by what they hold, and their passes over a small model.
#pragma once
#include "gpu/vram_block_cache.h"
#include "small_model.h"

namespace mc::gpu {

inline constexpr uint32_t kTokens = 16;

inline model::ModelConfig six_layers() {
  model::ModelConfig c = small_config();
  c.layers = 6;
  return c;
}

// A sequence, what its blocks chain on, and the blocks.
struct Text {
  Text(const model::ModelConfig& c, model::KvLayout kv, std::vector<int32_t> t, size_t room)
      : tokens(std::move(t)), blocks(c, kv, room) {
    chain();
  }
  void append(int32_t token) {
    tokens.push_back(token);
    chain();
  }
  void chain() {
    parents.assign(1, {});
    for (size_t at = 0; at + kTokens < tokens.size(); at += kTokens)
      parents.push_back(
          chain_hash(parents.back(), std::span<const int32_t>(tokens).subspan(at, kTokens)));
  }
  Content content() const { return {tokens, parents}; }
  model::Slice slice(size_t begin) const { return blocks.slice(begin, tokens.size()); }
  std::vector<int32_t> tokens;
  std::vector<BlockHash> parents;
  Blocks blocks;
};

inline Text text(size_t n, uint64_t seed, size_t room = 0) {
  return {six_layers(),
          {model::DType::kF32, kTokens},
          tokens_of(n, seed, six_layers().vocab),
          std::max(n, room)};
}

inline void prefill(Transformer& t, const Text& text) {
  const model::Slice slice = text.slice(0);
  const Content content = text.content();
  Pass pass = device::must(t.begin(text.tokens, {&slice, 1}, {&content, 1}));
  for (uint32_t l = 0; l < t.config().layers; ++l) device::must(t.layer(pass, l, false));
}

// Each sequence's next token.
inline std::vector<int32_t> step(Transformer& t, std::vector<Text>& texts, bool kept = true,
                                 std::vector<Choice> choices = {}) {
  std::vector<int32_t> last;
  std::vector<model::Slice> slices;
  std::vector<Content> contents;
  for (const Text& text : texts) {
    last.push_back(text.tokens.back());
    slices.push_back(text.slice(text.tokens.size() - 1));
    if (kept) contents.push_back(text.content());
  }
  choices.resize(texts.size());
  const auto tokens = device::must(t.step(last, slices, choices, contents));
  for (size_t i = 0; i < texts.size(); ++i) texts[i].append(tokens[i]);
  return tokens;
}

}  // namespace mc::gpu
