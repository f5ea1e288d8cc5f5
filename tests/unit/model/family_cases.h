// Models of each family with small random weights, as the files that they would be published as.
// Nothing here is shared with lib/model but the names of tensors and keys.
#pragma once
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "model/files/gguf.h"
#include "model/forward/weights.h"

namespace mc::test {

struct NamedTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
using NamedTensors = std::map<std::string, NamedTensor>;

// The numbers of a family that its formulas need, said again by hand.
struct FamilyCase {
  std::string name;
  Json json;           // config.json
  std::string gguf{};  // architecture of the GGUF file; empty: none is made
  bool bias = false, qk_norm = false, post = false, plus = false, fused = false, gelu = false;
  bool permuted = false, mixtral = false, tied = false;
  size_t layers = 4, vocab = 61, hidden = 48, inner = 40, heads = 4, kv_heads = 2, dim = 16;
  std::vector<size_t> windows{};  // one a layer; empty: all see all
  std::vector<int> turns{};       // 0: `speeds`, 1: `local`, 2: none; empty: all 0
  std::vector<double> speeds{}, local{};
  double turn_scale = 1, embed = 1, scalar = 16, cap = 0, logit_cap = 0;
  size_t experts = 0, used = 0, expert_inner = 0, shared = 0;
  bool normalized = false;
  // Latent attention, and what its models' experts have: kv_rank 0: none.
  size_t kv_rank = 0, q_rank = 0, nope = 0, rope = 0, v = 0;
  size_t groups = 1, groups_used = 1;
  double expert_scale = 1;
  bool sigmoid = false;       // scores, with biases
  bool split_up = false;      // GGUF has matrices of keys and of values
  std::vector<bool> dense{};  // layers of one MLP among those of experts
  bool sparse(size_t l) const { return experts > 0 && (dense.empty() || !dense[l]); }
};

// What llama.cpp's converter makes of them: metadata and tensors.
struct GgufFile {
  NamedTensors tensors;
  std::map<std::string, model::GgufValue> metadata;
};
namespace families {

inline constexpr size_t kWindow = 40;  // crosses the ends of tiles of attention

inline std::vector<double> speeds_of(double theta, size_t turned, double divisor = 1) {
  std::vector<double> speeds;
  for (size_t j = 0; j < turned / 2; ++j)
    speeds.push_back(std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(turned)) /
                     divisor);
  return speeds;
}

// Llama 3.1's: by wavelength, in three ranges.
inline std::vector<double> llama3_speeds(double theta, size_t turned, double factor,
                                         double context) {
  std::vector<double> speeds = speeds_of(theta, turned);
  for (double& s : speeds) {
    const double wave = 2 * 3.14159265358979323846 / s, smooth = (context / wave - 1) / (4 - 1);
    if (wave > context)
      s /= factor;
    else if (wave > context / 4)
      s = (1 - smooth) * s / factor + smooth * s;
  }
  return speeds;
}

inline FamilyCase base(const char* name, const char* architecture, size_t layers = 4) {
  FamilyCase c;
  c.name = name;
  c.layers = layers;
  c.speeds = speeds_of(10000, c.dim);
  c.json = {{"architectures", {architecture}},
            {"vocab_size", c.vocab},
            {"hidden_size", c.hidden},
            {"intermediate_size", c.inner},
            {"num_hidden_layers", layers},
            {"num_attention_heads", c.heads},
            {"num_key_value_heads", c.kv_heads},
            {"head_dim", c.dim},
            {"max_position_embeddings", 512},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0}};
  return c;
}

