#include "model/files/config.h"

#include <cmath>

#include "shared.h"

using namespace mc;
using model::parse_config;

namespace {

Json good() {
  return *parse_json(R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": [2, 7], "rope_scaling": null})");
}
std::string refusal(const char* key, const Json& value) {
  Json json = good();
  if (value.is_null())
    json.erase(key);
  else
    json[key] = value;
  const auto config = parse_config(json);
  REQUIRE_FALSE(config.has_value());
  return config.error().what;
}
bool has(const std::string& text, const char* word) {
  CAPTURE(text);
  return text.find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("a configuration is read with HF's defaults for what it leaves out") {
  const auto c = parse_config(good());
  REQUIRE(c);
  CHECK(c->head_dim == 8);
  CHECK(c->kv_heads == 4);
  CHECK_FALSE(c->tied);
  CHECK(c->rope.theta == 10000);
  CHECK(c->eos == std::vector<int32_t>{2, 7});
  Json json = good();
  json.erase("num_key_value_heads");
  CHECK(parse_config(json)->kv_heads == 8);
}

TEST_CASE("Qwen2 adds to queries, keys and values, and its window counts where it is used") {
  Json json = good();
  CHECK_FALSE(parse_config(json)->qkv_bias());
  const uint64_t parameters = parse_config(json)->parameters();
  json["architectures"] = Json::array({"Qwen2ForCausalLM"});
  json["sliding_window"] = 100;
  json["use_sliding_window"] = false;
  const auto c = parse_config(json);
  REQUIRE_MESSAGE(c.has_value(), c.error().what);
  CHECK(c->qkv_bias());
  CHECK(c->parameters() == parameters + 5 * (64 + 2 * 32));
  CHECK(c->layer_kinds.empty());
  json["use_sliding_window"] = true;
  json["max_window_layers"] = 3;
  const auto windowed = parse_config(json);
  REQUIRE_MESSAGE(windowed.has_value(), windowed.error().what);
  CHECK(windowed->kind(2).window == 0);
  CHECK(windowed->kind(3).window == 100);
  json = good();
  json.erase("architectures");
  json["model_type"] = "qwen2";
  CHECK(parse_config(json)->qkv_bias());
}

TEST_CASE(
    "a configuration that this engine cannot compute, or that contradicts itself, is refused") {
  CHECK(has(refusal("architectures", Json::array({"MambaForCausalLM"})), "MambaForCausalLM"));
  CHECK(has(refusal("num_key_value_heads", 3), "8 attention heads share 3"));
  CHECK(has(refusal("hidden_size", 63), "no multiple of the 8"));
  CHECK(has(refusal("head_dim", 7), "even"));
  CHECK(has(refusal("hidden_act", "gelu"), "gelu"));
  CHECK(has(refusal("attention_bias", true), "attention_bias"));
  CHECK(has(refusal("vocab_size", 0), "'vocab_size' is 0"));
  CHECK(has(refusal("vocab_size", nullptr), "'vocab_size' is missing"));
  CHECK_FALSE(refusal("num_hidden_layers", -1).empty());
  CHECK_FALSE(refusal("num_hidden_layers", "five").empty());
  CHECK(has(refusal("num_hidden_layers", 100000), "want 1 to 1000"));
  CHECK(has(refusal("eos_token_id", 512), "below 512"));
  CHECK(has(refusal("sliding_window", 128), "full attention"));
  CHECK(has(refusal("rope_scaling", Json{{"rope_type", "dynamic"}}), "dynamic"));
  CHECK(has(refusal("rope_scaling", Json{{"rope_type", "yarn"}}), "factor"));
  CHECK(has(refusal("rope_scaling", Json{{"rope_type", "yarn"},
                                         {"factor", 4},
                                         {"original_max_position_embeddings", 64},
                                         {"mscale", 1}}),
            "mscale"));
  CHECK(has(refusal("rope_scaling", Json{{"rope_type", "linear"}}), "factor"));
  CHECK_FALSE(parse_config(Json::array()).has_value());
}

TEST_CASE("the number of Qwen's experts is read by either of its names") {
  Json json = good();
  json["architectures"] = Json::array({"Qwen3MoeForCausalLM"});
  json.update({{"num_experts_per_tok", 2}, {"moe_intermediate_size", 24}});
  CHECK(has(parse_config(json).error().what, "'num_experts' is missing"));
  json["num_local_experts"] = 8;
  CHECK(parse_config(json)->experts.count == 8);
  json["num_experts"] = 6;
  CHECK(parse_config(json)->experts.count == 6);
}

TEST_CASE("what latent attention and its experts cannot be computed of is refused by name") {
  Json json = good();
  json["architectures"] = Json::array({"DeepseekV2ForCausalLM"});
  json.update({{"num_key_value_heads", 8},
               {"kv_lora_rank", 16},
               {"q_lora_rank", nullptr},
               {"qk_nope_head_dim", 8},
               {"qk_rope_head_dim", 4},
               {"v_head_dim", 6},
               {"n_routed_experts", 8},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 24}});
  const auto lite = parse_config(json);
  REQUIRE_MESSAGE(lite.has_value(), lite.error().what);
  // One head of the latent vector's and the turned numbers, in one plane.
  const auto spec = spec_of(*lite, mc::model::DType::kBf16);
  CHECK(spec.mla);
  CHECK(spec.kv_heads == 1);
  CHECK(spec.head_dim == 20);
  CHECK(spec.kv_bytes_per_token() == uint64_t{lite->layers} * 20 * 2);
  const auto refused = [&](const char* key, const Json& value) {
    Json changed = json;
    changed[key] = value;
    const auto parsed = parse_config(changed);
    return parsed ? std::string() : parsed.error().what;
  };
  CHECK(has(refused("num_key_value_heads", 4), "'num_key_value_heads' is 4"));
  CHECK(has(refused("kv_lora_rank", nullptr), "'kv_lora_rank' is missing"));
  CHECK(has(refused("kv_lora_rank", 1023), "a head of 1027 dimensions"));
  CHECK(has(refused("qk_rope_head_dim", 3), "even"));
  CHECK(has(refused("rope_interleave", false), "rope_interleave"));
  CHECK(has(refused("topk_method", "noaux_tc"), "'topk_method' is 'noaux_tc'"));
  CHECK(has(refused("scoring_func", "sigmoid"), "'scoring_func' is \"sigmoid\""));
  CHECK(has(refused("topk_method", "group_limited_greedy"), "'n_group' is missing"));
  json.update({{"topk_method", "group_limited_greedy"}, {"topk_group", 1}});
  CHECK(has(refused("n_group", 3), "groups of one size"));
  CHECK(has(refused("n_group", 8), "2 of 8 experts from 1 of 8 groups"));
  CHECK(refused("n_group", 4).empty());
  json.update({{"n_group", 4}, {"norm_topk_prob", true}});
  CHECK(has(refused("routed_scaling_factor", 2), "routed_scaling_factor"));
  json["architectures"] = Json::array({"DeepseekV3ForCausalLM"});
  json.update({{"topk_method", "noaux_tc"}, {"topk_group", 2}});
  CHECK(refused("routed_scaling_factor", 2).empty());
  CHECK(has(refused("topk_method", "greedy"), "want noaux_tc"));
  CHECK(has(refused("n_group", 8), "groups of one expert"));
}

TEST_CASE(
    "`layer_types` says which layers have a window, and of a kind that is not known is refused") {
  Json json = good();
  json["architectures"] = Json::array({"Qwen3ForCausalLM"});
  json.update({{"use_sliding_window", true}, {"sliding_window", 100}, {"max_window_layers", 0}});
  const char *const full = "full_attention", *const slides = "sliding_attention";
  json["layer_types"] = {full, slides, full, full, slides};
  const auto c = parse_config(json);
  REQUIRE_MESSAGE(c.has_value(), c.error().what);
  for (uint32_t i = 0; i < 5; ++i) CHECK(c->kind(i).window == (i == 1 || i == 4 ? 100 : 0));
  json["layer_types"] = {full, slides, full, full, "chunked_attention"};
  CHECK(has(parse_config(json).error().what, "chunked_attention"));
  json["layer_types"] = {full};
  CHECK(has(parse_config(json).error().what, "no list of 5 layers"));
}

// As transformers 5 writes it.
TEST_CASE("Gemma 3's two rotations are read from one object as well") {
  Json json = good();
  json["architectures"] = Json::array({"Gemma3ForCausalLM"});
  json["hidden_act"] = "gelu_pytorch_tanh";
  json["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 8.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  const auto c = parse_config(json);
  REQUIRE_MESSAGE(c.has_value(), c.error().what);
  CHECK(c->rope.theta == 5e5);
  CHECK(c->rope.factor == 8);
  CHECK(c->local_rope.theta == 2e4);
  json["rope_parameters"].erase("full_attention");
  CHECK(has(parse_config(json).error().what, "full_attention"));
  json.erase("rope_parameters");
  json["use_bidirectional_attention"] = true;
  CHECK(has(parse_config(json).error().what, "use_bidirectional_attention"));
  json.erase("use_bidirectional_attention");
  json["hidden_act"] = "silu";
  CHECK(has(parse_config(json).error().what, "gelu_pytorch_tanh"));
}

TEST_CASE("a configuration that leaves out the base of its rotation has its family's") {
  const auto theta = [](const char* architecture) {
    Json json = good();
    json["architectures"] = Json::array({architecture});
    json.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
    const auto c = parse_config(json);
    REQUIRE_MESSAGE(c.has_value(), c.error().what);
    return c->rope.theta;
  };
  CHECK(theta("MixtralForCausalLM") == 1e6);
  CHECK(theta("SmolLM3ForCausalLM") == 2e6);
  CHECK(theta("Qwen2ForCausalLM") == 1e4);
}

TEST_CASE("experts, lists of layers and divisors that contradict the model are refused") {
  const auto of = [](const char* architecture, Json more) {
    Json json = good();
    json["architectures"] = Json::array({architecture});
    json.update(more);
    const auto c = parse_config(json);
    return c ? std::string() : c.error().what;
  };
  const Json experts = {
      {"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 8}};
  CHECK(of("Qwen3MoeForCausalLM", experts).empty());
  const auto with = [&](const char* key, const Json& value) {
    Json changed = experts;
    changed[key] = value;
    return of("Qwen3MoeForCausalLM", changed);
  };
  CHECK(has(with("num_experts_per_tok", 5), "'num_experts_per_tok' is 5, want 1 to 4"));
  CHECK(has(with("mlp_only_layers", Json::array({5})), "below 5"));
  CHECK(has(with("mlp_only_layers", 3), "mlp_only_layers"));
  CHECK(has(of("MixtralForCausalLM", Json::object()), "'num_local_experts' is missing"));
  CHECK(has(of("SmolLM3ForCausalLM", {{"no_rope_layers", {1, 0}}}), "no list of 5 layers"));
  const auto phi = [&](const Json& scaling, double share = 1) {
    return of("Phi3ForCausalLM", {{"rope_scaling", scaling},
                                  {"original_max_position_embeddings", 64},
                                  {"partial_rotary_factor", share}});
  };
  CHECK(has(phi({{"type", "longrope"}, {"long_factor", {1, 1}}}), "list of 4 numbers"));
  CHECK(has(phi({{"type", "longrope"}, {"long_factor", {1, 1, 0, 1}}}), "above 0"));
  CHECK(has(phi(nullptr, 1.5), "partial_rotary_factor"));
  CHECK(has(phi(nullptr, 0.1), "two of them or more"));
  CHECK(has(of("LlamaForCausalLM", {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor"));
}

TEST_CASE("Llama 3's scaling keeps short waves, stretches long ones and blends between") {
  const model::Rope plain{.theta = 500000};
  model::Rope scaled = plain;
  scaled.scaling = model::RopeScaling::kLlama3;
  scaled.factor = 8;
  scaled.original_context = 8192;
  const auto before = model::rope_frequencies(plain, 128);
  const auto after = model::rope_frequencies(scaled, 128);
  int kept = 0, stretched = 0, blended = 0;
  for (size_t j = 0; j < 64; ++j) {
    const double wave = 2 * 3.14159265358979323846 / before[j];
    if (wave < 8192.0 / 4) {
      CHECK(after[j] == before[j]);
      ++kept;
    } else if (wave > 8192.0) {
      CHECK(after[j] == doctest::Approx(before[j] / 8).epsilon(1e-12));
      ++stretched;
    } else {
      const double smooth = (8192.0 / wave - 1) / (4.0 - 1);
      const double want = (1 - smooth) * before[j] / 8 + smooth * before[j];
      CHECK(after[j] == doctest::Approx(want).epsilon(1e-12));
      ++blended;
    }
  }
  CHECK(kept > 20);
  CHECK(stretched > 20);
  CHECK(blended > 2);
  model::Rope linear = plain;
  linear.scaling = model::RopeScaling::kLinear;
  linear.factor = 4;
  CHECK(model::rope_frequencies(linear, 128)[5] == before[5] / 4);
}

// Figures worked out by hand from the paper's formulas: 10,000 turns by 1 in 128 numbers.
TEST_CASE(
    "YaRN keeps the pairs that turn often, slows those that turn seldom, and blends between") {
  Json json = good();
  json["head_dim"] = 128;
  json["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}};
  const auto c = parse_config(json);
  REQUIRE_MESSAGE(c.has_value(), c.error().what);
  CHECK(c->context_max == 16384);
  CHECK(c->rope.scale == doctest::Approx(1.138629436));
  const auto before = model::rope_frequencies({}, 128);
  const auto after = model::rope_frequencies(c->rope, 128);
  // 32 turns in 4096 positions: between pairs 20 and 21; one turn: between 45 and 46.
  for (size_t j = 0; j <= 20; ++j) CHECK(after[j] == before[j]);
  for (size_t j = 46; j < 64; ++j) CHECK(after[j] == doctest::Approx(before[j] / 4).epsilon(1e-12));
  CHECK(after[33] == doctest::Approx(before[33] * (0.5 + 0.5 / 4)).epsilon(1e-12));
  json["rope_scaling"]["attention_factor"] = 1.5;
  CHECK(parse_config(json)->rope.scale == 1.5);
}

TEST_CASE("the small model's configuration: tied, two end tokens, 260,032 parameters") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  auto c = parse_config(test::json_at(shared + "/stories260K/hf-f32/config.json"));
  REQUIRE(c);
  const Json generation = test::json_at(shared + "/stories260K/hf-f32/generation_config.json");
  REQUIRE(model::parse_generation_config(generation, *c));
  CHECK(c->tied);
  CHECK(c->eos == std::vector<int32_t>{2, 1});
  CHECK(c->parameters() == 260032);
  CHECK(model::spec_of(*c, model::DType::kF32).kv_bytes_per_token() == 1280);
}

TEST_CASE("f16 and bf16 round to nearest, ties to even, and come back exactly") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float f = model::from_f16(half), b = model::from_bf16(half);
    if (!std::isnan(f))
      if (model::to_f16(f) != half) FAIL(bits);
    if (!std::isnan(b))
      if (model::to_bf16(b) != half) FAIL(bits);
  }
  CHECK(model::to_f16(1.0f + 0x1p-11f) == 0x3c00);      // a tie, to even
  CHECK(model::to_f16(1.0f + 3 * 0x1p-11f) == 0x3c02);  // a tie, to even
  CHECK(model::to_f16(65520.0f) == 0x7c00);             // too large: infinity
  CHECK(model::to_f16(0x1p-25f) == 0);                  // half of the smallest: to even
  CHECK(model::to_f16(0x1.8p-25f) == 1);
  CHECK(std::isnan(model::from_f16(model::to_f16(NAN))));
  CHECK(model::to_bf16(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(std::isnan(model::from_bf16(model::to_bf16(NAN))));
}
