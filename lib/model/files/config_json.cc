#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "model/files/config_values.h"

namespace mc::model {
namespace {

Result<> refuse_true(const Json& config, const char* key) {
  const Json* j = member(config, key);
  if (j != nullptr && *j != Json(false))
    return fail(Code::kUnsupported, "'%s' is %s: only false is supported", key,
                escape(dump_json(*j)).c_str());
  return {};
}

Result<Family> family_of(const Json& config) {
  const Json* const list = member(config, "architectures");
  const Json* const type = member(config, "model_type");
  std::optional<Family> found;
  if (list != nullptr && list->is_array() && list->size() == 1 && (*list)[0].is_string())
    found = family_of_architecture((*list)[0].get<std::string>());
  if (list == nullptr && type != nullptr && type->is_string())
    found = family_of_type(type->get<std::string>());
  if (found) return *found;
  const Json* const seen = list != nullptr ? list : type;
  return fail(Code::kUnsupported,
              "architecture %s: the cpu engine computes %s; serve another with an external engine",
              seen == nullptr ? "none" : escape(dump_json(*seen)).c_str(),
              known_architectures().c_str());
}

Result<> refuse_unsupported(const Json& config, const Parts& parts) {
  MC_TRY_(refuse_true(config, "attention_bias"));
  MC_TRY_(refuse_true(config, "mlp_bias"));
  const char* const want = parts.activation == Activation::kSilu ? "silu" : "gelu_pytorch_tanh";
  const char* const key =
      member(config, "hidden_activation") != nullptr ? "hidden_activation" : "hidden_act";
  if (const Json* act = member(config, key); act != nullptr && *act != want)
    return fail(Code::kUnsupported, "'%s' is %s, want \"%s\"", key, escape(dump_json(*act)).c_str(),
                want);
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

Result<> parse_heads(const Json& config, ModelConfig& c) {
  if (member(config, "head_dim") == nullptr && c.hidden % c.heads != 0)
    return fail(Code::kInvalid,
                "'hidden_size' %u is no multiple of the %u attention heads, and "
                "there is no 'head_dim'",
                c.hidden, c.heads);
  return small(config, "head_dim", std::max(1u, c.hidden / c.heads), 1024, c.head_dim);
}

}  // namespace

Result<ModelConfig> parse_config(const Json& config) {
  if (!config.is_object())
    return fail(Code::kInvalid, "the configuration is %s, want an object", config.type_name());
  ModelConfig c;
  MC_TRY(c.family, family_of(config));
  MC_TRY_(refuse_unsupported(config, c.parts()));
  MC_TRY_(small(config, "vocab_size", 0, 1u << 24, c.vocab));
  MC_TRY_(small(config, "hidden_size", 0, 1u << 20, c.hidden));
  MC_TRY_(small(config, "intermediate_size", 0, 1u << 22, c.intermediate));
  MC_TRY_(small(config, "num_hidden_layers", 0, 1000, c.layers));
  MC_TRY_(small(config, "num_attention_heads", 0, 1024, c.heads));
  MC_TRY_(small(config, "num_key_value_heads", c.heads, 1024, c.kv_heads));
  MC_TRY_(c.parts().latent ? parse_latent(config, c) : parse_heads(config, c));
  MC_TRY(c.context_max, number(config, "max_position_embeddings", 2048, uint64_t{1} << 30));
  MC_TRY(c.norm_eps, positive(config, "rms_norm_eps", 1e-6));
  MC_TRY_(parse_rope(config, c));
  scale_queries(c);
  if (c.rope.scaling == RopeScaling::kYarn)  // some files still say the original context
    c.context_max =
        std::max(c.context_max, static_cast<uint64_t>(static_cast<double>(c.rope.original_context) *
                                                      std::min(c.rope.factor, 1024.0)));
  MC_TRY(c.tied, get_bool_or(config, "tie_word_embeddings", c.parts().tied));
  MC_TRY(const auto bos, token_list(config, "bos_token_id", c.vocab));
  if (!bos.empty()) c.bos = bos[0];
  MC_TRY(c.eos, token_list(config, "eos_token_id", c.vocab));
  MC_TRY_(parse_parts(config, c));
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

}  // namespace mc::model
