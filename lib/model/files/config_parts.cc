#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "model/files/config_values.h"

namespace mc::model {
namespace {

using ull = unsigned long long;
constexpr uint64_t kContextMost = uint64_t{1} << 30;

Result<Experts> parse_experts(const Json& json, const ModelConfig& c) {
  Experts e;
  const bool mixtral = c.family == Family::kMixtral;
  const char *const local = "num_local_experts", *const own = "num_experts";
  // Newer programs write it for Qwen's models too.
  const bool by_local = mixtral || (member(json, own) == nullptr && member(json, local) != nullptr);
  MC_TRY_(small(json, by_local ? local : own, 0, 4096, e.count));
  MC_TRY_(small(json, "num_experts_per_tok", 0, e.count, e.used));
  if (mixtral) {
    e.inner = c.intermediate;
    e.normalized = true;
    return e;
  }
  MC_TRY_(small(json, "moe_intermediate_size", 0, 1u << 22, e.inner));
  MC_TRY(e.normalized, get_bool_or(json, "norm_topk_prob", false));
  if (c.family == Family::kQwen2Moe)
    MC_TRY_(small(json, "shared_expert_intermediate_size", 0, 1u << 22, e.shared));
  return e;
}

// Layers of Qwen's MoE that have one MLP.
Result<> parse_dense(const Json& json, ModelConfig& c) {
  MC_TRY(const uint64_t step, number(json, "decoder_sparse_step", 1, 1000));
  if (step > 1 && c.layer_kinds.empty()) c.layer_kinds.resize(c.layers);
  for (uint32_t i = 0; step > 1 && i < c.layers; ++i) c.layer_kinds[i].dense = (i + 1) % step != 0;
  const Json* const only = member(json, "mlp_only_layers");
  if (only == nullptr) return {};
  if (!only->is_array()) return fail(Code::kInvalid, "'mlp_only_layers' is no list");
  for (const Json& i : *only) {
    if (!i.is_number_integer() || i < 0 || i >= c.layers)
      return fail(Code::kInvalid, "'mlp_only_layers' has %s, want a layer below %u",
                  escape(dump_json(i)).c_str(), c.layers);
    if (c.layer_kinds.empty()) c.layer_kinds.resize(c.layers);
    c.layer_kinds[i.get<uint32_t>()].dense = true;
  }
  return {};
}

// The window of the layers that have one; 0: none is shorter than the context.
Result<uint64_t> parse_window(const Json& json, const ModelConfig& c) {
  const char* const key = "sliding_window";
  MC_TRY(const bool used,
         get_bool_or(json, "use_sliding_window", c.parts().windows != Windows::kUpper));
  if (!used || member(json, key) == nullptr) return 0;
  MC_TRY(const uint64_t window, number(json, key, 0, kContextMost));
  if (window >= c.context_max) return 0;
  if (c.parts().windows == Windows::kNone)
    return fail(Code::kUnsupported,
                "'%s' %llu is below the context of %llu: %s has only full attention", key,
                static_cast<ull>(window), static_cast<ull>(c.context_max), c.parts().architecture);
  return window;
}

// `layer_types` says more than the family's rule, where it is there.
Result<> parse_layer_types(const Json& json, uint64_t window, ModelConfig& c) {
  const Json* const types = member(json, "layer_types");
  if (types == nullptr) return {};
  if (!types->is_array() || types->size() != c.layers)
    return fail(Code::kInvalid, "'layer_types' is no list of %u layers", c.layers);
  for (uint32_t i = 0; i < c.layers; ++i) {
    const Json& type = (*types)[i];
    const bool slides = type == "sliding_attention";
    if (!slides && type != "full_attention")
      return fail(Code::kUnsupported,
                  "'layer_types' has %s: want full_attention or sliding_attention",
                  escape(dump_json(type)).c_str());
    if (c.layer_kinds.empty()) c.layer_kinds.resize(c.layers);
    c.layer_kinds[i].window = slides ? window : 0;
    if (c.family == Family::kGemma3) c.layer_kinds[i].turn = slides ? Turn::kLocal : Turn::kGlobal;
  }
  return {};
}

Result<> parse_unturned(const Json& json, ModelConfig& c) {
  if (c.layer_kinds.empty()) c.layer_kinds.resize(c.layers);
  const Json* const list = member(json, "no_rope_layers");
  MC_TRY(const uint64_t every, number(json, "no_rope_layer_interval", 4, 1000));
  if (list != nullptr && (!list->is_array() || list->size() != c.layers))
    return fail(Code::kInvalid, "'no_rope_layers' is no list of %u layers", c.layers);
  for (uint32_t i = 0; i < c.layers; ++i) {
    const bool turns = list == nullptr ? (i + 1) % every != 0 : (*list)[i] == 1;
    c.layer_kinds[i].turn = turns ? Turn::kGlobal : Turn::kNone;
  }
  return {};
}

// Gemma 2 has caps where its configuration does not say; null there means none.
Result<double> cap(const Json& json, const char* key, double fallback) {
  if (json.contains(key) && member(json, key) == nullptr) return 0;
  if (member(json, key) == nullptr) return fallback;
  return positive(json, key, fallback);
}

Result<> parse_gemma(const Json& json, ModelConfig& c) {
  const bool second = c.family == Family::kGemma2;
  MC_TRY(c.attention_cap, cap(json, "attn_logit_softcapping", second ? 50 : 0));
  MC_TRY(c.logit_cap, cap(json, "final_logit_softcapping", second ? 30 : 0));
  MC_TRY(c.query_scalar, positive(json, "query_pre_attn_scalar", 256));
  MC_TRY(const bool both, get_bool_or(json, "use_bidirectional_attention", false));
  if (both) return fail(Code::kUnsupported, "'use_bidirectional_attention' is true: want false");
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  return {};
}

bool is_gemma(const ModelConfig& c) {
  return c.family == Family::kGemma2 || c.family == Family::kGemma3;
}

}  // namespace

std::vector<LayerKind> family_kinds(const ModelConfig& c, uint64_t window, uint64_t upper) {
  std::vector<LayerKind> kinds(c.layers);
  for (uint32_t i = 0; i < c.layers; ++i) {
    const Windows w = c.parts().windows;
    const bool slides = w == Windows::kAll || (w == Windows::kUpper && i >= upper) ||
                        (w == Windows::kEverySecond && i % 2 == 0) ||
                        (w == Windows::kFiveOfSix && i % 6 != 5);
    if (slides) kinds[i].window = window;
    if (slides && c.family == Family::kGemma3) kinds[i].turn = Turn::kLocal;
    if (c.family == Family::kSmolLm3 && i % 4 == 3) kinds[i].turn = Turn::kNone;
  }
  const bool all_plain = kinds == std::vector<LayerKind>(c.layers);
  return all_plain ? std::vector<LayerKind>() : kinds;
}

Result<> parse_parts(const Json& json, ModelConfig& c) {
  MC_TRY(const uint64_t window, parse_window(json, c));
  MC_TRY(const uint64_t upper, get_uint_or(json, "max_window_layers", 28));
  c.layer_kinds = family_kinds(c, window, upper);
  if (c.family == Family::kGemma3 && member(json, "layer_types") == nullptr) {
    MC_TRY(const uint64_t every, number(json, "sliding_window_pattern", 6, 1000));
    for (uint32_t i = 0; i < c.layers; ++i) {
      const bool slides = (i + 1) % every != 0;
      c.layer_kinds.resize(c.layers);
      c.layer_kinds[i] = {slides ? window : 0, slides ? Turn::kLocal : Turn::kGlobal};
    }
  }
  MC_TRY_(parse_layer_types(json, window, c));
  if (c.family == Family::kSmolLm3) MC_TRY_(parse_unturned(json, c));
  if (is_gemma(c)) MC_TRY_(parse_gemma(json, c));
  if (c.parts().latent) return parse_routed_experts(json, c);
  if (c.family != Family::kMixtral && c.family != Family::kQwen2Moe &&
      c.family != Family::kQwen3Moe)
    return {};
  MC_TRY(c.experts, parse_experts(json, c));
  return parse_dense(json, c);
}

}  // namespace mc::model
