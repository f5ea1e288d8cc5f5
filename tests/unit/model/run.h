// A sequence and its KV blocks, for tests of the forward pass.
#pragma once
#include <vector>

#include "model/forward/transformer.h"

namespace mc::test {

class Sequence {
 public:
  Sequence(const model::Transformer& t, size_t most) : t_(t) {
    const auto& c = t.config();
    const size_t block = size_t{c.layers} * c.planes() * c.kv_heads *
                         t.kv().type.row_bytes(c.head_dim) * t.kv().block_tokens;
    for (size_t i = 0; i * t.kv().block_tokens < most; ++i) {
      memory_.emplace_back(block, std::byte{0xEE});
      blocks_.push_back(memory_.back().data());
    }
  }
  // Computes the tokens' KV, `chunk` at a time; the logits of all rows.
  std::vector<float> add(const std::vector<int32_t>& tokens, size_t chunk) {
    std::vector<float> all;
    const auto& c = t_.config();
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const size_t n = std::min(chunk, tokens.size() - at);
      std::vector<float> x(n * c.hidden), logits(n * c.vocab);
      t_.embed(std::span(tokens).subspan(at, n), x.data());
      const model::Slice slice{blocks_, size_, size_ + n};
      for (uint32_t l = 0; l < c.layers; ++l) t_.layer(l, {&slice, 1}, x.data());
      t_.logits(x.data(), n, logits.data());
      all.insert(all.end(), logits.begin(), logits.end());
      size_ += n;
    }
    return all;
  }
  model::Slice next() { return {blocks_, size_, size_ + 1}; }
  void grow() { ++size_; }
  // Keys (plane 0) or values (1) as [layer][position][kv_head][head_dim].
  std::vector<float> kv(uint32_t plane) const {
    const auto& c = t_.config();
    const uint32_t per_block = t_.kv().block_tokens;
    const size_t bytes = t_.kv().type.row_bytes(c.head_dim);
    std::vector<float> out, head(c.head_dim);
    for (uint32_t l = 0; l < c.layers; ++l)
      for (size_t p = 0; p < size_; ++p)
        for (uint32_t h = 0; h < c.kv_heads; ++h) {
          const size_t row = ((size_t{l} * 2 + plane) * c.kv_heads + h) * per_block + p % per_block;
          t_.kv().type.read(blocks_[p / per_block] + row * bytes, 1, c.head_dim, c.head_dim,
                            head.data());
          out.insert(out.end(), head.begin(), head.end());
        }
    return out;
  }

 private:
  const model::Transformer& t_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> blocks_;
  size_t size_ = 0;
};

}  // namespace mc::test
