// Lists the families of models that are computed here, and what a family's layers are made of. One
// row a family; nothing else knows a family's name.
//
// Thread: any. Pure. Source: the configurations and code that the models were published with.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mc::model {

enum class Family : uint8_t {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kGemma2,
  kGemma3,
  kMixtral,
  kQwen2Moe,
  kQwen3Moe,
  kPhi3,
  kSmolLm3,
  kDeepSeek2,
  kDeepSeek3
};

// What a gate goes through before it multiplies: x sigmoid(x), or GELU by its tanh approximation.
enum class Activation : uint8_t { kSilu, kGeluTanh };

// Where a configuration that has `sliding_window` uses it.
enum class Windows : uint8_t {
  kNone,         // nowhere: such a configuration is refused
  kAll,          // in all layers
  kUpper,        // with `use_sliding_window`, from layer `max_window_layers` on
  kEverySecond,  // in layers 0, 2, 4, ..
  kFiveOfSix     // in all but layers 5, 11, 17, ..
};

struct Parts {
  Family family;
  const char* architecture;  // in config.json's `architectures`
  const char* type;          // its `model_type`
  const char* gguf;          // a GGUF file's `general.architecture`
  bool qkv_bias = false;     // added to queries, keys and values
  bool qk_norm = false;      // heads of queries and keys are normalized before they turn
  bool post_norms = false;   // what attention and MLP give is normalized before it is added
  bool one_plus = false;     // norms of HF files hold what their weights are above 1
  bool fused = false;        // one tensor of queries, keys and values, one of gate and up
  bool pairs = false;        // GGUF files hold a head's turning rows side by side
  bool latent = false;       // keys and values of a position are one vector for all heads (MLA)
  bool sigmoid = false;      // experts are scored by sigmoids and chosen with biases
  bool tied = false;         // the head is the embedding, if the configuration does not say
  double theta = 10000;      // base of the rotation, if the configuration does not say
  Activation activation = Activation::kSilu;
  Windows windows = Windows::kNone;
};

const Parts& parts_of(Family family);
// The family of that name; none: not computed here.
std::optional<Family> family_of_architecture(std::string_view name);
std::optional<Family> family_of_type(std::string_view name);
std::optional<Family> family_of_gguf(std::string_view name);
std::string known_architectures();  // "LlamaForCausalLM, ..", to say in errors
std::string known_gguf_names();     // "llama, qwen2, .."

}  // namespace mc::model
