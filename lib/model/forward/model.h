// Opens a model by name: the built-in `tiny`, a HF folder, or a .gguf file. A HF folder has
// config.json, weights in safetensors and a tokenizer. Opening maps and checks the files; load() is
// the first to read them whole.
//
// Errors: they name the file, what was expected and what was found. Thread: values.
#pragma once
#include <string>

#include "model/forward/tensor_parallel.h"
#include "model/forward/weights.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

namespace mc::model {

struct ModelFiles {
  ModelConfig config;
  Tokenizer tokenizer;
  TensorSet tensors;  // empty: the built-in one
  Naming naming = Naming::kHuggingFace;
  ChatFormat chat{};

  DType weight_type() const;  // in memory
  bool all_f16() const;       // every matrix: on devices they stay so
  // Of the configuration, the tensors' names, shapes and a sample of their content: equal for equal
  // models, whichever files they lie in.
  uint64_t digest() const;
};

// Whether the name is that of files with weights, and not of a spec without any.
bool has_weights(const std::string& name);
// Is it a .gguf file, or a folder with safetensors?
bool has_weight_files(const std::string& name);
Result<ModelFiles> open_model(const std::string& name);
// `files` outlives the sources.
Result<WeightSources> open_sources(const ModelFiles& files, LayerRange wanted = {});
// `share`: of one of several tensor-parallel ranks.
Result<Weights> load(const ModelFiles& files, ThreadPool& threads, LayerRange wanted = {},
                     TpShare share = {});

}  // namespace mc::model
