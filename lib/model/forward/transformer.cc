#include "model/forward/transformer.h"

#include <algorithm>

#include "model/forward/router.h"
#include "model/kernels/scratch.h"

namespace mc::model {
namespace {

// Rows that share a tile of keys while it is in the cache: many, where all threads have work.
constexpr size_t kSharedRows = 64, kFewSharedRows = 16, kGroupsOfThread = 4;
constexpr uint32_t kSharingHeads = 8;  // query heads of a KV head: more have enough queries

class Floats {
 public:
  explicit Floats(size_t n) : memory_(n * sizeof(float)) {}
  float* get() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  ScratchMemory memory_;
};
Floats floats(size_t n) { return Floats(n); }

size_t rows_of(std::span<const Slice> slices) {
  size_t rows = 0;
  for (const Slice& s : slices) rows += s.end - s.begin;
  return rows;
}

// Compilers make vectors of loops whose length they know.
void add_lanes(const float* __restrict from, float* __restrict to) {
  for (uint32_t i = 0; i < kLanes; ++i) to[i] += from[i];
}

// What a row's heads are turned by.
class Rotations {
 public:
  Rotations(const RotaryEmbedding& rope, size_t pairs, size_t position) : pairs_(pairs) {
    MC_CHECK(pairs <= kHeadDimMax / 2);
    if (pairs > 0) rope.at(position, cosines_, sines_);
  }
  void turn(float* head) const {
    float* const other = head + pairs_;
    size_t j = 0;
    for (; j + kTogether <= pairs_; j += kTogether)
      turn_some<kTogether>(head + j, other + j, cosines_ + j, sines_ + j);
    for (; j < pairs_; ++j) turn_some<1>(head + j, other + j, cosines_ + j, sines_ + j);
  }

