// The configuration of a GGUF file, by the keys and the tensors that llama.cpp's converter writes.
#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "model/files/config_values.h"
#include "model/files/gguf.h"

namespace mc::model {
namespace {

using ull = unsigned long long;

class GgufConfig {
 public:
  GgufConfig(const Gguf& file, std::string architecture)
      : g_(file), of_(std::move(architecture) + ".") {}

  Result<ModelConfig> read(Family family) {
    c_.family = family;
    MC_TRY_(sizes());
    MC_TRY_(experts());
    MC_TRY_(turns());
    scale_queries(c_);
    MC_TRY_(windows());
    MC_TRY_(routed_experts());
    MC_TRY_(gemma());
    if (const double* eps = floating("attention.layer_norm_rms_epsilon")) c_.norm_eps = *eps;
    constexpr double kMost = 1e12;
    if (!(c_.rope.theta > 0 && c_.rope.theta < kMost) || !(c_.norm_eps > 0 && c_.norm_eps < kMost))
      return fail(Code::kInvalid, "RoPE base %g and epsilon %g: want both above 0, below %g",
                  c_.rope.theta, c_.norm_eps, kMost);
    c_.tied = !g_.tensors.contains("output.weight");
    c_.bos = token("bos_token_id");
    for (const char* name : {"eos_token_id", "eot_token_id"})
      if (const int32_t id = token(name); id >= 0) c_.eos.push_back(id);
    MC_TRY_(check_config(c_));
    return c_;
  }

 private:
  std::string key(const char* name) const { return of_ + name; }
  const double* floating(const char* name) const { return gguf_value<double>(g_, key(name)); }
  bool has(const char* name) const { return g_.metadata.contains(key(name)); }
  Result<> small(const char* name, uint64_t fallback, uint64_t most, uint32_t& out) const {
    MC_TRY(const uint64_t n, gguf_number(g_, key(name), fallback, most));
    out = static_cast<uint32_t>(n);
    return {};
  }
  int32_t token(const char* name) const {
    const int64_t* id = gguf_value<int64_t>(g_, std::string("tokenizer.ggml.") + name);
    return id != nullptr && *id >= 0 && *id < c_.vocab ? static_cast<int32_t>(*id) : -1;
  }

  Result<> sizes() {
    const auto* pieces = gguf_value<std::vector<std::string>>(g_, "tokenizer.ggml.tokens");
    MC_TRY_(small("vocab_size", pieces == nullptr ? 0 : pieces->size(), 1u << 24, c_.vocab));
    MC_TRY_(small("embedding_length", 0, 1u << 20, c_.hidden));
    MC_TRY_(small("feed_forward_length", 0, 1u << 22, c_.intermediate));
    MC_TRY_(small("block_count", 0, 1000, c_.layers));
    MC_TRY_(small("attention.head_count", 0, 1024, c_.heads));
    MC_TRY(c_.context_max, gguf_number(g_, key("context_length"), 0, uint64_t{1} << 30));
    if (c_.parts().latent) return latent();
    MC_TRY_(small("attention.head_count_kv", c_.heads, 1024, c_.kv_heads));
    MC_TRY_(small("attention.key_length", std::max(1u, c_.hidden / c_.heads), 1024, c_.head_dim));
    uint32_t value_dim = 0;
    MC_TRY_(small("attention.value_length", c_.head_dim, 1024, value_dim));
    if (value_dim != c_.head_dim)
      return fail(Code::kUnsupported, "keys of %u numbers and values of %u: want as many",
                  c_.head_dim, value_dim);
    return {};
  }

  // Newer files say the dimensions of the latent vector where others have those of heads.
  Result<> latent() {
    Latent l;
    uint32_t key_dim = 0;
    const bool newer = has("attention.key_length_mla");
    const char* const of_key = newer ? "attention.key_length_mla" : "attention.key_length";
    MC_TRY_(small("attention.kv_lora_rank", 0, 1u << 16, l.kv_rank));
    if (has("attention.q_lora_rank"))
      MC_TRY_(small("attention.q_lora_rank", 0, 1u << 16, l.q_rank));
    MC_TRY_(small(of_key, 0, 1u << 16, key_dim));
    MC_TRY_(small(newer ? "attention.value_length_mla" : "attention.value_length", 0, 1u << 16,
                  l.v_dim));
    MC_TRY_(small("rope.dimension_count", 0, 1u << 16, l.rope_dim));
    if (l.rope_dim >= key_dim)
      return fail(Code::kInvalid, "'%srope.dimension_count' is %u: want less than the %u of '%s%s'",
                  of_.c_str(), l.rope_dim, key_dim, of_.c_str(), of_key);
    l.nope_dim = key_dim - l.rope_dim;
    if (const int64_t* n = gguf_value<int64_t>(g_, key("nextn_predict_layers"));
        n != nullptr && *n != 0)
      return fail(Code::kUnsupported, "'%snextn_predict_layers' is %lld: want a file without them",
                  of_.c_str(), static_cast<long long>(*n));
    set_latent(l, c_);
    return {};
  }

