// How the numbers of KV lie in blocks: as f32, f16 or bf16, or in 8 bits each (q8).
//
// A row is a head's key or value of one position. In q8 its numbers are cut into groups of 32, the
// last maybe shorter. A group has a scale of f16, and for each number an integer from -127 to 127
// that is multiplied by it. A row is its scales, then its integers: a byte a number and 2 bytes a
// group, where f32 has 4 bytes a number. What is read is off by half a step at most: 1/254 of the
// group's greatest number, and 1/2048 of that for the rounded scale.
//
// Rounding is to nearest, ties to even. What is not a number, or too large for a scale, is read as
// the greatest number that the group can have.
//
// Thread: values. Source: the block format Q8_0 of GGML.
#pragma once
#include <optional>
#include <string_view>

#include "model/files/dtype.h"

namespace mc::model {

class KvFormat {
 public:
  static constexpr uint32_t kScaled = 32;  // numbers that share a scale

  constexpr KvFormat(DType type) : type_(type) {}  // NOLINT: a DType is such a format
  static constexpr KvFormat q8() {
    KvFormat f(DType::kF32);
    f.q8_ = true;
    return f;
  }
  bool operator==(const KvFormat&) const = default;

  bool quantized() const { return q8_; }
  DType type() const { return type_; }  // of numbers that are not quantized
  size_t row_bytes(uint32_t dim) const {
    return q8_ ? dim + 2 * size_t{(dim + kScaled - 1) / kScaled} : dim * size_of(type_);
  }
  void write(const float* row, uint32_t dim, std::byte* to) const;
  // `rows` rows side by side, each to `stride` floats, zeros behind its numbers.
  void read(const std::byte* from, size_t rows, uint32_t dim, size_t stride, float* to) const;

 private:
  DType type_;
  bool q8_ = false;
};

const char* name(KvFormat format);  // "f32", "f16", "bf16", "q8"
std::optional<KvFormat> kv_format_named(std::string_view name);

}  // namespace mc::model
