// Describes a LLaMA-family model: dimensions, position encoding, special tokens. Read from a HF
// folder (config.json, generation_config.json). The reader checks every value: what this forward
// pass cannot compute is refused with the value seen, never ignored.
//
// Thread: values. Source: LLaMA (Touvron et al. 2023); Llama 3.1's scaling of rotary frequencies as
// its reference code has it; HF config.json of LlamaForCausalLM and MistralForCausalLM.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "cost/model_spec.h"
#include "model/files/dtype.h"

namespace mc::model {

// What differs within the family: Qwen2 adds a vector to queries, keys and values.
enum class Family : uint8_t { kLlama, kQwen2 };
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct Rope {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // of kLlama3
  uint64_t original_context = 8192;                  // of kLlama3 and kYarn
  // Of kYarn (Peng et al. 2023), in turns within the original context: pairs that turn more than
  // `often` keep their speed, pairs that turn less than `seldom` are slowed by the factor.
  double often = 32, seldom = 1;
  double scale = 1;  // of turned queries and keys: cosine and sine are multiplied by it
  std::vector<double> divisors{};  // of each pair's speed; empty: none
};

struct ModelConfig {
  std::string name;
  Family family = Family::kLlama;
  uint32_t vocab = 0, hidden = 0, intermediate = 0, layers = 0;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  uint64_t context_max = 0;  // tokens
  double norm_eps = 1e-6;
  Rope rope;
  bool tied = false;         // the head is the embedding
  int32_t bos = -1;          // -1: none
  std::vector<int32_t> eos;  // tokens that end an answer
  uint32_t q_rows() const { return heads * head_dim; }
  uint32_t kv_rows() const { return kv_heads * head_dim; }
  bool qkv_bias() const { return family == Family::kQwen2; }
  uint64_t parameters() const;
};

// Errors: kInvalid for contradictions and values out of range, kUnsupported for other architectures
// and features; the text says what was expected and found.
Result<ModelConfig> parse_config(const Json& config);
// Adds the tokens that end an answer, of generation_config.json.
Result<> parse_generation_config(const Json& generation, ModelConfig& config);
Result<> check_config(const ModelConfig& config);

// The model's cost for the scheduler: KV of `kv_type`, coefficients of a CPU's order of magnitude.
cost::ModelSpec spec_of(const ModelConfig& config, DType kv_type);

// Rotation speeds of a head's pairs, in radians a position: head_dim / 2 of them.
std::vector<double> rope_frequencies(const Rope& rope, uint32_t head_dim);

}  // namespace mc::model
