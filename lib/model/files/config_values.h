// Reads the parts of a config.json: bounds are checked, and errors name the key.
//
// Thread: any.
#pragma once
#include <cstdint>
#include <vector>

#include "base/json_fwd.h"
#include "model/files/config.h"

namespace mc::model {

// A number from 1 to `most`. `fallback` 0: it must be there.
Result<uint64_t> number(const Json& object, const char* key, uint64_t fallback, uint64_t most);
Result<> small(const Json& object, const char* key, uint64_t fallback, uint64_t most,
               uint32_t& out);
Result<double> positive(const Json& object, const char* key, double fallback);
// The rotations of a model (config_rope.cc) and of what its layers are made (config_parts.cc).
// `config` has the dimensions. Errors: as parse_config().
Result<> parse_rope(const Json& json, ModelConfig& config);
Result<> parse_parts(const Json& json, ModelConfig& config);
// The dimensions of latent attention, and of the KV that it has; its models' experts.
// (config_latent.cc)
Result<> parse_latent(const Json& json, ModelConfig& config);
void set_latent(const Latent& latent, ModelConfig& config);
Result<> parse_routed_experts(const Json& json, ModelConfig& config);
// Layers below `first`, and those that `step` does not divide, have one MLP.
void set_dense(uint64_t first, uint64_t step, ModelConfig& config);
// What scores are divided by: known when the rotation is.
void scale_queries(ModelConfig& config);
// What YaRN multiplies by, of this factor: 1 + 0.1 times its logarithm, times `mscale`.
double yarn_scale(double factor, double mscale);
// What LongRoPE multiplies turned queries and keys by.
double longrope_scale(double factor, uint64_t original_context);
// The kinds of layers of this family with these windows (0: none): the table's, turned as Gemma 3
// and SmolLM3 do. `upper`: from which layer on Windows::kUpper has them.
std::vector<LayerKind> family_kinds(const ModelConfig& config, uint64_t window, uint64_t upper);

}  // namespace mc::model
