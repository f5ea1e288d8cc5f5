#include "model/files/families.h"

#include <array>

namespace mc::model {
namespace {

constexpr std::array kFamilies = {
    Parts{.family = Family::kLlama,
          .architecture = "LlamaForCausalLM",
          .type = "llama",
          .gguf = "llama",
          .pairs = true},
    Parts{.family = Family::kMistral,  // GGUF calls it llama
          .architecture = "MistralForCausalLM",
          .type = "mistral",
          .gguf = "",
          .pairs = true,
          .windows = Windows::kAll},
    Parts{.family = Family::kQwen2,
          .architecture = "Qwen2ForCausalLM",
          .type = "qwen2",
          .gguf = "qwen2",
          .qkv_bias = true,
          .windows = Windows::kUpper},
    Parts{.family = Family::kQwen3,
          .architecture = "Qwen3ForCausalLM",
          .type = "qwen3",
          .gguf = "qwen3",
          .qk_norm = true,
          .windows = Windows::kUpper},
    Parts{.family = Family::kGemma2,
          .architecture = "Gemma2ForCausalLM",
          .type = "gemma2",
          .gguf = "gemma2",
          .post_norms = true,
          .one_plus = true,
          .tied = true,
          .activation = Activation::kGeluTanh,
          .windows = Windows::kEverySecond},
    Parts{.family = Family::kGemma3,
          .architecture = "Gemma3ForCausalLM",
          .type = "gemma3_text",
          .gguf = "gemma3",
          .qk_norm = true,
          .post_norms = true,
          .one_plus = true,
          .tied = true,
          .theta = 1e6,
          .activation = Activation::kGeluTanh,
          .windows = Windows::kFiveOfSix},
    Parts{.family = Family::kMixtral,  // GGUF calls it llama
          .architecture = "MixtralForCausalLM",
          .type = "mixtral",
          .gguf = "",
          .pairs = true,
          .theta = 1e6,
          .windows = Windows::kAll},
    Parts{.family = Family::kQwen2Moe,
          .architecture = "Qwen2MoeForCausalLM",
          .type = "qwen2_moe",
          .gguf = "qwen2moe",
          .qkv_bias = true,
          .windows = Windows::kUpper},
    Parts{.family = Family::kQwen3Moe,
          .architecture = "Qwen3MoeForCausalLM",
          .type = "qwen3_moe",
          .gguf = "qwen3moe",
          .qk_norm = true,
          .windows = Windows::kUpper},
    Parts{.family = Family::kPhi3,
          .architecture = "Phi3ForCausalLM",
          .type = "phi3",
          .gguf = "phi3",
          .fused = true,
          .windows = Windows::kAll},
    Parts{.family = Family::kSmolLm3,
          .architecture = "SmolLM3ForCausalLM",
          .type = "smollm3",
          .gguf = "smollm3",
          .pairs = true,
          .tied = true,
          .theta = 2e6,
          .windows = Windows::kUpper},
    Parts{.family = Family::kDeepSeek2,
          .architecture = "DeepseekV2ForCausalLM",
          .type = "deepseek_v2",
          .gguf = "deepseek2",
          .latent = true},
    Parts{.family = Family::kDeepSeek3,  // GGUF calls it deepseek2
          .architecture = "DeepseekV3ForCausalLM",
          .type = "deepseek_v3",
          .gguf = "",
          .latent = true,
          .sigmoid = true},
};

std::optional<Family> find(std::string_view name, const char* Parts::*of) {
  for (const Parts& p : kFamilies)
    if (!name.empty() && name == p.*of) return p.family;
  return std::nullopt;
}
std::string list(const char* Parts::*of) {
  std::string all;
  for (const Parts& p : kFamilies)
    if (*(p.*of) != 0) all += (all.empty() ? "" : ", ") + std::string(p.*of);
  return all;
}

constexpr bool in_order() {
  for (size_t i = 0; i < kFamilies.size(); ++i)
    if (static_cast<size_t>(kFamilies[i].family) != i) return false;
  return true;
}
static_assert(in_order(), "a family's row lies at its number");

}  // namespace

const Parts& parts_of(Family family) { return kFamilies[static_cast<size_t>(family)]; }
std::optional<Family> family_of_architecture(std::string_view name) {
  return find(name, &Parts::architecture);
}
std::optional<Family> family_of_type(std::string_view name) { return find(name, &Parts::type); }
std::optional<Family> family_of_gguf(std::string_view name) { return find(name, &Parts::gguf); }
std::string known_architectures() { return list(&Parts::architecture); }
std::string known_gguf_names() { return list(&Parts::gguf); }

}  // namespace mc::model