inline FamilyCase llama() {
  FamilyCase c = base("llama", "LlamaForCausalLM");
  c.gguf = "llama";
  c.permuted = true;
  return c;
}
inline FamilyCase llama3() {
  FamilyCase c = base("llama3", "LlamaForCausalLM");
  c.json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  c.speeds = llama3_speeds(10000, c.dim, 8, 64);
  return c;
}
inline FamilyCase mistral() {
  FamilyCase c = base("mistral", "MistralForCausalLM");
  c.json["sliding_window"] = kWindow;
  c.windows.assign(c.layers, kWindow);
  c.gguf = "llama";
  c.permuted = true;
  return c;
}
inline FamilyCase qwen2() {
  FamilyCase c = base("qwen2", "Qwen2ForCausalLM");
  c.json.update(
      {{"use_sliding_window", true}, {"sliding_window", kWindow}, {"max_window_layers", 3}});
  c.windows = {0, 0, 0, kWindow};
  c.bias = true;
  return c;
}
inline FamilyCase qwen3() {
  FamilyCase c = base("qwen3", "Qwen3ForCausalLM");
  c.json.update({{"rope_theta", 1e6},
                 {"attention_bias", false},
                 {"use_sliding_window", false},
                 {"sliding_window", nullptr}});
  c.speeds = speeds_of(1e6, c.dim);
  c.qk_norm = true;
  c.gguf = "qwen3";
  return c;
}
inline FamilyCase gemma2() {
  FamilyCase c = base("gemma2", "Gemma2ForCausalLM");
  c.json.update({{"hidden_activation", "gelu_pytorch_tanh"},
                 {"sliding_window", kWindow},
                 {"attn_logit_softcapping", 1.5},
                 {"final_logit_softcapping", 2.0},
                 {"query_pre_attn_scalar", 16}});
  c.windows = {kWindow, 0, kWindow, 0};
  c.post = c.plus = c.gelu = c.tied = true;
  c.embed = std::sqrt(48.0);
  c.cap = 1.5;
  c.logit_cap = 2;
  c.gguf = "gemma2";
  return c;
}
inline FamilyCase gemma2_scaled() {
  FamilyCase c = gemma2();
  c.name = "gemma2, queries scaled";
  c.json["query_pre_attn_scalar"] = 4;
  c.scalar = 4;
  c.gguf = "";
  return c;
}
inline FamilyCase gemma3() {
  FamilyCase c = base("gemma3", "Gemma3ForCausalLM", 7);
  c.json.update({{"hidden_activation", "gelu_pytorch_tanh"},
                 {"sliding_window", kWindow},
                 {"rope_theta", 1e6},
                 {"rope_local_base_freq", 10000.0},
                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
                 {"query_pre_attn_scalar", 16}});
  c.windows = {kWindow, kWindow, kWindow, kWindow, kWindow, 0, kWindow};
  c.turns = {1, 1, 1, 1, 1, 0, 1};
  c.local = speeds_of(10000, c.dim);
  c.speeds = speeds_of(1e6, c.dim, 8);
  c.qk_norm = c.post = c.plus = c.gelu = c.tied = true;
  c.embed = std::sqrt(48.0);
  c.gguf = "gemma3";
  return c;
}
inline FamilyCase mixtral() {
  FamilyCase c = base("mixtral", "MixtralForCausalLM");
  c.json.update({{"num_local_experts", 5}, {"num_experts_per_tok", 2}});
  c.experts = 5, c.used = 2, c.expert_inner = c.inner;
  c.normalized = c.mixtral = c.permuted = true;
  c.gguf = "llama";
  return c;
}
inline FamilyCase qwen2_moe() {
  FamilyCase c = base("qwen2moe", "Qwen2MoeForCausalLM");
  c.json.update({{"num_experts", 6},
                 {"num_experts_per_tok", 3},
                 {"moe_intermediate_size", 24},
                 {"shared_expert_intermediate_size", 56},
                 {"norm_topk_prob", false}});
  c.experts = 6, c.used = 3, c.expert_inner = 24, c.shared = 56;
  c.bias = true;
  c.gguf = "qwen2moe";
  return c;
}
inline FamilyCase qwen3_moe() {
  FamilyCase c = base("qwen3moe", "Qwen3MoeForCausalLM");
  c.json.update({{"num_experts", 8},
                 {"num_experts_per_tok", 3},
                 {"moe_intermediate_size", 24},
                 {"norm_topk_prob", true}});
  c.experts = 8, c.used = 3, c.expert_inner = 24;
  c.normalized = c.qk_norm = true;
  c.gguf = "qwen3moe";
  return c;
}
inline FamilyCase qwen3_moe_mixed() {
  FamilyCase c = qwen3_moe();
  c.name = "qwen3moe, some layers dense";
  c.json.update({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}, {"norm_topk_prob", false}});
  c.dense = {true, false, true, true};
  c.normalized = false;
  c.gguf = "";
  return c;
}
// Of 16 dimensions 8 turn. Which list of divisors holds depends on the context.
inline FamilyCase phi3(bool is_long) {
  FamilyCase c = base("phi3", "Phi3ForCausalLM");
  if (!is_long) c.name = "phi3, short";
  const std::vector<double> longs = {1, 1.5, 2, 4}, shorts = {1.25, 1, 1, 2};
  c.json["sliding_window"] = kWindow;
  c.json["partial_rotary_factor"] = 0.5;
  c.json["original_max_position_embeddings"] = is_long ? 64 : 512;
  c.json["rope_scaling"] = {{"type", "longrope"}, {"short_factor", shorts}, {"long_factor", longs}};
  c.windows.assign(c.layers, kWindow);
  c.speeds = speeds_of(10000, 8);
  for (size_t j = 0; j < 4; ++j) c.speeds[j] /= (is_long ? longs : shorts)[j];
  if (is_long) c.turn_scale = std::sqrt(1 + std::log(512.0 / 64) / std::log(64.0));
  c.fused = true;
  c.gguf = "phi3";
  return c;
}
inline FamilyCase smollm3() {
  FamilyCase c = base("smollm3", "SmolLM3ForCausalLM", 5);
  c.json.update({{"rope_theta", 5e6}, {"no_rope_layers", {1, 1, 1, 0, 1}}});
  c.speeds = speeds_of(5e6, c.dim);
  c.turns = {0, 0, 0, 2, 0};
  c.tied = c.permuted = true;
  c.gguf = "smollm3";
  return c;
}

