// Describes a model: dimensions, the parts of its layers, position encoding, special tokens. Read
// from a HF folder (config.json, generation_config.json). The reader checks every value: what this
// forward pass cannot compute is refused with the value seen, never ignored.
//
// What families differ in is a row of the table in families.cc; what models of a family differ in
// is in ModelConfig.
//
// Thread: values. Source: LLaMA (Touvron et al. 2023); Llama 3.1's scaling of rotary frequencies as
// its reference code has it; Gemma 2 (Gemma Team 2024); Mixtral (Jiang et al. 2024); LongRoPE (Ding
// et al. 2024); MLA (DeepSeek-AI, DeepSeek-V2, 2024); HF config.json of the architectures in
// families.cc.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "cost/model_spec.h"
#include "model/files/families.h"
#include "model/files/kv_format.h"

namespace mc::model {

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
  double scale = 1;        // of turned queries and keys: cosine and sine are multiplied by it
  double score_scale = 1;  // of all scores, beside the root of a head's dimensions
  std::vector<double> divisors{};  // of each pair's speed; empty: none
  uint32_t dims = 0;               // of a head that turn, the first ones; 0: all
  uint32_t turned(uint32_t head_dim) const { return dims == 0 ? head_dim : dims; }
};

// By which of a model's two encodings a layer's queries and keys turn, or that they do not.
enum class Turn : uint8_t { kGlobal, kLocal, kNone };

struct LayerKind {
  uint64_t window = 0;  // positions that a row sees, its own among them; 0: all before it
  Turn turn = Turn::kGlobal;
  bool dense = false;  // one MLP, in a model of experts
  bool operator==(const LayerKind&) const = default;
};

// Many MLPs: a router chooses some of them for each row.
struct Experts {
  uint32_t count = 0, used = 0;  // count 0: none
  uint32_t inner = 0;            // intermediate size of one
  uint32_t shared = 0;           // of one more that every row goes through; 0: none
  bool normalized = false;       // the weights of the chosen ones add up to 1
  // Experts lie in as many groups, side by side. A row chooses within this many of the best.
  uint32_t groups = 1, groups_used = 1;
  double scale = 1;  // what the weights are multiplied by
};

// Multi-head latent attention. A head's key is `nope_dim` numbers made from a position's latent
// vector, then `rope_dim` turned numbers that all heads share; its value is made from the latent
// vector too. KV holds the latent vector and the shared numbers: head_dim is kv_rank + rope_dim.
struct Latent {
  uint32_t kv_rank = 0;  // of the latent vector; 0: none, heads have keys and values of their own
  uint32_t q_rank = 0;   // queries are made from as many numbers; 0: from the hidden state
  uint32_t nope_dim = 0, rope_dim = 0, v_dim = 0;
  static constexpr double kEps = 1e-6;                    // of its norms, whatever the others have
  uint32_t q_dim() const { return nope_dim + rope_dim; }  // of a head's query
};

struct ModelConfig {
  std::string name;
  Family family = Family::kLlama;
  uint32_t vocab = 0, hidden = 0, intermediate = 0, layers = 0;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  uint64_t context_max = 0;  // tokens
  double norm_eps = 1e-6;
  Rope rope;
  Rope local_rope{};  // of layers that turn by kLocal
  Experts experts{};
  Latent latent{};                       // then kv_heads is 1
  double embedding_scale = 1;            // what an embedded token is multiplied by
  double query_scalar = 0;               // scores are divided by its root; 0: head_dim
  double attention_cap = 0;              // scores stay within it, by cap x tanh(s / cap); 0: none
  double logit_cap = 0;                  // so do logits
  std::vector<LayerKind> layer_kinds{};  // one a layer; empty: all are LayerKind()
  bool tied = false;                     // the head is the embedding
  int32_t bos = -1;                      // -1: none
  std::vector<int32_t> eos;              // tokens that end an answer
  uint32_t q_rows() const { return heads * head_dim; }
  uint32_t kv_rows() const { return kv_heads * head_dim; }
  uint32_t planes() const { return latent.kv_rank > 0 ? 1 : 2; }  // of KV: keys and values, or one
  // Of what attention gives to its output matrix.
  uint32_t mixed_rows() const { return latent.kv_rank > 0 ? heads * latent.v_dim : q_rows(); }
  const Parts& parts() const { return parts_of(family); }
  bool qkv_bias() const { return parts().qkv_bias; }
  LayerKind kind(uint32_t layer) const {
    return layer_kinds.empty() ? LayerKind() : layer_kinds[layer];
  }
  bool sparse(uint32_t layer) const { return experts.count > 0 && !kind(layer).dense; }
  uint64_t parameters() const;
  uint64_t active_parameters() const;  // those that a row is multiplied by
};

// Errors: kInvalid for contradictions and values out of range, kUnsupported for other architectures
// and features; the text says what was expected and found.
Result<ModelConfig> parse_config(const Json& config);
// Adds the tokens that end an answer, of generation_config.json.
Result<> parse_generation_config(const Json& generation, ModelConfig& config);
Result<> check_config(const ModelConfig& config);

// What this model needs beyond LLaMA's layers and Qwen2's biases: "QK norm, sliding windows". An
// engine that computes those alone refuses a model where this is not empty.
std::string parts_beyond_llama(const ModelConfig& config);
// All that the parts of a model change in its answers, as text. Empty where nothing is beyond
// LLaMA's.
std::string describe_parts(const ModelConfig& config);

// The model's cost for the scheduler: KV of `kv`, coefficients of a CPU's order of magnitude. Of q8
// a head has the bytes of its row, scales too, as numbers of one byte.
cost::ModelSpec spec_of(const ModelConfig& config, KvFormat kv);

// Rotation speeds of a head's pairs, in radians a position: turned(head_dim) / 2 of them.
std::vector<double> rope_frequencies(const Rope& rope, uint32_t head_dim);

}  // namespace mc::model
