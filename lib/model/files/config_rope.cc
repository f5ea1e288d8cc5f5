#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "model/files/config_values.h"

namespace mc::model {
namespace {

// DeepSeek's: what cosine and sine, and what scores are multiplied by.
Result<> parse_mscale(const Json& scaling, Rope& rope) {
  MC_TRY(const double turned, get_number_or(scaling, "mscale", 0));
  MC_TRY(const double all, get_number_or(scaling, "mscale_all_dim", 0));
  if (!(turned >= 0 && turned < 100 && all >= 0 && all < 100))
    return fail(Code::kInvalid, "'mscale' %g and 'mscale_all_dim' %g: want 0 to 100", turned, all);
  if (turned > 0 && all > 0)
    rope.scale = yarn_scale(rope.factor, turned) / yarn_scale(rope.factor, all);
  const double scale = yarn_scale(rope.factor, all);
  rope.score_scale = scale * scale;
  return {};
}

Result<> parse_yarn(const Json& scaling, const ModelConfig& c, Rope& rope) {
  rope.scaling = RopeScaling::kYarn;
  MC_TRY(rope.factor, positive(scaling, "factor", 0));
  MC_TRY(rope.often, positive(scaling, "beta_fast", 32));
  MC_TRY(rope.seldom, positive(scaling, "beta_slow", 1));
  MC_TRY(rope.original_context,
         number(scaling, "original_max_position_embeddings", 0, uint64_t{1} << 30));
  if (rope.factor < 1 || rope.often <= rope.seldom)
    return fail(Code::kInvalid,
                "YaRN of factor %g, beta_fast %g, beta_slow %g: want a factor of 1 or more, and "
                "beta_fast above beta_slow",
                rope.factor, rope.often, rope.seldom);
  for (const char* const other : {"mscale", "mscale_all_dim", "truncate"})
    if (member(scaling, other) != nullptr && (!c.parts().latent || *other == 't'))
      return fail(Code::kUnsupported, "YaRN with '%s' is not supported", other);
  rope.scale = yarn_scale(rope.factor, 1);
  if (c.parts().latent) MC_TRY_(parse_mscale(scaling, rope));
  MC_TRY(rope.scale, positive(scaling, "attention_factor", rope.scale));
  return {};
}

Result<std::vector<double>> divisors(const Json& scaling, const char* key, size_t pairs) {
  const Json* const list = member(scaling, key);
  if (list == nullptr || !list->is_array() || list->size() != pairs)
    return fail(Code::kInvalid, "'%s' is not a list of %zu numbers", key, pairs);
  std::vector<double> all;
  for (const Json& n : *list) {
    if (!n.is_number() || !(n.get<double>() > 0))
      return fail(Code::kInvalid, "'%s' has %s, want numbers above 0", key,
                  escape(dump_json(n)).c_str());
    all.push_back(n.get<double>());
  }
  return all;
}

// Phi-3's. Which of its two lists holds depends on the length that is served alone, so that what is
// computed of a text does not change while it grows.
Result<> parse_longrope(const Json& json, const Json& scaling, const ModelConfig& c, Rope& rope) {
  for (const char* const other : {"short_mscale", "long_mscale"})
    if (member(scaling, other) != nullptr)
      return fail(Code::kUnsupported, "LongRoPE with '%s' is not supported", other);
  const char* const original = "original_max_position_embeddings";
  const bool inside = member(scaling, original) != nullptr;
  MC_TRY(const uint64_t context, number(inside ? scaling : json, original, 0, uint64_t{1} << 30));
  const bool is_long = c.context_max > context;
  const size_t pairs = rope.turned(c.head_dim) / 2;
  MC_TRY(rope.divisors, divisors(scaling, is_long ? "long_factor" : "short_factor", pairs));
  const double factor = static_cast<double>(c.context_max) / static_cast<double>(context);
  MC_TRY(rope.scale, positive(scaling, "attention_factor", longrope_scale(factor, context)));
  return {};
}

Result<> parse_scaling(const Json& json, const Json& scaling, const ModelConfig& c, Rope& rope) {
  if (!scaling.is_object())
    return fail(Code::kInvalid, "the scaling of RoPE is %s, want an object", scaling.type_name());
  const char* key = member(scaling, "rope_type") != nullptr ? "rope_type" : "type";
  MC_TRY(const std::string type, get_string(scaling, key));
  if (type == "default") return {};
  if (type == "yarn") return parse_yarn(scaling, c, rope);
  if (type == "longrope" || type == "su") return parse_longrope(json, scaling, c, rope);
  if (type != "linear" && type != "llama3")
    return fail(Code::kUnsupported,
                "RoPE scaling '%s': want default, linear, llama3, yarn or longrope",
                escape(type).c_str());
  rope.scaling = type == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
  MC_TRY(rope.factor, positive(scaling, "factor", 0));
  if (type == "linear") return {};
  MC_TRY(rope.low_freq_factor, positive(scaling, "low_freq_factor", 0));
  MC_TRY(rope.high_freq_factor, positive(scaling, "high_freq_factor", 0));
  MC_TRY(rope.original_context,
         number(scaling, "original_max_position_embeddings", 0, uint64_t{1} << 30));
  if (rope.high_freq_factor <= rope.low_freq_factor)
    return fail(Code::kInvalid, "'high_freq_factor' %g is not above 'low_freq_factor' %g",
                rope.high_freq_factor, rope.low_freq_factor);
  return {};
}

// Of one encoding: `all` is an object that has the base and the scaling, as newer files have it.
Result<> parse_parameters(const Json& json, const Json& all, const ModelConfig& c, Rope& rope) {
  MC_TRY_(parse_scaling(json, all, c, rope));
  MC_TRY(rope.theta, positive(all, "rope_theta", rope.theta));
  return {};
}

}  // namespace

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 1 + 0.1 * mscale * std::log(factor);
}

double longrope_scale(double factor, uint64_t original_context) {
  if (factor <= 1 || original_context < 2) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original_context)));
}

Result<> parse_rope(const Json& json, ModelConfig& c) {
  MC_TRY(c.rope.theta, positive(json, "rope_theta", c.parts().theta));
  const Json* const all = member(json, "rope_parameters");
  const char* const part = "partial_rotary_factor";
  const Json& of = all != nullptr && member(*all, part) != nullptr ? *all : json;
  MC_TRY(const double share, positive(of, part, 1));
  if (share > 1 || (share < 1 && c.family != Family::kPhi3))
    return fail(Code::kUnsupported, "'%s' is %g: want 1 for this architecture", part, share);
  if (share < 1) {
    c.rope.dims = static_cast<uint32_t>(c.head_dim * share);
    if (c.rope.dims < 2)
      return fail(Code::kInvalid, "'%s' %g of %u dimensions: want two of them or more", part, share,
                  c.head_dim);
  }
  if (const Json* scaling = member(json, "rope_scaling"))
    MC_TRY_(parse_scaling(json, *scaling, c, c.rope));
  if (c.family == Family::kGemma3) {
    MC_TRY(c.local_rope.theta, positive(json, "rope_local_base_freq", 10000));
    if (all != nullptr && member(*all, "sliding_attention") != nullptr) {
      const Json* const global = member(*all, "full_attention");
      if (global == nullptr)
        return fail(Code::kInvalid, "'rope_parameters' has no 'full_attention'");
      MC_TRY_(parse_parameters(json, *member(*all, "sliding_attention"), c, c.local_rope));
      return parse_parameters(json, *global, c, c.rope);
    }
  }
  if (all != nullptr) return parse_parameters(json, *all, c, c.rope);
  return {};
}

}  // namespace mc::model
