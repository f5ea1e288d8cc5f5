// Holds the weights of a model in device memory: dense matrices, row after row.
//
// Errors: kNoSpace if the model does not fit. Thread: values; const use, any.
#pragma once
#include <vector>

#include "device/device.h"
#include "model/forward/weights.h"
#include "model/kernels/thread_pool.h"

namespace mc::gpu {

struct Matrix {
  device::Memory memory{};
  uint32_t rows = 0, columns = 0, segments = 1;
};
struct LayerWeights {
  Matrix qkv, output, gate_up, down;                  // as model::LayerWeights
  device::Memory attention_norm, mlp_norm, qkv_bias;  // qkv_bias may be empty
};
struct Weights {
  model::DType type = model::DType::kF32;
  Matrix embedding, head;  // head: rows 0 where the embedding is it
  device::Memory norm;
  std::vector<LayerWeights> layers;
  uint64_t bytes = 0;
};

Result<Weights> upload(device::Device& device, const model::WeightSources& sources,
                       model::DType type, model::ThreadPool& threads);

}  // namespace mc::gpu