 private:
  static constexpr size_t kTogether = 8;
  template <size_t kCount>
  static void turn_some(float* __restrict a, float* __restrict b, const float* __restrict c,
                        const float* __restrict s) {
    for (size_t i = 0; i < kCount; ++i) {
      const float x = a[i], y = b[i];
      a[i] = x * c[i] - y * s[i];
      b[i] = y * c[i] + x * s[i];
    }
  }
  size_t pairs_;
  float cosines_[kHeadDimMax / 2], sines_[kHeadDimMax / 2];
};

}  // namespace

Transformer::Transformer(ModelConfig config, Weights weights, KvLayout kv, const Kernels& kernels,
                         ThreadPool& threads, DType factors, RankExchange* exchange)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      kv_(kv),
      kernels_(kernels),
      threads_(threads),
      factors_(factors),
      exchange_(exchange),
      rope_(config_),
      local_rope_(config_.local_rope, config_.head_dim, config_.context_max) {
  MC_CHECK(kv_.block_tokens > 0 && weights_.layers.size() == config_.layers);
  MC_CHECK(kv_.ranks > 0 && config_.kv_heads % kv_.ranks == 0);
}

// Where in a block a head's keys or values begin.
size_t Transformer::plane_at(uint32_t layer, bool value, uint32_t kv_head) const {
  const size_t each = config_.kv_heads / kv_.ranks, rank = kv_head / each;
  const size_t layers = config_.layers - kv_.first_layer;
  const size_t plane =
      ((rank * layers + layer - kv_.first_layer) * config_.planes() + (value ? 1 : 0)) * each;
  return (plane + kv_head % each) * kv_.block_tokens * kv_.type.row_bytes(config_.head_dim);
}

void Transformer::embed(std::span<const int32_t> tokens, float* x) const {
  for (const int32_t token : tokens) {
    MC_CHECK(token >= 0 && static_cast<uint32_t>(token) < config_.vocab);
    weights_.embedding.row(static_cast<uint32_t>(token), x);
    if (const auto scale = static_cast<float>(config_.embedding_scale); scale != 1)
      for (uint32_t i = 0; i < config_.hidden; ++i) x[i] *= scale;
    x += config_.hidden;
  }
}

// Adds what is added to a row's queries, keys and values, normalizes and turns queries and keys.
void Transformer::prepare(uint32_t layer, size_t position, float* qkv) const {
  const LayerWeights& w = weights_.layers[layer];
  const uint32_t dim = config_.head_dim, heads = config_.heads;
  for (size_t i = 0; i < w.qkv_bias.size(); ++i) qkv[i] += w.qkv_bias[i];
  const Turn turn = config_.kind(layer).turn;
  const RotaryEmbedding& rope = turn == Turn::kLocal ? local_rope_ : rope_;
  const Rotations rotations(rope, turn == Turn::kNone ? 0 : rope.pairs(), position);
  for (uint32_t h = 0; h < heads + config_.kv_heads; ++h) {
    float* const head = qkv + size_t{h} * dim;
    if (const uint32_t latent = config_.latent.kv_rank; latent > 0) {
      if (h == heads) kernels_.normalize(head, w.key_norm.data(), latent, Latent::kEps, head);
      rotations.turn(head + latent);
      continue;
    }
    const std::vector<float>& norm = h < heads ? w.query_norm : w.key_norm;
    if (!norm.empty()) kernels_.normalize(head, norm.data(), dim, config_.norm_eps, head);
    rotations.turn(head);
  }
}

// Writes the rows' keys and values into their blocks.
void Transformer::store(uint32_t layer, const Slice& slice, float* qkv) const {
  const uint32_t dim = config_.head_dim, kv_heads = config_.kv_heads;
  const size_t head_bytes = kv_.type.row_bytes(dim);
  // Latent vectors are the same on all ranks.
  const bool writes = exchange_ == nullptr || config_.planes() == 2 || exchange_->share().rank == 0;
  for (size_t p = slice.begin; p < slice.end; ++p, qkv += row_floats()) {
    prepare(layer, p, qkv);
    if (!writes) continue;
    std::byte* at = slice.blocks[p / kv_.block_tokens] + p % kv_.block_tokens * head_bytes;
    const float* from = qkv + config_.q_rows();
    for (uint32_t plane = 0; plane < config_.planes(); ++plane)
      for (uint32_t h = 0; h < kv_heads; ++h, from += dim)
        if (kv_.type == KvFormat(DType::kBf16))
          kernels_.round(from, dim,
                         reinterpret_cast<uint16_t*>(at + plane_at(layer, plane == 1, h)));
        else
          kv_.type.write(from, dim, at + plane_at(layer, plane == 1, h));
  }
}

void Transformer::normalize(const std::vector<float>& weight, const float* x, size_t rows,
                            float* out) const {
  const size_t n = config_.hidden;
  for (size_t r = 0; r < rows; ++r)
    kernels_.normalize(x + r * n, weight.data(), n, config_.norm_eps, out + r * n);
}

// x += parts, which are normalized first where the model has a norm for that.
void Transformer::add(const std::vector<float>& norm, float* parts, size_t rows, float* x) const {
  if (!norm.empty()) normalize(norm, parts, rows, parts);
  const size_t n = rows * config_.hidden;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add_lanes(parts + i, x + i);
  for (; i < n; ++i) x[i] += parts[i];
}

void Transformer::attention(uint32_t layer, std::span<const Slice> slices,
                            std::span<const Group> groups, const float* qkv, float* out) const {
  size_t context = 0;
  for (const Slice& s : slices) context += s.end * (s.end - s.begin);
  const bool shared = context * config_.q_rows() > 20'000;
  const size_t step = shared ? threads_.count() : 1;
  const auto one = [&](size_t i) {
    attend(layer, groups[i], i + step < groups.size() ? &groups[i + step] : nullptr, qkv, out);
  };
  if (shared)
    threads_.run(groups.size(), one);
  else
    for (size_t i = 0; i < groups.size(); ++i) one(i);
}

// The columns of all ranks, from those that this one computed.
const float* Transformer::whole(const float* own, size_t rows, size_t columns) const {
  return exchange_ == nullptr ? own : exchange_->gather(own, rows, columns);
}

// All outputs of a matrix. A rank computes its own.
void Transformer::product(const Matrix& m, const float* x, size_t rows, size_t outputs,
                          float* y) const {
  if (exchange_ == nullptr) return m.multiply(kernels_, threads_, x, rows, y, factors_);
  const auto own = floats(rows * m.rows());
  m.multiply(kernels_, threads_, x, rows, own.get(), factors_);
  const float* const all = exchange_->gather(own.get(), rows, outputs);
  if (y != nullptr) std::copy_n(all, rows * outputs, y);
}

void Transformer::mlp(const Matrix& gate_up, const Matrix& down, const float* x, size_t rows,
                      float* out) const {
  const size_t inner = gate_up.rows() / 2;  // of this rank
  const auto both = floats(rows * 2 * inner), gated = floats(rows * inner);
  gate_up.multiply(kernels_, threads_, x, rows, both.get(), factors_);
  for (size_t r = 0; r < rows; ++r) {
    const float* gate = both.get() + r * 2 * inner;
    kernels_.gate(gate, gate + inner, inner, config_.parts().activation, gated.get() + r * inner);
  }
  product(down, whole(gated.get(), rows, down.columns()), rows, config_.hidden, out);
}

// Each expert computes the rows that chose it together. A row's sum goes over its experts in their
// order in the model, whatever other rows chose; the shared one comes last.
void Transformer::experts(const LayerWeights& w, const float* x, size_t rows, float* out) const {
  const size_t hidden = config_.hidden, count = config_.experts.count;
  const auto scores = floats(rows * count), some = floats(rows * hidden);
  const auto results = floats(rows * hidden);
  w.router.multiply(kernels_, threads_, x, rows, scores.get());
  std::vector<std::vector<Chosen>> chosen(count);
  for (size_t r = 0; r < rows; ++r)
    choose_experts(kernels_, config_.experts, w.router_bias, {scores.get() + r * count, count}, r,
                   chosen);
  std::fill(out, out + rows * hidden, 0.0f);
  for (size_t e = 0; e < count; ++e) {
    if (chosen[e].empty()) continue;
    for (size_t i = 0; i < chosen[e].size(); ++i)
      std::copy_n(x + chosen[e][i].row * hidden, hidden, some.get() + i * hidden);
    mlp(w.experts[e].gate_up, w.experts[e].down, some.get(), chosen[e].size(), results.get());
    for (size_t i = 0; i < chosen[e].size(); ++i)
      add_share(results.get() + i * hidden, chosen[e][i].share, hidden,
                out + chosen[e][i].row * hidden);
  }
  if (config_.experts.shared == 0) return;
  mlp(w.gate_up, w.down, x, rows, results.get());
  for (size_t r = 0; r < rows; ++r)
    add_share(results.get() + r * hidden,
              w.shared_gate.empty() ? 1.0f : shared_share(kernels_, w.shared_gate, x + r * hidden),
              hidden, out + r * hidden);
}

void Transformer::layer(uint32_t layer, std::span<const Slice> slices, float* x,
                        bool kv_only) const {
  MC_CHECK(layer >= kv_.first_layer && layer < config_.layers);
  const LayerWeights& w = weights_.layers[layer];
  const size_t rows = rows_of(slices), hidden = config_.hidden;
  const auto normed = floats(rows * hidden), qkv = floats(rows * row_floats());
  normalize(w.attention_norm, x, rows, normed.get());
  project(w, normed.get(), rows, kv_only, qkv.get());
  std::vector<Group> groups;
  const size_t enough = kSharedRows * kGroupsOfThread * threads_.count();
  const bool many =
      rows * config_.kv_heads >= enough && config_.heads / config_.kv_heads <= kSharingHeads;
  const size_t shared = many ? kSharedRows : kFewSharedRows;
  size_t row = 0;
  for (const Slice& s : slices) {
    MC_CHECK(s.begin < s.end && s.end <= config_.context_max);
    MC_CHECK(s.blocks.size() * kv_.block_tokens >= s.end);
    store(layer, s, qkv.get() + row * row_floats());
    for (size_t p = s.begin; p < s.end; p += shared)
      for (uint32_t h = 0; h < config_.kv_heads; ++h)
        groups.push_back({&s, p, std::min(s.end, p + shared), row + p - s.begin, h});
    row += s.end - s.begin;
  }
  if (kv_only) return;
  if (exchange_ != nullptr && config_.planes() == 1) exchange_->wait();  // for the first rank's KV
  const auto attended = floats(rows * config_.q_rows());
  attention(layer, slices, groups, qkv.get(), attended.get());
  const bool latent = config_.latent.kv_rank > 0;
  const auto mixed = floats(latent ? rows * config_.mixed_rows() : 0);
  if (latent) expand(w, attended.get(), rows, mixed.get());
  const float* const own = latent ? mixed.get() : attended.get();
  product(w.output, whole(own, rows, w.output.columns()), rows, hidden, normed.get());
  add(w.post_attention_norm, normed.get(), rows, x);

  const auto result = floats(rows * hidden);
  normalize(w.mlp_norm, x, rows, normed.get());
  if (w.experts.empty())
    mlp(w.gate_up, w.down, normed.get(), rows, result.get());
  else
    experts(w, normed.get(), rows, result.get());
  add(w.post_mlp_norm, result.get(), rows, x);
}

void Transformer::logits(const float* x, size_t rows, float* out) const {
  const auto normed = floats(rows * config_.hidden);
  normalize(weights_.norm, x, rows, normed.get());
  const Matrix& head = config_.tied ? weights_.embedding : weights_.head;
  product(head, normed.get(), rows, config_.vocab, out);
  if (config_.logit_cap > 0 && out != nullptr)
    kernels_.soft_cap(out, rows * config_.vocab, static_cast<float>(config_.logit_cap));
}

}  // namespace mc::model
