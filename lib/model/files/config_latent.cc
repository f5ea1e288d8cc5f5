// What models of latent attention (DeepSeek V2 and V3) say of their heads and their experts.
#include "base/json.h"
#include "base/units.h"
#include "model/files/config_values.h"

namespace mc::model {
namespace {

constexpr uint64_t kRankMost = 1u << 16;

Result<uint32_t> optional_number(const Json& json, const char* key, uint64_t most) {
  if (member(json, key) == nullptr) return 0;
  MC_TRY(const uint64_t n, number(json, key, 0, most));
  return static_cast<uint32_t>(n);
}

Result<> parse_groups(const Json& json, bool sigmoid, Experts& e) {
  const char* const key = "topk_method";
  std::string method = sigmoid ? "noaux_tc" : "greedy";
  if (member(json, key) != nullptr) {
    MC_TRY(method, get_string(json, key));
  }
  const char* const limited = sigmoid ? "noaux_tc" : "group_limited_greedy";
  if (method != limited && (sigmoid || method != "greedy"))
    return fail(Code::kUnsupported, "'%s' is '%s': want %s%s for this architecture", key,
                escape(method).c_str(), sigmoid ? "" : "greedy or ", limited);
  if (method != limited) return {};
  MC_TRY_(small(json, "n_group", 0, e.count, e.groups));
  return small(json, "topk_group", 0, e.groups, e.groups_used);
}

}  // namespace

void set_latent(const Latent& latent, ModelConfig& c) {
  c.latent = latent;
  c.kv_heads = 1;
  c.head_dim = latent.kv_rank + latent.rope_dim;
  c.rope.dims = latent.rope_dim;
}

void scale_queries(ModelConfig& c) {
  if (c.latent.kv_rank > 0)
    c.query_scalar = c.latent.q_dim() / (c.rope.score_scale * c.rope.score_scale);
}

Result<> parse_latent(const Json& json, ModelConfig& c) {
  if (c.kv_heads != c.heads)
    return fail(Code::kUnsupported,
                "'num_key_value_heads' is %u: want the %u of 'num_attention_heads', which share "
                "one latent vector",
                c.kv_heads, c.heads);
  Latent l;
  MC_TRY_(small(json, "kv_lora_rank", 0, kRankMost, l.kv_rank));
  MC_TRY(l.q_rank, optional_number(json, "q_lora_rank", kRankMost));
  MC_TRY_(small(json, "qk_nope_head_dim", 0, kRankMost, l.nope_dim));
  MC_TRY_(small(json, "qk_rope_head_dim", 0, kRankMost, l.rope_dim));
  MC_TRY_(small(json, "v_head_dim", 0, kRankMost, l.v_dim));
  MC_TRY(const bool pairs, get_bool_or(json, "rope_interleave", true));
  if (!pairs) return fail(Code::kUnsupported, "'rope_interleave' is false: only true is supported");
  set_latent(l, c);
  return {};
}

Result<> parse_routed_experts(const Json& json, ModelConfig& c) {
  if (member(json, "n_routed_experts") == nullptr) return {};
  const bool sigmoid = c.parts().sigmoid;
  Experts& e = c.experts;
  MC_TRY_(small(json, "n_routed_experts", 0, 4096, e.count));
  MC_TRY_(small(json, "num_experts_per_tok", 0, e.count, e.used));
  MC_TRY_(small(json, "moe_intermediate_size", 0, 1u << 22, e.inner));
  MC_TRY(const uint32_t shared, optional_number(json, "n_shared_experts", 64));
  e.shared = shared * e.inner;
  MC_TRY(e.normalized, get_bool_or(json, "norm_topk_prob", sigmoid));
  MC_TRY(e.scale, positive(json, "routed_scaling_factor", 1));
  const char* const scoring = "scoring_func";
  const char* const want = sigmoid ? "sigmoid" : "softmax";
  if (const Json* func = member(json, scoring); func != nullptr && *func != want)
    return fail(Code::kUnsupported, "'%s' is %s, want \"%s\"", scoring,
                escape(dump_json(*func)).c_str(), want);
  MC_TRY_(parse_groups(json, sigmoid, e));
  MC_TRY(const uint64_t dense, get_uint_or(json, "first_k_dense_replace", 0));
  MC_TRY(const uint64_t step, number(json, "moe_layer_freq", 1, 1000));
  set_dense(dense, step, c);
  return {};
}

void set_dense(uint64_t first, uint64_t step, ModelConfig& c) {
  if (first == 0 && step == 1) return;
  c.layer_kinds.resize(c.layers);
  for (uint32_t i = 0; i < c.layers; ++i) c.layer_kinds[i].dense = i < first || i % step != 0;
}

}  // namespace mc::model