  Result<> routed_experts() {
    Experts& e = c_.experts;
    if (!c_.parts().latent || e.count == 0) return {};
    const auto whole = [&](const char* name) -> uint64_t {
      const int64_t* n = gguf_value<int64_t>(g_, key(name));
      return n != nullptr && *n > 0 ? static_cast<uint64_t>(*n) : 0;
    };
    e.shared =
        static_cast<uint32_t>(std::min<uint64_t>(whole("expert_shared_count"), 64)) * e.inner;
    if (const double* scale = floating("expert_weights_scale"); scale != nullptr && *scale != 0)
      e.scale = *scale;
    if (!(e.scale > 0 && e.scale < 1e6))
      return fail(Code::kInvalid, "'%sexpert_weights_scale' is %g: want it above 0", of_.c_str(),
                  e.scale);
    if (has("expert_group_count")) {
      MC_TRY_(small("expert_group_count", 1, e.count, e.groups));
      MC_TRY_(small("expert_group_used_count", 1, e.groups, e.groups_used));
    }
    set_dense(whole("leading_dense_block_count"), 1, c_);
    return {};
  }

  Result<> experts() {
    if (!has("expert_count")) return {};
    const int64_t* const count = gguf_value<int64_t>(g_, key("expert_count"));
    if (count != nullptr && *count == 0) return {};
    if (c_.family == Family::kLlama) c_.family = Family::kMixtral;
    Experts& e = c_.experts;
    MC_TRY_(small("expert_count", 0, 4096, e.count));
    MC_TRY_(small("expert_used_count", 0, e.count, e.used));
    MC_TRY_(small("expert_feed_forward_length", c_.intermediate, 1u << 22, e.inner));
    if (c_.parts().latent) {
      const int64_t* const gate = gguf_value<int64_t>(g_, key("expert_gating_func"));
      if (gate != nullptr && (*gate < 0 || *gate > 2))
        return fail(Code::kUnsupported,
                    "'%sexpert_gating_func' is %lld: want 1 (softmax) or 2 (sigmoid)", of_.c_str(),
                    static_cast<long long>(*gate));
      if (gate != nullptr && *gate == 2) c_.family = Family::kDeepSeek3;
    }
    e.normalized = c_.family != Family::kQwen2Moe && c_.family != Family::kDeepSeek2;
    if (const bool* norm = gguf_value<bool>(g_, key("expert_weights_norm"))) e.normalized = *norm;
    if (c_.family != Family::kQwen2Moe) return {};
    const auto up = g_.tensors.find("blk.0.ffn_up_shexp.weight");
    const bool there = up != g_.tensors.end() && up->second.shape.size() == 2;
    return small("expert_shared_feed_forward_length", there ? up->second.shape[0] : 0, 1u << 22,
                 e.shared);
  }

  // What is not computed is refused where it says anything but nothing.
  Result<> nothing_more() const {
    const std::string* const kind = gguf_value<std::string>(g_, key("rope.scaling.type"));
    const bool yarn = kind != nullptr && *kind == "yarn";
    const bool longrope = g_.tensors.contains("rope_factors_long.weight");
    struct Only {
      const char* name;
      double value;
      bool counts;
    };
    for (const Only& o : {Only{"attention.temperature_scale", 0, true},
                          Only{"rope.scaling.attn_factor", 1, !longrope},
                          Only{"rope.scaling.yarn_attn_factor", 1, yarn},
                          Only{"rope.scaling.yarn_ext_factor", 1, yarn}})
      if (const double* const value = floating(o.name);
          o.counts && value != nullptr && *value != o.value)
        return fail(Code::kUnsupported,
                    "'%s%s' is %g: the cpu engine computes %g alone; serve the model with an "
                    "external engine",
                    of_.c_str(), o.name, *value, o.value);
    return {};
  }

