// The files of the models in family_cases.h: tensors of small random weights, as they would be
// published, in HF folders and GGUF files. Nothing here is shared with lib/model but the names of
// tensors and keys.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "family_cases.h"
#include "model/files/gguf.h"

namespace mc::test {

struct NamedTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
using NamedTensors = std::map<std::string, NamedTensor>;

// What llama.cpp's converter makes of them: metadata and tensors.
struct GgufFile {
  NamedTensors tensors;
  std::map<std::string, model::GgufValue> metadata;
};
namespace families {

class Maker {
 public:
  Maker(NamedTensors& into, uint64_t seed) : into_(into), seed_(seed) {}
  void matrix(const std::string& name, size_t rows, size_t columns) {
    add(name, {rows, columns}, 0, std::sqrt(3.0 / static_cast<double>(columns)));
  }
  void vector(const std::string& name, size_t n, double middle, double range) {
    add(name, {n}, middle, range);
  }

 private:
  void add(const std::string& name, std::vector<uint64_t> shape, double middle, double range) {
    size_t n = 1;
    for (const uint64_t side : shape) n *= side;
    Random random(xxh3(name, seed_));
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(middle + random.uniform(-range, range));
    into_[name] = {std::move(shape), std::move(values)};
  }
  NamedTensors& into_;
  const uint64_t seed_;
};

inline std::string of_layer(size_t l) { return "model.layers." + std::to_string(l) + "."; }
inline std::string of_expert(const FamilyCase& c, size_t l, size_t e) {
  return of_layer(l) + (c.mixtral ? "block_sparse_moe.experts." : "mlp.experts.") +
         std::to_string(e) + ".";
}
inline const char* gate_name(const FamilyCase& c) {
  return c.mixtral ? "w1.weight" : "gate_proj.weight";
}
inline const char* up_name(const FamilyCase& c) {
  return c.mixtral ? "w3.weight" : "up_proj.weight";
}
inline const char* down_name(const FamilyCase& c) {
  return c.mixtral ? "w2.weight" : "down_proj.weight";
}
inline std::string router_name(const FamilyCase& c, size_t l) {
  return of_layer(l) + (c.mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight");
}

inline std::string router_bias_name(size_t l) {
  return of_layer(l) + "mlp.gate.e_score_correction_bias";
}

inline void make_mlp(Maker& make, const std::string& at, size_t hidden, size_t inner) {
  make.matrix(at + "gate_proj.weight", inner, hidden);
  make.matrix(at + "up_proj.weight", inner, hidden);
  make.matrix(at + "down_proj.weight", hidden, inner);
}

inline void make_latent(Maker& make, const FamilyCase& c, const std::string& at) {
  const size_t queries = c.heads * (c.nope + c.rope);
  if (c.q_rank == 0) {
    make.matrix(at + "q_proj.weight", queries, c.hidden);
  } else {
    make.matrix(at + "q_a_proj.weight", c.q_rank, c.hidden);
    make.vector(at + "q_a_layernorm.weight", c.q_rank, 1, 0.5);
    make.matrix(at + "q_b_proj.weight", queries, c.q_rank);
  }
  make.matrix(at + "kv_a_proj_with_mqa.weight", c.kv_rank + c.rope, c.hidden);
  make.vector(at + "kv_a_layernorm.weight", c.kv_rank, 1, 0.5);
  make.matrix(at + "kv_b_proj.weight", c.heads * (c.nope + c.v), c.kv_rank);
  make.matrix(at + "o_proj.weight", c.hidden, c.heads * c.v);
}

inline void make_attention(Maker& make, const FamilyCase& c, const std::string& at, double one) {
  if (c.kv_rank > 0) return make_latent(make, c, at);
  const size_t q = c.heads * c.dim, kv = c.kv_heads * c.dim;
  if (c.fused) {
    make.matrix(at + "qkv_proj.weight", q + 2 * kv, c.hidden);
  } else {
    make.matrix(at + "q_proj.weight", q, c.hidden);
    make.matrix(at + "k_proj.weight", kv, c.hidden);
    make.matrix(at + "v_proj.weight", kv, c.hidden);
  }
  make.matrix(at + "o_proj.weight", c.hidden, q);
  for (const char x : {'q', 'k', 'v'})
    if (c.bias) make.vector(at + x + "_proj.bias", x == 'q' ? q : kv, 0, 0.5);
  for (const char x : {'q', 'k'})
    if (c.qk_norm) make.vector(at + x + "_norm.weight", c.dim, one, 0.5);
}

// Rows of a head j and j + half come to lie at 2j and 2j + 1.
inline NamedTensor paired(NamedTensor t, size_t dim) {
  const size_t columns = t.shape[1], half = dim / 2;
  const NamedTensor from = t;
  for (size_t n = 0; n < t.shape[0]; ++n) {
    const size_t j = n % dim, to = n - j + (j < half ? 2 * j : 2 * (j - half) + 1);
    for (size_t k = 0; k < columns; ++k) t.values[to * columns + k] = from.values[n * columns + k];
  }
  return t;
}

inline NamedTensor stacked(const std::vector<const NamedTensor*>& parts) {
  NamedTensor all{{parts.size(), parts[0]->shape[0], parts[0]->shape[1]}, {}};
  for (const NamedTensor* p : parts)
    all.values.insert(all.values.end(), p->values.begin(), p->values.end());
  return all;
}

// Of each head keys [nope][kv_rank], turned over, and values [v][kv_rank].
inline void split_up(const FamilyCase& c, const NamedTensor& both, NamedTensor& keys,
                     NamedTensor& values) {
  keys.shape = {c.heads, c.kv_rank, c.nope};
  values.shape = {c.heads, c.v, c.kv_rank};
  for (size_t h = 0; h < c.heads; ++h) {
    const float* const of = both.values.data() + h * (c.nope + c.v) * c.kv_rank;
    for (size_t i = 0; i < c.kv_rank; ++i)
      for (size_t k = 0; k < c.nope; ++k) keys.values.push_back(of[k * c.kv_rank + i]);
    values.values.insert(values.values.end(), of + c.nope * c.kv_rank,
                         of + (c.nope + c.v) * c.kv_rank);
  }
}

inline const std::map<std::string, std::string>& renamed(bool post) {
  static const std::map<std::string, std::string> kPlain = {
      {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.qkv_proj", "attn_qkv"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.gate", "ffn_gate_inp"},
      {"block_sparse_moe.gate", "ffn_gate_inp"},
      {"self_attn.q_a_proj", "attn_q_a"},
      {"self_attn.q_a_layernorm", "attn_q_a_norm"},
      {"self_attn.q_b_proj", "attn_q_b"},
      {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
      {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
      {"self_attn.kv_b_proj", "attn_kv_b"},
      {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
      {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
      {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
      {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
      {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
      {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
      {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"}};
  static const std::map<std::string, std::string> kPost = [] {
    auto all = kPlain;
    all["post_attention_layernorm"] = "post_attention_norm";
    all["pre_feedforward_layernorm"] = "ffn_norm";
    all["post_feedforward_layernorm"] = "post_ffw_norm";
    return all;
  }();
  return post ? kPost : kPlain;
}

inline bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace families

inline NamedTensors hf_tensors(const FamilyCase& c, uint64_t seed) {
  using namespace families;
  NamedTensors all;
  Maker make(all, seed);
  const double one = c.plus ? 0 : 1;
  make.matrix("model.embed_tokens.weight", c.vocab, c.hidden);
  if (!c.tied) make.matrix("lm_head.weight", c.vocab, c.hidden);
  make.vector("model.norm.weight", c.hidden, one, 0.3);
  for (size_t l = 0; l < c.layers; ++l) {
    const std::string at = of_layer(l);
    make.vector(at + "input_layernorm.weight", c.hidden, one, 0.3);
    make.vector(at + "post_attention_layernorm.weight", c.hidden, one, 0.3);
    for (const char* name :
         {"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"})
      if (c.post) make.vector(at + name, c.hidden, one, 0.3);
    make_attention(make, c, at + "self_attn.", one);
    if (c.fused) {
      make.matrix(at + "mlp.gate_up_proj.weight", 2 * c.inner, c.hidden);
      make.matrix(at + "mlp.down_proj.weight", c.hidden, c.inner);
    } else if (!c.sparse(l)) {
      make_mlp(make, at + "mlp.", c.hidden, c.inner);
    } else {
      make.matrix(router_name(c, l), c.experts, c.hidden);
      for (size_t e = 0; e < c.experts; ++e) {
        make.matrix(of_expert(c, l, e) + gate_name(c), c.expert_inner, c.hidden);
        make.matrix(of_expert(c, l, e) + up_name(c), c.expert_inner, c.hidden);
        make.matrix(of_expert(c, l, e) + down_name(c), c.hidden, c.expert_inner);
      }
      if (c.sigmoid) make.vector(router_bias_name(l), c.experts, 0, 0.3);
      if (c.shared > 0 && c.kv_rank > 0) {
        make_mlp(make, at + "mlp.shared_experts.", c.hidden, c.shared);
      } else if (c.shared > 0) {
        make_mlp(make, at + "mlp.shared_expert.", c.hidden, c.shared);
        make.matrix(at + "mlp.shared_expert_gate.weight", 1, c.hidden);
      }
    }
  }
  return all;
}

inline GgufFile gguf_of(const FamilyCase& c, const NamedTensors& hf) {
  using namespace families;
  GgufFile file;
  NamedTensors& out = file.tensors;
  for (const auto& [name, t] : hf) {
    NamedTensor copy = t;
    if (c.plus && has(name, "norm.weight"))
      for (float& v : copy.values) v += 1;
    if (c.permuted && (has(name, "q_proj") || has(name, "k_proj"))) copy = paired(copy, c.dim);
    if (has(name, "shared_expert_gate")) copy.shape = {c.hidden};
    if (name == "model.embed_tokens.weight") out["token_embd.weight"] = copy;
    if (name == "lm_head.weight") out["output.weight"] = copy;
    if (name == "model.norm.weight") out["output_norm.weight"] = copy;
    if (!name.starts_with("model.layers.") || has(name, ".experts.")) continue;
    const size_t dot = name.find('.', 13), end = name.rfind('.');
    const std::string block = "blk." + name.substr(13, dot - 13) + ".";
    if (has(name, "e_score_correction_bias")) {
      out[block + "exp_probs_b.bias"] = copy;
      continue;
    }
    if (c.split_up && has(name, "kv_b_proj")) {
      split_up(c, copy, out[block + "attn_k_b.weight"], out[block + "attn_v_b.weight"]);
      continue;
    }
    out[block + renamed(c.post).at(name.substr(dot + 1, end - dot - 1)) + name.substr(end)] = copy;
  }
  for (size_t l = 0; l < c.layers; ++l)
    for (const auto& [to, from] : {std::pair("gate", gate_name(c)), std::pair("up", up_name(c)),
                                   std::pair("down", down_name(c))}) {
      if (!c.sparse(l)) continue;
      std::vector<const NamedTensor*> parts;
      for (size_t e = 0; e < c.experts; ++e) parts.push_back(&hf.at(of_expert(c, l, e) + from));
      out["blk." + std::to_string(l) + ".ffn_" + to + "_exps.weight"] = stacked(parts);
    }
  auto& m = file.metadata;
  const auto put = [&](const char* key, model::GgufValue v) {
    m[c.gguf + "." + key] = std::move(v);
  };
  const auto whole = [](size_t n) { return static_cast<int64_t>(n); };
  m["general.architecture"] = c.gguf;
  put("vocab_size", whole(c.vocab));
  put("embedding_length", whole(c.hidden));
  put("feed_forward_length", whole(c.inner));
  put("block_count", whole(c.layers));
  put("attention.head_count", whole(c.heads));
  put("attention.head_count_kv", whole(c.kv_heads));
  put("attention.key_length", whole(c.dim));
  put("attention.value_length", whole(c.dim));
  put("context_length", int64_t{512});
  put("attention.layer_norm_rms_epsilon", 1e-5);
  put("rope.freq_base", c.json["rope_theta"].get<double>());
  if (!c.windows.empty()) put("attention.sliding_window", whole(kWindow));
  if (c.cap > 0) put("attn_logit_softcapping", c.cap);
  if (c.logit_cap > 0) put("final_logit_softcapping", c.logit_cap);
  if (c.name == "gemma3") {
    put("rope.scaling.type", std::string("linear"));
    put("rope.scaling.factor", 8.0);
  }
  if (c.experts > 0) {
    put("expert_count", whole(c.experts));
    put("expert_used_count", whole(c.used));
    put("expert_feed_forward_length", whole(c.expert_inner));
  }
  if (c.kv_rank > 0) {
    const std::string mla = c.split_up ? "_mla" : "";
    if (c.split_up) {
      put("attention.head_count_kv", int64_t{1});
      put("attention.key_length", whole(c.kv_rank + c.rope));
      put("attention.value_length", whole(c.kv_rank));
    }
    put(("attention.key_length" + mla).c_str(), whole(c.nope + c.rope));
    put(("attention.value_length" + mla).c_str(), whole(c.v));
    put("attention.kv_lora_rank", whole(c.kv_rank));
    if (c.q_rank > 0) put("attention.q_lora_rank", whole(c.q_rank));
    put("rope.dimension_count", whole(c.rope));
    put("expert_shared_count", whole(c.shared / c.expert_inner));
    put("expert_weights_scale", c.expert_scale);
    put("expert_weights_norm", c.normalized);
    put("expert_gating_func", int64_t{c.sigmoid ? 2 : 1});
    put("expert_group_count", whole(c.groups));
    put("expert_group_used_count", whole(c.groups_used));
    put("leading_dense_block_count", int64_t{1});
  }
  if (c.json.contains("rope_scaling") && c.kv_rank > 0) {
    put("rope.scaling.type", std::string("yarn"));
    put("rope.scaling.factor", 40.0);
    put("rope.scaling.original_context_length", int64_t{64});
    put("rope.scaling.yarn_log_multiplier", 0.0707);
  }
  if (c.gguf == "phi3") {
    put("rope.dimension_count", int64_t{8});
    put("rope.scaling.original_context_length",
        c.json["original_max_position_embeddings"].get<int64_t>());
    out["rope_factors_long.weight"] = {{4}, {1, 1.5, 2, 4}};
    out["rope_factors_short.weight"] = {{4}, {1.25, 1, 1, 2}};
  }
  return file;
}

inline model::Tensors views(const NamedTensors& tensors) {
  model::Tensors all;
  for (const auto& [name, t] : tensors)
    all[name] = {model::DType::kF32, "F32", t.shape, std::as_bytes(std::span(t.values))};
  return all;
}

}  // namespace mc::test
