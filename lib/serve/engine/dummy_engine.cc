#include "serve/engine/dummy_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "serve/engine/next_token.h"

namespace mc::serve {
namespace {

constexpr uint64_t kEosOneIn = 128;
constexpr float kPlainLogit = 2, kLeastLogit = -100;  // others: 0 to 1

// Word i of a row: a counter and a short mix, to run at memory speed. The key is well mixed, so
// rows overlap only by chance.
inline uint64_t word(uint64_t key, uint64_t i) {
  uint64_t x = key + i * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  return x ^ (x >> 29);
}

void fill_row(std::byte* row, uint64_t bytes, uint64_t key) {
  uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t w = word(key, at / 8);
    std::memcpy(row + at, &w, 8);
  }
  const uint64_t tail = word(key, at / 8);
  std::memcpy(row + at, &tail, bytes - at);
}

bool row_ok(const std::byte* row, uint64_t bytes, uint64_t key) {
  uint64_t wrong = 0, at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t w;
    std::memcpy(&w, row + at, 8);
    wrong |= w ^ word(key, at / 8);
  }
  const uint64_t tail = word(key, at / 8);
  return wrong == 0 && std::memcmp(row + at, &tail, bytes - at) == 0;
}

void check_view(const SequenceView& s, uint32_t block_tokens) {
  const size_t blocks = (s.tokens.size() + block_tokens - 1) / block_tokens;
  MC_CHECK(s.parents.size() >= blocks && s.blocks.size() >= blocks);
}

}  // namespace

DummyEngine::DummyEngine(cost::ModelSpec spec, uint32_t block_tokens, uint64_t key)
    : spec_(std::move(spec)),
      block_tokens_(block_tokens),
      key_(mix64(key)),
      planes_(spec_.kv_heads * (spec_.mla ? 1 : 2)),
      row_bytes_(uint64_t{spec_.head_dim} * spec_.element_bytes) {
  MC_CHECK(block_tokens_ > 0 && planes_ > 0 && row_bytes_ > 0 && spec_.layers > 0);
  MC_CHECK(spec_.vocab > kSpecial);
}

uint64_t DummyEngine::start_state(const BlockHash& parent) const {
  return xxh3(parent.bytes.data(), parent.bytes.size(), key_);
}
uint64_t DummyEngine::advance(uint64_t state, int32_t token) {
  return mix64(state ^ (0x632be59bd9b4e019ull * (uint64_t{static_cast<uint32_t>(token)} + 1)));
}
uint64_t DummyEngine::row_key(uint64_t state, uint32_t layer, uint32_t plane) const {
  const uint64_t of_model = uint64_t{spec_.first_layer} + layer;
  return mix64(state + (of_model * planes_ + plane + 1) * 0xa0761d6478bd642full);
}

void DummyEngine::prefill_layer(const ChunkView& chunk, uint32_t layer,
                                Activations& activations) const {
  const SequenceView& s = chunk.sequence;
  check_view(s, block_tokens_);
  MC_CHECK(chunk.begin <= chunk.end && chunk.end <= s.tokens.size() && layer < spec_.layers);
  // Activations between slices have their true size and identify their tokens.
  const size_t rows = chunk.end - chunk.begin, hidden = std::max(spec_.hidden, 1u);
  const bool enters = spec_.first_layer > 0 && layer == 0;
  const bool leaves = spec_.layers_after > 0 && layer + 1 == spec_.layers;
  MC_CHECK(!enters || activations.rows.size() == rows * hidden);
  if (leaves) activations.rows.resize(rows * hidden);
  float spare = 0;
  std::vector<uint64_t> states;  // of the chunk's tokens in a block
  for (size_t at = chunk.begin; at < chunk.end;) {
    const size_t block = at / block_tokens_, start = block * block_tokens_;
    const size_t end = std::min<size_t>(chunk.end, start + block_tokens_);
    uint64_t state = start_state(s.parents[block]);
    for (size_t t = start; t < at; ++t) state = advance(state, s.tokens[t]);
    states.clear();
    for (size_t t = at; t < end; ++t) {
      states.push_back(state = advance(state, s.tokens[t]));
      const auto mark = static_cast<float>(state & 0xffffff);
      float& crossing = leaves || enters ? activations.rows[(t - chunk.begin) * hidden] : spare;
      if (enters && crossing != mark) states.back() ^= 1;  // wrong KV, as a model's would be
      if (leaves) crossing = mark;
    }
    std::byte* base = s.blocks[block] + layer * spec_.layer_bytes(block_tokens_);
    for (uint32_t plane = 0; plane < planes_; ++plane) {
      std::byte* row = base + (uint64_t{plane} * block_tokens_ + (at - start)) * row_bytes_;
      for (const uint64_t of_token : states) {
        fill_row(row, row_bytes_, row_key(of_token, layer, plane));
        row += row_bytes_;
      }
    }
    at = end;
  }
}