  // Between how many turns in the original context YaRN goes from one rotation to the other.
  Result<> yarn_betas() {
    Rope& rope = c_.rope;
    if (const double* const fast = floating("rope.scaling.yarn_beta_fast")) rope.often = *fast;
    if (const double* const slow = floating("rope.scaling.yarn_beta_slow")) rope.seldom = *slow;
    if (rope.seldom > 0 && rope.often > rope.seldom && rope.often < 1e6) return {};
    return fail(Code::kInvalid,
                "'%srope.scaling.yarn_beta_fast' %g and 'yarn_beta_slow' %g: want the first above "
                "the second, and both above 0",
                of_.c_str(), rope.often, rope.seldom);
  }

  Result<> turns() {
    Rope& rope = c_.rope;
    MC_TRY_(nothing_more());
    if (const double* theta = floating("rope.freq_base")) rope.theta = *theta;
    const uint32_t all = c_.parts().latent ? rope.dims : c_.head_dim;
    MC_TRY(const uint64_t turned, gguf_number(g_, key("rope.dimension_count"), all, 1024));
    if (turned != all) {
      if (c_.family != Family::kPhi3)
        return fail(Code::kUnsupported, "RoPE over %llu of %u dimensions: want all",
                    static_cast<ull>(turned), c_.head_dim);
      rope.dims = static_cast<uint32_t>(turned);
    }
    const std::string* kind = gguf_value<std::string>(g_, key("rope.scaling.type"));
    if (kind != nullptr && (*kind == "linear" || *kind == "yarn")) {
      const double* factor = floating("rope.scaling.factor");
      if (factor == nullptr || !(*factor > 0))
        return fail(Code::kInvalid, "'%srope.scaling.factor' is missing, or not above 0",
                    of_.c_str());
      rope.factor = *factor;
      rope.scaling = *kind == "linear" ? RopeScaling::kLinear : RopeScaling::kYarn;
      if (*kind == "yarn") {
        MC_TRY(rope.original_context,
               gguf_number(g_, key("rope.scaling.original_context_length"), 0, uint64_t{1} << 30));
        rope.scale = yarn_scale(rope.factor, 1);
        MC_TRY_(yarn_betas());
        MC_TRY_(yarn_of_latents());
      }
    } else if (kind != nullptr && *kind != "none" && *kind != "longrope") {
      return fail(Code::kUnsupported, "RoPE scaling '%s': want none, linear, yarn or longrope",
                  escape(*kind).c_str());
    }
    if (g_.tensors.contains("rope_factors_long.weight")) return longrope();
    return divisors("rope_freqs.weight");
  }

  // The file has a tenth of `mscale_all_dim`, and `mscale` is the same in what is published.
  Result<> yarn_of_latents() {
    const double* const tenth = floating("rope.scaling.yarn_log_multiplier");
    if (!c_.parts().latent || tenth == nullptr) return {};
    if (!(*tenth >= 0 && *tenth < 10))
      return fail(Code::kInvalid, "'%srope.scaling.yarn_log_multiplier' is %g: want 0 to 10",
                  of_.c_str(), *tenth);
    const double scale = yarn_scale(c_.rope.factor, 10 * *tenth);
    if (*tenth > 0) c_.rope.scale = 1;
    c_.rope.score_scale = scale * scale;
    return {};
  }

  // As of a HF folder: which list holds depends on the length that is served.
  Result<> longrope() {
    MC_TRY(const uint64_t original, gguf_number(g_, key("rope.scaling.original_context_length"),
                                                c_.context_max, uint64_t{1} << 30));
    const double factor = static_cast<double>(c_.context_max) / static_cast<double>(original);
    c_.rope.scale = longrope_scale(factor, original);
    if (const double* scale = floating("rope.scaling.attn_factor")) c_.rope.scale = *scale;
    if (!(c_.rope.scale > 0 && c_.rope.scale < 1e6))
      return fail(Code::kInvalid, "'%srope.scaling.attn_factor' is %g: want a number above 0",
                  of_.c_str(), c_.rope.scale);
    return divisors(factor > 1 ? "rope_factors_long.weight" : "rope_factors_short.weight");
  }

