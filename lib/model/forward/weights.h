// Packs the weights of a model for the kernels, checked against its configuration. They are read
// from a HF folder, or made from a seed.
//
// A Source is a matrix of the model before it is packed: rows, read one by one. The CPU and the
// devices pack it in their own ways. What it reads (TensorSet, ModelConfig) outlives it.
//
// Rows of query and key are in half-rotation (HF) order: dimension j of a head turns with j +
// head_dim / 2. Of latent attention (config.h) that holds for the dimensions that turn.
//
// Errors: kNotFound, kInvalid, kUnsupported name the tensor. Thread: values; const use, any.
#pragma once
#include <vector>

#include "model/files/config.h"
#include "model/files/tensors.h"
#include "model/kernels/matrix.h"

namespace mc::model {

struct Source {
  uint32_t rows = 0, columns = 0;   // rows 0: there is none
  uint32_t segments = 1;            // into how many parts a sum is cut (PanelJob)
  Matrix::RowReader read;           // any thread, several at once
  std::vector<BlockRows> blocks{};  // the same rows where the file has them quantized
};
// Small vectors of a layer. Empty: the model has none.
struct LayerVectors {
  std::vector<float> attention_norm, mlp_norm;  // of what attention and MLP are given
  std::vector<float> qkv_bias;                  // added to what qkv gives
  // Of each head, before it turns. Of latent attention: of what queries are made from, and of the
  // latent vector.
  std::vector<float> query_norm{}, key_norm{};
  std::vector<float> post_attention_norm{}, post_mlp_norm{};  // of what they give
  // The shared expert's share is the sigmoid of its product; empty: the share is 1.
  std::vector<float> shared_gate{};
  std::vector<float> router_bias{};  // added to scores where experts are chosen
};
struct MlpSources {
  Source gate_up, down;
};
struct LayerSources : LayerVectors {
  Source qkv, output, gate_up, down, router;  // as in LayerWeights
  std::vector<MlpSources> experts{};
  Source query_up{};
  std::vector<Source> key_up{}, value_up{};
};
struct WeightSources {
  Source embedding, head;
  std::vector<float> norm;
  std::vector<LayerSources> layers;
};

struct MlpWeights {
  Matrix gate_up;  // gate, then up; from hidden
  Matrix down;     // from intermediate to hidden
};
struct LayerWeights : LayerVectors {
  Matrix qkv;     // query heads, then key heads, then value heads; from hidden
  Matrix output;  // from the query heads' values to hidden
  // As MlpWeights. Of a layer of experts: those of the expert that all rows share, or empty.
  Matrix gate_up, down;
  Matrix router{};  // from hidden, a row an expert; empty: a layer with one MLP
  std::vector<MlpWeights> experts{};
  // Of latent attention. There `qkv` gives what queries are made from, then the latent vector and
  // the numbers that turn; `output` is from the values of all heads.
  Matrix query_up{};  // from q_rank to the heads' queries; empty: qkv gives these
  // A matrix a head: from a query's nope_dim numbers to the latent vector's, and from the latent
  // vector to the head's values.
  std::vector<Matrix> key_up{}, value_up{};
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

// Layers [first, last) of a model are wanted: the others stay empty, and so do the embedding where
// the first layer is not among them, and norm and head where any is left out.
struct LayerRange {
  uint32_t first = 0, last = UINT32_MAX;
  bool has(uint32_t layer) const { return layer >= first && layer < last; }
  bool all(uint32_t layers) const { return first == 0 && last >= layers; }
};

Result<WeightSources> weight_sources(const TensorSet& tensors, const ModelConfig& config,
                                     Naming naming, LayerRange wanted = {});
// Uniform numbers from the seed, scaled so that activations stay in range. Requires: nothing beyond
// LLaMA's parts (parts_beyond_llama).
WeightSources random_sources(const ModelConfig& config, uint64_t seed, LayerRange wanted = {});

// `type`: in memory, of what is not quantized.
Weights pack_weights(const WeightSources& sources, DType type, ThreadPool& threads);
Result<Weights> load_weights(const TensorSet& tensors, const ModelConfig& config, Naming naming,
                             DType type, ThreadPool& threads, LayerRange wanted = {});
// The format most of the bytes have: bf16 for bf16 weights, else f32. f32 where a matrix is made as
// floats (Tensor::make_row).
DType memory_type(const TensorSet& tensors);

Weights random_weights(const ModelConfig& config, uint64_t seed, DType type, ThreadPool& threads,
                       LayerRange wanted = {});

// The built-in model: shaped as the built-in spec `tiny`, byte-level text.
ModelConfig tiny_config();
// The built-in model of a billion parameters that speed is measured with.
ModelConfig bench_config();

}  // namespace mc::model