// YaRN's: fast pairs keep their speed, slow ones lose the factor, those between lose a part.
inline std::vector<double> yarn_speeds(double theta, size_t turned, double factor, double context) {
  std::vector<double> speeds = speeds_of(theta, turned);
  const auto pair_of = [&](double turns) {
    return static_cast<double>(turned) * std::log(context / (turns * 2 * 3.14159265358979323846)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(pair_of(32)), 0.0);
  const double high = std::min(std::ceil(pair_of(1)), static_cast<double>(turned) - 1);
  for (size_t j = 0; j < speeds.size(); ++j) {
    const double ramp =
        std::min(1.0, std::max(0.0, (static_cast<double>(j) - low) / std::max(high - low, 0.001)));
    speeds[j] = speeds[j] / factor * ramp + speeds[j] * (1 - ramp);
  }
  return speeds;
}

// As DeepSeek-V2-Lite: queries of their own, no groups of experts, YaRN.
inline FamilyCase deepseek2_lite() {
  FamilyCase c = base("deepseek2, lite", "DeepseekV2ForCausalLM");
  c.kv_heads = 4;
  c.kv_rank = 24, c.nope = 12, c.rope = 8, c.v = 10;
  c.experts = 6, c.used = 2, c.expert_inner = 24, c.shared = 48;
  c.dense = {true, false, false, false};
  c.json.erase("head_dim");
  c.json.update({{"num_key_value_heads", 4},
                 {"kv_lora_rank", 24},
                 {"q_lora_rank", nullptr},
                 {"qk_nope_head_dim", 12},
                 {"qk_rope_head_dim", 8},
                 {"v_head_dim", 10},
                 {"n_routed_experts", 6},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 24},
                 {"n_shared_experts", 2},
                 {"first_k_dense_replace", 1},
                 {"moe_layer_freq", 1},
                 {"norm_topk_prob", false},
                 {"routed_scaling_factor", 1.0},
                 {"scoring_func", "softmax"},
                 {"topk_method", "greedy"},
                 {"rope_scaling",
                  {{"type", "yarn"},
                   {"factor", 40},
                   {"beta_fast", 32},
                   {"beta_slow", 1},
                   {"mscale", 0.707},
                   {"mscale_all_dim", 0.707},
                   {"original_max_position_embeddings", 64}}}});
  c.speeds = yarn_speeds(10000, 8, 40, 64);
  c.scalar = 20 / std::pow(1 + 0.1 * 0.707 * std::log(40.0), 4);
  c.gguf = "deepseek2";
  return c;
}
// As DeepSeek-V2: queries from fewer numbers, experts in groups.
inline FamilyCase deepseek2() {
  FamilyCase c = deepseek2_lite();
  c.name = "deepseek2";
  c.q_rank = 20;
  c.experts = 8, c.groups = 4, c.groups_used = 2, c.used = 3, c.expert_scale = 16;
  c.json.update({{"q_lora_rank", 20},
                 {"n_routed_experts", 8},
                 {"num_experts_per_tok", 3},
                 {"topk_method", "group_limited_greedy"},
                 {"n_group", 4},
                 {"topk_group", 2},
                 {"routed_scaling_factor", 16.0}});
  c.split_up = true;
  return c;
}
inline FamilyCase deepseek2_unlike_scales() {
  FamilyCase c = deepseek2();
  c.name = "deepseek2, two scales";
  c.json["rope_scaling"]["mscale"] = 1.0;
  c.json["n_shared_experts"] = nullptr;
  c.json["moe_layer_freq"] = 2;
  c.dense = {true, true, false, true};
  c.shared = 0;
  c.turn_scale = (1 + 0.1 * std::log(40.0)) / (1 + 0.1 * 0.707 * std::log(40.0));
  c.gguf = "";
  return c;
}
inline FamilyCase deepseek3() {
  FamilyCase c = deepseek2();
  c.name = "deepseek3";
  c.json["architectures"] = {"DeepseekV3ForCausalLM"};
  c.json.update({{"scoring_func", "sigmoid"},
                 {"topk_method", "noaux_tc"},
                 {"norm_topk_prob", true},
                 {"routed_scaling_factor", 2.5}});
  c.json.erase("rope_scaling");
  c.sigmoid = c.normalized = true;
  c.expert_scale = 2.5;
  c.speeds = speeds_of(10000, 8);
  c.scalar = 20;
  return c;
}

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

inline std::vector<FamilyCase> family_cases() {
  using namespace families;
  return {llama(),          llama3(),    mistral(),
          qwen2(),          qwen3(),     gemma2(),
          gemma2_scaled(),  gemma3(),    mixtral(),
          qwen2_moe(),      qwen3_moe(), qwen3_moe_mixed(),
          phi3(true),       phi3(false), smollm3(),
          deepseek2_lite(), deepseek2(), deepseek2_unlike_scales(),
          deepseek3()};
}

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
