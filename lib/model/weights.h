// The weights of a model, checked against its configuration and packed for the kernels; read from
// a HF folder, or made from a seed.
//
// Rows of query and key are in half-rotation (HF) order: dimension j of a head turns with j +
// head_dim / 2.
//
// Thread: values; const use, any. Errors: kNotFound, kInvalid, kUnsupported name the tensor.
#pragma once
#include <vector>

#include "model/config.h"
#include "model/matrix.h"
#include "model/tensors.h"

namespace mc::model {

struct LayerWeights {
  Matrix qkv;      // query heads, then key heads, then value heads; from hidden
  Matrix output;   // from the query heads' values to hidden
  Matrix gate_up;  // gate, then up; from hidden
  Matrix down;     // from intermediate to hidden
  std::vector<float> attention_norm, mlp_norm;
};

struct Weights {
  Matrix embedding;  // a row is a token
  Matrix head;       // empty where the embedding is the head
  std::vector<float> norm;
  std::vector<LayerWeights> layers;
  size_t bytes() const;
};

// How a kind of file names its tensors and orders the rows of query and key.
enum class Naming : uint8_t { kHuggingFace, kGguf };

// `type`: f32 or bf16 in memory.
Result<Weights> load_weights(const TensorSet& tensors, const ModelConfig& config, Naming naming,
                             DType type, Threads& threads);
// The format most of the bytes have: bf16 for bf16 weights, else f32.
DType memory_type(const TensorSet& tensors);

// Uniform numbers from the seed, scaled so that activations stay in range.
Weights random_weights(const ModelConfig& config, uint64_t seed, DType type, Threads& threads);

// The built-in model: shaped as the built-in spec `tiny`, byte-level text.
ModelConfig tiny_config();
// The built-in model of a billion parameters that speed is measured with.
ModelConfig bench_config();

}  // namespace mc::model
