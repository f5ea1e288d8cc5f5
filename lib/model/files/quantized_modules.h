// Gives the weights of a quantized HF folder the names and shapes that they would have without it.
// Quantizers write several tensors for a weight: packed integers, scales, zero points. They become
// one tensor `X.weight` that reads its rows from them.
//
//   GPTQ  X.qweight, X.qzeros, X.scales, X.g_idx   4 or 8 bits
//   AWQ   X.qweight, X.qzeros, X.scales            4 bits, version "gemm"
//   FP8   X.weight with X.weight_scale(_inv)       F8_E4M3 or F8_E5M2
//
// Rows of 4 bits become blocks of Q5_0, those of 8 bits of Q8_0: an integer less its zero point
// fits, and a scale of f16 stays as it is. Where groups are no whole blocks, or scales no f16, and
// for FP8, rows are read as floats.
//
// Errors: kUnsupported names a method or variant that is not read here; kInvalid and kCorrupt name
// the tensor. Source: AutoGPTQ's and AutoAWQ's file formats; OCP 8-bit Floating Point 1.0.
#pragma once
#include "base/json_fwd.h"
#include "base/result.h"
#include "model/files/tensors.h"

namespace mc::model {

// `quantization`: of config.json.
Result<> join_quantized_modules(const Json& quantization, TensorSet& set);

float from_f8_e4m3(uint8_t bits);

}  // namespace mc::model
