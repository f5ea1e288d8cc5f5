#include "model/files/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/units.h"

namespace mc::model {
namespace {
uint64_t attention_parameters(const ModelConfig& c) {
  const uint64_t hidden = c.hidden;
  const Latent& l = c.latent;
  if (l.kv_rank > 0) {
    const uint64_t queries = uint64_t{c.heads} * l.q_dim(), values = uint64_t{c.heads} * l.v_dim;
    return (l.q_rank > 0 ? (hidden + queries + 1) * l.q_rank : hidden * queries) +
           hidden * c.head_dim + (c.heads * (l.nope_dim + l.v_dim) + uint64_t{1}) * l.kv_rank +
           values * hidden;
  }
  return hidden * (2 * c.q_rows() + 2 * c.kv_rows()) +
         (c.qkv_bias() ? c.q_rows() + 2 * c.kv_rows() : 0) +
         (c.parts().qk_norm ? 2 * c.head_dim : 0);
}
// Of all layers and the rest; of experts, `experts` in each layer count.
uint64_t count_parameters(const ModelConfig& c, uint64_t experts) {
  const uint64_t hidden = c.hidden;
  const uint64_t attention = attention_parameters(c);
  const uint64_t norms = hidden * (c.parts().post_norms ? 4 : 2);
  const Experts& e = c.experts;
  uint64_t shared = 3 * hidden * e.shared;
  if (e.shared > 0 && !c.parts().latent) shared += hidden;  // what its share is made of
  if (c.parts().sigmoid) shared += e.count;                 // biases
  uint64_t all = uint64_t{c.vocab} * hidden * (c.tied ? 1 : 2) + hidden;
  for (uint32_t i = 0; i < c.layers; ++i)
    all += attention + norms +
           (c.sparse(i) ? hidden * e.count + experts * 3 * hidden * e.inner + shared
                        : 3 * hidden * c.intermediate);
  return all;
}
}  // namespace

uint64_t ModelConfig::parameters() const { return count_parameters(*this, experts.count); }
uint64_t ModelConfig::active_parameters() const { return count_parameters(*this, experts.used); }

Result<> check_config(const ModelConfig& c) {
  if (c.heads == 0 || c.kv_heads == 0 || c.heads % c.kv_heads != 0)
    return fail(Code::kInvalid, "%u attention heads share %u KV heads: want a whole multiple",
                c.heads, c.kv_heads);
  if (c.head_dim == 0 || c.head_dim % 2 != 0 || c.head_dim > 1024)
    return fail(Code::kInvalid, "a head of %u dimensions: want an even number up to 1024",
                c.head_dim);
  if (c.vocab == 0 || c.hidden == 0 || c.intermediate == 0 || c.layers == 0 || c.context_max == 0)
    return fail(Code::kInvalid,
                "vocabulary %u, hidden %u, intermediate %u, layers %u: want all "
                "above 0",
                c.vocab, c.hidden, c.intermediate, c.layers);
  if (!c.layer_kinds.empty() && c.layer_kinds.size() != c.layers)
    return fail(Code::kInvalid, "%zu kinds of layers for %u layers", c.layer_kinds.size(),
                c.layers);
  const Experts& e = c.experts;
  if (e.count > 0 && (e.used == 0 || e.used > e.count || e.inner == 0))
    return fail(Code::kInvalid, "%u of %u experts of %u numbers: want 1 or more, and at most all",
                e.used, e.count, e.inner);
  if (e.count > 0 && (e.groups == 0 || e.count % e.groups != 0 || e.groups_used == 0 ||
                      e.groups_used > e.groups || e.used > e.count / e.groups * e.groups_used))
    return fail(
        Code::kInvalid,
        "%u of %u experts from %u of %u groups: want groups of one size, and as many experts "
        "in those",
        e.used, e.count, e.groups_used, e.groups);
  if (c.parts().sigmoid && e.groups > 1 && e.count / e.groups < 2)
    return fail(Code::kInvalid, "%u groups of one expert: want two or more in each", e.groups);
  if (!c.parts().sigmoid && e.normalized && e.scale != 1)
    return fail(Code::kUnsupported,
                "weights of experts that add up to 1 ('norm_topk_prob') and are scaled by %g "
                "('routed_scaling_factor') are not supported: published programs of this "
                "architecture disagree about them",
                e.scale);
  const Latent& l = c.latent;
  if (c.parts().latent && (l.kv_rank == 0 || l.nope_dim == 0 || l.v_dim == 0 || l.rope_dim == 0 ||
                           c.kv_heads != 1 || c.head_dim != l.kv_rank + l.rope_dim))
    return fail(Code::kInvalid,
                "latent attention of rank %u, %u and %u dimensions of keys, %u of values: want all "
                "above 0",
                l.kv_rank, l.nope_dim, l.rope_dim, l.v_dim);
  for (const Rope* rope : {&c.rope, &c.local_rope})
    if (rope->dims % 2 != 0 || rope->dims > c.head_dim)
      return fail(Code::kInvalid, "%u of a head's %u dimensions turn: want an even number of them",
                  rope->dims, c.head_dim);
  return {};
}

cost::ModelSpec spec_of(const ModelConfig& c, KvFormat kv) {
  cost::ModelSpec s;
  s.name = c.name;
  s.layers = c.layers;
  s.kv_heads = c.kv_heads;
  s.head_dim = kv.quantized() ? static_cast<uint32_t>(kv.row_bytes(c.head_dim)) : c.head_dim;
  s.mla = c.latent.kv_rank > 0;
  s.hidden = c.hidden;
  s.vocab = c.vocab;
  s.element_bytes = kv.quantized() ? 1 : static_cast<uint32_t>(size_of(kv.type()));
  s.context_max = c.context_max;
  s.parameters = c.parameters();
  constexpr double kFlops = 1e11, kMemory = 2e10;  // of a few cores
  s.cost.c0 = 1e-4;
  s.cost.c1 = 2.0 * static_cast<double>(c.active_parameters()) / kFlops;
  s.cost.c2 = 2.0 * c.layers * c.q_rows() / kFlops;
  s.cost.t0 = 4.0 * static_cast<double>(c.active_parameters()) / kMemory;
  s.cost.t1 = s.cost.c1;
  s.cost.t2 = static_cast<double>(s.kv_bytes_per_token()) / kMemory;
  s.cost.load_bytes_per_s = kMemory;
  s.cost.transfer_bytes_per_s = 2e9;
  return s;
}

std::string parts_beyond_llama(const ModelConfig& c) {
  std::string all;
  const auto add = [&](bool has, const char* what) {
    if (has) all += (all.empty() ? "" : ", ") + std::string(what);
  };
  bool windows = false, unturned = false, local = false;
  for (const LayerKind& k : c.layer_kinds) {
    windows |= k.window != 0;
    unturned |= k.turn == Turn::kNone;
    local |= k.turn == Turn::kLocal;
  }
  add(c.latent.kv_rank > 0, "latent attention (MLA)");
  add(c.parts().qk_norm, "QK norm");
  add(c.parts().post_norms, "norms after attention and MLP");
  add(c.parts().activation != Activation::kSilu, "GELU");
  add(c.experts.count > 0, "experts");
  add(windows, "sliding windows");
  add(unturned, "layers without rotation");
  add(local, "two rotations");
  add(c.latent.kv_rank == 0 && c.rope.turned(c.head_dim) != c.head_dim,
      "a rotation of a part of each head");
  add(c.attention_cap != 0 || c.logit_cap != 0, "soft caps");
  add(c.embedding_scale != 1, "scaled embeddings");
  add(c.query_scalar != 0 && c.query_scalar != c.head_dim, "scaled queries");
  return all;
}

std::string describe_parts(const ModelConfig& c) {
  if (parts_beyond_llama(c).empty()) return "";
  const Parts& p = c.parts();
  const Experts& e = c.experts;
  std::string all =
      strf("%d %d %d", p.qk_norm ? 1 : 0, p.post_norms ? 1 : 0, static_cast<int>(p.activation));
  all += strf(" %u %u %u %u %d", e.count, e.used, e.inner, e.shared, e.normalized ? 1 : 0);
  all += strf(" %u %.9g %.9g %.9g %.9g", c.rope.dims, c.embedding_scale, c.query_scalar,
              c.attention_cap, c.logit_cap);
  all += strf(" %.9g %d %.9g", c.local_rope.theta, static_cast<int>(c.local_rope.scaling),
              c.local_rope.factor);
  if (const Latent& l = c.latent; l.kv_rank > 0)
    all += strf(" %u %u %u %u %u %u %u %.9g %d", l.kv_rank, l.q_rank, l.nope_dim, l.rope_dim,
                l.v_dim, e.groups, e.groups_used, e.scale, p.sigmoid ? 1 : 0);
  for (const LayerKind& k : c.layer_kinds)
    all += strf(" %llu/%d/%d", static_cast<unsigned long long>(k.window), static_cast<int>(k.turn),
                k.dense ? 1 : 0);
  return all;
}

namespace {
// Which pair turns so many times in the original context.
double pair_of(double turns, const Rope& rope, uint32_t head_dim) {
  const double wave = static_cast<double>(rope.original_context) / (turns * 2 * std::numbers::pi);
  return head_dim * std::log(wave) / (2 * std::log(rope.theta));
}
}  // namespace

std::vector<double> rope_frequencies(const Rope& rope, uint32_t whole_head) {
  const uint32_t head_dim = rope.turned(whole_head);
  std::vector<double> speeds(head_dim / 2);
  const double first = std::max(0.0, std::floor(pair_of(rope.often, rope, head_dim)));
  const double last = std::min(head_dim - 1.0, std::ceil(pair_of(rope.seldom, rope, head_dim)));
  for (size_t j = 0; j < speeds.size(); ++j) {
    double speed = std::pow(rope.theta, -2.0 * static_cast<double>(j) / head_dim);
    if (rope.scaling == RopeScaling::kLinear) speed /= rope.factor;
    if (rope.scaling == RopeScaling::kLlama3) {
      // Long waves are stretched by the factor, short ones kept, those between blended.
      const double turns =
          static_cast<double>(rope.original_context) * speed / (2 * std::numbers::pi);
      const double keep = std::clamp(
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
          1.0);
      speed *= keep + (1 - keep) / rope.factor;
    }
    if (rope.scaling == RopeScaling::kYarn) {  // kept before the first, slowed from the last on
      const double slowed =
          std::clamp((static_cast<double>(j) - first) / std::max(last - first, 0.001), 0.0, 1.0);
      speed *= 1 - slowed + slowed / rope.factor;
    }
    speeds[j] = j < rope.divisors.size() ? speed / rope.divisors[j] : speed;
  }
  return speeds;
}

}  // namespace mc::model
