// Models of each family: their config.json, and the numbers that their formulas need.
// family_files.h makes their weights. Nothing here is shared with lib/model but the names of keys.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "base/json.h"

namespace mc::test {

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

}  // namespace mc::test
