// Describes the model that a cluster serves, without computing it.
//
// Thread: values. Errors: kInvalid, kNotFound, kUnsupported for a model or a combination of options
// that does not exist.
#pragma once
#include <string>

#include "base/options.h"
#include "base/result.h"
#include "cost/model_spec.h"
#include "model/forward/model.h"

namespace mc::serve {

// Which engine serves a model, the same in the whole cluster: what differs is refused.
struct EngineChoice {
  std::string model = "tiny";       // a spec by name or file, or a folder with weights
  std::string engine = "auto";      // dummy; cpu; cuda; auto: cpu where there are weights
  std::string kv_type = "auto";     // of KV in blocks: f32, f16, bf16, q8; auto: as the weights
  std::string activations = "f32";  // what weights of bf16 are multiplied by: f32 or bf16
  std::string cost = {};            // file with measured times of this model; empty: the spec's
  void describe(OptionList& v);
};

// What is known of a model without computing it.
struct ModelInfo {
  cost::ModelSpec spec;
  model::Tokenizer tokenizer;
  model::ChatFormat chat{};
};
Result<ModelInfo> open_model_info(const EngineChoice& choice);

// Is the model computed from weights, or only its time and its blocks' structure?
bool computes(const EngineChoice& choice);

// The files of a model that is computed.
struct ComputedModel {
  model::ModelFiles files;
  model::KvFormat kv;    // in blocks
  model::DType factors;  // what weights are multiplied by
  cost::ModelSpec spec;
};
Result<ComputedModel> open_computed(const EngineChoice& choice);

}  // namespace mc::serve
