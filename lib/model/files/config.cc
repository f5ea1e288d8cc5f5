#include "model/files/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/json.h"
#include "base/units.h"

namespace mc::model {
namespace {

using ull = unsigned long long;

Result<uint64_t> number(const Json& object, const char* key, uint64_t fallback, uint64_t most) {
  uint64_t n = fallback;
  if (member(object, key) != nullptr) {
    MC_TRY(n, get_uint(object, key));
  } else if (fallback == 0) {
    return fail(Code::kInvalid, "'%s' is missing", key);
  }
  if (n == 0 || n > most)
    return fail(Code::kInvalid, "'%s' is %llu, want 1 to %llu", key, static_cast<ull>(n),
                static_cast<ull>(most));
  return n;
}

Result<> small(const Json& object, const char* key, uint64_t fallback, uint64_t most,
               uint32_t& out) {
  MC_TRY(const uint64_t n, number(object, key, fallback, most));
  out = static_cast<uint32_t>(n);
  return {};
}

Result<double> positive(const Json& object, const char* key, double fallback) {
  double n = fallback;
  if (member(object, key) != nullptr) {
    MC_TRY(n, get_number(object, key));
  }
  if (!(n > 0 && n < 1e12))
    return fail(Code::kInvalid, "'%s' is %g, want a number above 0", key, n);
  return n;
}

Result<> refuse_true(const Json& config, const char* key) {
  const Json* j = member(config, key);
  if (j != nullptr && *j != Json(false))
    return fail(Code::kUnsupported, "'%s' is %s: only false is supported", key,
                escape(dump_json(*j)).c_str());
  return {};
}

struct Architecture {
  const char *name, *type;
  Family family;
};
constexpr Architecture kArchitectures[] = {{"LlamaForCausalLM", "llama", Family::kLlama},
                                           {"MistralForCausalLM", "mistral", Family::kLlama},
                                           {"Qwen2ForCausalLM", "qwen2", Family::kQwen2}};

Result<Family> family_of(const Json& config) {
  const Json* const list = member(config, "architectures");
  const Json* const type = member(config, "model_type");
  for (const Architecture& a : kArchitectures)
    if (list != nullptr ? *list == Json::array({a.name}) : type != nullptr && *type == a.type)
      return a.family;
  const Json* const found = list != nullptr ? list : type;
  return fail(Code::kUnsupported,
              "architecture %s: want [\"LlamaForCausalLM\"], [\"MistralForCausalLM\"] or "
              "[\"Qwen2ForCausalLM\"]",
              found == nullptr ? "none" : escape(dump_json(*found)).c_str());
}

Result<> refuse_unsupported(const Json& config) {
  MC_TRY_(refuse_true(config, "attention_bias"));
  MC_TRY_(refuse_true(config, "mlp_bias"));
  if (const Json* act = member(config, "hidden_act"); act != nullptr && *act != "silu")
    return fail(Code::kUnsupported, "'hidden_act' is %s, want \"silu\"",
                escape(dump_json(*act)).c_str());
  if (const Json* quant = member(config, "quantization_config"))
    return fail(Code::kUnsupported, "quantized weights (%s): want f32, f16 or bf16",
                escape(dump_json(*quant)).c_str());
  MC_TRY(const bool slides, get_bool_or(config, "use_sliding_window", true));
  if (slides && member(config, "sliding_window") != nullptr) {
    MC_TRY(const uint64_t window, get_uint(config, "sliding_window"));
    MC_TRY(const uint64_t context, get_uint_or(config, "max_position_embeddings", 2048));
    if (window < context)
      return fail(Code::kUnsupported,
                  "'sliding_window' %llu is below the context of %llu: only full attention is "
                  "supported",
                  static_cast<ull>(window), static_cast<ull>(context));
  }
  return {};
}

Result<> parse_yarn(const Json& scaling, Rope& rope) {
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
    if (member(scaling, other) != nullptr)
      return fail(Code::kUnsupported, "YaRN with '%s' is not supported", other);
  MC_TRY(rope.scale, positive(scaling, "attention_factor", 1 + 0.1 * std::log(rope.factor)));
  return {};
}

Result<> parse_scaling(const Json& scaling, Rope& rope) {
  if (!scaling.is_object())
    return fail(Code::kInvalid, "the scaling of RoPE is %s, want an object", scaling.type_name());
  const char* key = member(scaling, "rope_type") != nullptr ? "rope_type" : "type";
  MC_TRY(const std::string type, get_string(scaling, key));
  if (type == "default") return {};
  if (type == "yarn") return parse_yarn(scaling, rope);
  if (type != "linear" && type != "llama3")
    return fail(Code::kUnsupported, "RoPE scaling '%s': want default, linear, llama3 or yarn",
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

Result<> parse_rope(const Json& config, Rope& rope) {
  MC_TRY(rope.theta, positive(config, "rope_theta", 10000));
  if (const Json* scaling = member(config, "rope_scaling")) MC_TRY_(parse_scaling(*scaling, rope));
  if (const Json* all = member(config, "rope_parameters")) {  // where newer files have both
    MC_TRY_(parse_scaling(*all, rope));
    MC_TRY(rope.theta, positive(*all, "rope_theta", rope.theta));
  }
  return {};
}

Result<std::vector<int32_t>> token_list(const Json& config, const char* key, uint32_t vocab) {
  std::vector<int32_t> tokens;
  const Json* j = member(config, key);
  if (j == nullptr) return tokens;
  for (const Json& id : j->is_array() ? *j : Json::array({*j})) {
    if (!id.is_number_integer() || id < 0 || id >= vocab)
      return fail(Code::kInvalid, "'%s' has %s, want a token id below %u", key,
                  escape(dump_json(id)).c_str(), vocab);
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

}  // namespace

uint64_t ModelConfig::parameters() const {
  const uint64_t attention = uint64_t{hidden} * (2 * q_rows() + 2 * kv_rows());
  const uint64_t bias = qkv_bias() ? q_rows() + 2 * kv_rows() : 0;
  const uint64_t layer = attention + bias + 3 * uint64_t{hidden} * intermediate + 2 * hidden;
  return layers * layer + uint64_t{vocab} * hidden * (tied ? 1 : 2) + hidden;
}

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
  return {};
}

Result<ModelConfig> parse_config(const Json& config) {
  if (!config.is_object())
    return fail(Code::kInvalid, "the configuration is %s, want an object", config.type_name());
  ModelConfig c;
  MC_TRY(c.family, family_of(config));
  MC_TRY_(refuse_unsupported(config));
  MC_TRY_(small(config, "vocab_size", 0, 1u << 24, c.vocab));
  MC_TRY_(small(config, "hidden_size", 0, 1u << 20, c.hidden));
  MC_TRY_(small(config, "intermediate_size", 0, 1u << 22, c.intermediate));
  MC_TRY_(small(config, "num_hidden_layers", 0, 1000, c.layers));
  MC_TRY_(small(config, "num_attention_heads", 0, 1024, c.heads));
  MC_TRY_(small(config, "num_key_value_heads", c.heads, 1024, c.kv_heads));
  if (member(config, "head_dim") == nullptr && c.hidden % c.heads != 0)
    return fail(Code::kInvalid,
                "'hidden_size' %u is no multiple of the %u attention heads, and "
                "there is no 'head_dim'",
                c.hidden, c.heads);
  MC_TRY_(small(config, "head_dim", std::max(1u, c.hidden / c.heads), 1024, c.head_dim));
  MC_TRY(c.context_max, number(config, "max_position_embeddings", 2048, uint64_t{1} << 30));
  MC_TRY(c.norm_eps, positive(config, "rms_norm_eps", 1e-6));
  MC_TRY_(parse_rope(config, c.rope));
  if (c.rope.scaling == RopeScaling::kYarn)  // some files still say the original context
    c.context_max =
        std::max(c.context_max, static_cast<uint64_t>(static_cast<double>(c.rope.original_context) *
                                                      std::min(c.rope.factor, 1024.0)));
  MC_TRY(c.tied, get_bool_or(config, "tie_word_embeddings", false));
  MC_TRY(const auto bos, token_list(config, "bos_token_id", c.vocab));
  if (!bos.empty()) c.bos = bos[0];
  MC_TRY(c.eos, token_list(config, "eos_token_id", c.vocab));
  MC_TRY_(check_config(c));
  return c;
}

Result<> parse_generation_config(const Json& generation, ModelConfig& config) {
  if (!generation.is_object())
    return fail(Code::kInvalid, "the generation config is %s, want an object",
                generation.type_name());
  MC_TRY(const auto more, token_list(generation, "eos_token_id", config.vocab));
  for (const int32_t id : more)
    if (std::find(config.eos.begin(), config.eos.end(), id) == config.eos.end())
      config.eos.push_back(id);
  return {};
}

cost::ModelSpec spec_of(const ModelConfig& c, DType kv_type) {
  cost::ModelSpec s;
  s.name = c.name;
  s.layers = c.layers;
  s.kv_heads = c.kv_heads;
  s.head_dim = c.head_dim;
  s.hidden = c.hidden;
  s.vocab = c.vocab;
  s.element_bytes = static_cast<uint32_t>(size_of(kv_type));
  s.context_max = c.context_max;
  s.parameters = c.parameters();
  constexpr double kFlops = 1e11, kMemory = 2e10;  // of a few cores
  s.cost.c0 = 1e-4;
  s.cost.c1 = 2.0 * static_cast<double>(s.parameters) / kFlops;
  s.cost.c2 = 2.0 * c.layers * c.q_rows() / kFlops;
  s.cost.t0 = 4.0 * static_cast<double>(s.parameters) / kMemory;
  s.cost.t1 = s.cost.c1;
  s.cost.t2 = static_cast<double>(s.kv_bytes_per_token()) / kMemory;
  s.cost.load_bytes_per_s = kMemory;
  s.cost.transfer_bytes_per_s = 2e9;
  return s;
}

namespace {
// Which pair turns so many times in the original context.
double pair_of(double turns, const Rope& rope, uint32_t head_dim) {
  const double wave = static_cast<double>(rope.original_context) / (turns * 2 * std::numbers::pi);
  return head_dim * std::log(wave) / (2 * std::log(rope.theta));
}
}  // namespace

std::vector<double> rope_frequencies(const Rope& rope, uint32_t head_dim) {
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