  Result<> divisors(const char* name) {
    const auto it = g_.tensors.find(name);
    if (it == g_.tensors.end()) return {};
    const Tensor& t = it->second;
    const uint32_t pairs = c_.rope.turned(c_.head_dim) / 2;
    if (t.type != DType::kF32 || t.shape != std::vector<uint64_t>{pairs})
      return fail(Code::kInvalid, "tensor '%s' is %s %s, want f32 [%u]", name, t.type_text.c_str(),
                  shape_text(t.shape).c_str(), pairs);
    std::vector<float> values(pairs);
    to_floats(DType::kF32, t.bytes.data(), values.data(), values.size());
    for (const float d : values)
      if (!(d > 0))
        return fail(Code::kInvalid, "tensor '%s' holds %g, want numbers above 0", name, double{d});
    c_.rope.divisors.assign(values.begin(), values.end());
    return {};
  }

  Result<> windows() {
    uint64_t window = 0;
    if (has("attention.sliding_window")) {
      const int64_t* n = gguf_value<int64_t>(g_, key("attention.sliding_window"));
      if (n == nullptr || *n < 0)
        return fail(Code::kInvalid, "'%sattention.sliding_window' is no whole number", of_.c_str());
      window = static_cast<uint64_t>(*n) < c_.context_max ? static_cast<uint64_t>(*n) : 0;
    }
    if (window != 0 && c_.family == Family::kLlama) c_.family = Family::kMistral;
    if (window != 0 && c_.parts().windows == Windows::kUpper)
      return fail(Code::kUnsupported,
                  "'%sattention.sliding_window' is %llu: want none, or a HF folder that says which "
                  "layers have it",
                  of_.c_str(), static_cast<ull>(window));
    c_.layer_kinds = family_kinds(c_, window, c_.layers);
    return {};
  }

  Result<> gemma() {
    if (c_.family != Family::kGemma2 && c_.family != Family::kGemma3) return {};
    const bool second = c_.family == Family::kGemma2;
    const double* cap = floating("attn_logit_softcapping");
    c_.attention_cap = cap != nullptr ? *cap : second ? 50 : 0;
    cap = floating("final_logit_softcapping");
    c_.logit_cap = cap != nullptr ? *cap : second ? 30 : 0;
    if (!(c_.attention_cap >= 0) || !(c_.logit_cap >= 0))
      return fail(Code::kInvalid, "soft caps of %g and %g: want 0 or more", c_.attention_cap,
                  c_.logit_cap);
    // The metadata does not say it: the models of 27 billion differ from the others.
    const bool largest = c_.layers == (second ? 46 : 62);
    c_.query_scalar = largest ? c_.hidden / c_.heads : c_.head_dim;
    c_.embedding_scale = std::sqrt(static_cast<double>(c_.hidden));
    if (const double* theta = floating("rope.freq_base_swa")) c_.local_rope.theta = *theta;
    if (!(c_.local_rope.theta > 0))
      return fail(Code::kInvalid, "'%srope.freq_base_swa' is %g: want it above 0", of_.c_str(),
                  c_.local_rope.theta);
    return {};
  }

  const Gguf& g_;
  const std::string of_;
  ModelConfig c_;
};

}  // namespace

Result<ModelConfig> gguf_config(const Gguf& g) {
  const std::string* kind = gguf_value<std::string>(g, "general.architecture");
  const auto family = kind == nullptr ? std::nullopt : family_of_gguf(*kind);
  if (!family)
    return fail(Code::kUnsupported,
                "architecture '%s': the cpu engine computes %s; serve another with an external "
                "engine",
                kind == nullptr ? "" : escape(*kind).c_str(), known_gguf_names().c_str());
  return GgufConfig(g, *kind).read(*family);
}

// Converters left out the groups for long, and a file does not say how its model was trained.
std::string gguf_doubt(const Gguf& g, const ModelConfig& c) {
  constexpr uint32_t kV2 = 160, kV3 = 256;  // experts of the published models that have groups
  const std::string key = "deepseek2.expert_group_count";
  const uint32_t experts = c.experts.count;
  if (!c.parts().latent || (experts != kV2 && experts != kV3) || g.metadata.contains(key))
    return {};
  return strf(
      "there is no '%s', so experts are chosen among all %u; DeepSeek's own models of as many have "
      "8 groups and take %d of them. If this is one of these, convert it with a newer llama.cpp, "
      "or add '%s' and 'deepseek2.expert_group_used_count'",
      key.c_str(), experts, experts == kV2 ? 3 : 4, key.c_str());
}

}  // namespace mc::model