bool DummyEngine::block_ok(const SequenceView& s, size_t block) const {
  const size_t start = block * block_tokens_;
  const size_t end = std::min<size_t>(s.tokens.size(), start + block_tokens_);
  std::vector<uint64_t> states;
  uint64_t state = start_state(s.parents[block]);
  for (size_t t = start; t < end; ++t) states.push_back(state = advance(state, s.tokens[t]));
  for (uint32_t layer = 0; layer < spec_.layers; ++layer) {
    const std::byte* base = s.blocks[block] + layer * spec_.layer_bytes(block_tokens_);
    for (uint32_t plane = 0; plane < planes_; ++plane) {
      const std::byte* row = base + uint64_t{plane} * block_tokens_ * row_bytes_;
      for (const uint64_t of_token : states) {
        if (!row_ok(row, row_bytes_, row_key(of_token, layer, plane))) return false;
        row += row_bytes_;
      }
    }
  }
  return true;
}

uint64_t DummyEngine::verify(const SequenceView& sequence) const {
  check_view(sequence, block_tokens_);
  const size_t blocks = (sequence.tokens.size() + block_tokens_ - 1) / block_tokens_;
  uint64_t bad = 0;
  for (size_t block = 0; block < blocks; ++block) bad += !block_ok(sequence, block);
  return bad;
}

std::vector<int32_t> DummyEngine::decode(std::span<const DecodeItem> batch) const {
  std::vector<int32_t> tokens;
  for (const DecodeItem& item : batch) {
    const size_t n = item.sequence.tokens.size();
    if (!item.written) write({item.sequence, n - 1, n});
    const int32_t token = next_token(item.sequence, item.sampling);
    tokens.push_back(item.for_host() ? adjusted(item, token) : token);
  }
  return tokens;
}

// `plain` was drawn already, from seed and position.
int32_t DummyEngine::adjusted(const DecodeItem& item, int32_t plain) const {
  const uint64_t key = mix64(key_ ^ item.sequence.tokens.size());
  std::vector<float> logits(spec_.vocab, kLeastLogit);
  for (size_t i = kSpecial; i < logits.size(); ++i)
    logits[i] = static_cast<float>(static_cast<double>(word(key, i) >> 40) * 0x1p-24);
  logits[static_cast<size_t>(plain)] = kPlainLogit;
  DecodeItem greedy = item;
  greedy.sampling.temperature = 0;
  const int32_t end = kEos;
  return serve::next_token(logits, greedy, {&end, 1});
}

int32_t DummyEngine::next_token(const SequenceView& s, const Sampling& sampling) const {
  check_view(s, block_tokens_);
  MC_CHECK(!s.tokens.empty());
  const size_t last = s.tokens.size() - 1, block = last / block_tokens_;
  uint64_t seen = key_;
  for (uint32_t layer = 0; layer < spec_.layers; ++layer) {
    const std::byte* base = s.blocks[block] + layer * spec_.layer_bytes(block_tokens_);
    for (uint32_t plane = 0; plane < planes_; ++plane)
      seen = xxh3(base + (uint64_t{plane} * block_tokens_ + last % block_tokens_) * row_bytes_,
                  row_bytes_, seen);
  }
  // Drawn from (seed, position) only: retries and other batch mates change nothing.
  if (sampling.temperature > 0) seen = mix64(seen ^ mix64(sampling.seed + last));
  if (sampling.eos_allowed && !sampling.ignore_eos && mix64(seen) % kEosOneIn == 0) return kEos;
  return static_cast<int32_t>(kSpecial + seen % (spec_.vocab - kSpecial));
}

}  // namespace mc::serve
