// Describes a model to the scheduler: its KV cache's shape and its step times.
// It is read from JSON in configs/models/. `tiny` is built in, so that everything runs without a
// file.
//
// A block of KV lies in memory as [layer][K,V][kv_head][token][head_dim]: a layer of a block, and a
// range of heads in it, are contiguous. MLA models store one latent vector per token and layer
// (kv_heads 1, no separate V).
//
// Thread: values. Source: Mooncake paper section 2 and Table 1; paper calibration (calib.json).
#pragma once
#include <cstdint>
#include <string>

#include "base/json_fwd.h"
#include "base/options.h"
#include "base/result.h"
#include "base/time.h"

namespace mc::cost {

// Seconds, from token counts. n: prompt tokens; p: those reused from a cache.
//   prefill(n, p) = c0 + c1 (n - p) + c2 (n^2 - p^2) + p x kv_bytes_per_token / load_bytes_per_s
//   step(B, ctx)  = t0 + t1 (B - 1) + t2 x (sum of the batch's context lengths)
struct CostModel {
  double c0 = 0, c1 = 0, c2 = 0;
  double load_bytes_per_s = 128e9;
  double t0 = 0, t1 = 0, t2 = 0;
  double transfer_bytes_per_s = 87e9;  // between nodes, until transfers are measured
};

struct ModelSpec {
  std::string name;
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  uint32_t hidden = 0, vocab = 0;
  uint32_t element_bytes = 2;
  bool mla = false;          // one latent vector instead of K and V
  uint64_t context_max = 0;  // tokens
  uint64_t parameters = 0;
  CostModel cost;
  std::string variant;  // what else KV depends on: engine, formats, weights; may be empty
  uint32_t first_layer = 0,
           layers_after = 0;  // of a slice (slice_of): the model's layers around it

  uint64_t kv_bytes_per_token_layer() const {
    return uint64_t{kv_heads} * head_dim * element_bytes * (mla ? 1 : 2);
  }
  uint64_t kv_bytes_per_token() const { return kv_bytes_per_token_layer() * layers; }
  uint64_t layer_bytes(uint64_t block_tokens) const {
    return kv_bytes_per_token_layer() * block_tokens;
  }
  uint64_t block_bytes(uint64_t block_tokens) const { return kv_bytes_per_token() * block_tokens; }
  // Processes that share KV must have equal fingerprints: model, dtype, layout, block size, hash. A
  // mismatch is an error that quotes both, never a silent miss.
  std::string fingerprint(uint64_t block_tokens) const;
  // The model's part of KV keys in a pool. Models with different KV bytes have different names.
  std::string pool_name() const;
};

double prefill_seconds(const ModelSpec& spec, uint64_t n, uint64_t p);
double step_seconds(const ModelSpec& spec, uint64_t batch, uint64_t context_tokens);

// Slice `stage` (from 0) of the model's layers cut into `stages` nearly equal ones: its share of
// the KV and of the times. Errors: kInvalid for more stages than layers, or no such stage.
Result<ModelSpec> slice_of(const ModelSpec& whole, uint32_t stage, uint32_t stages);

ModelSpec tiny();                                              // 4 layers, 1 KiB of KV a token
Result<ModelSpec> parse_spec(const Json& json);                // unknown keys are errors
Result<ModelSpec> load_spec(const std::string& name_or_path);  // "tiny", or a JSON file
Json to_json(const ModelSpec& spec);                           // what parse_spec reads
// Reads the times from another spec's file, as `mc-prefill --calibrate` wrote it for this model.
// Errors: kNotFound; kInvalid, also for a spec of another shape, quoting both shapes.
Result<CostModel> load_cost(const std::string& path, const ModelSpec& spec);

}  // namespace mc::cost
