#include "model/files/dtype.h"

#include <array>
#include <cstring>
#include <utility>

namespace mc::model {

const char* name(DType type) {
  return type == DType::kF32 ? "f32" : type == DType::kF16 ? "f16" : "bf16";
}

std::optional<DType> dtype_named(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, DType>, 9> kNames{{{"f32", DType::kF32},
                                                                      {"F32", DType::kF32},
                                                                      {"float32", DType::kF32},
                                                                      {"f16", DType::kF16},
                                                                      {"F16", DType::kF16},
                                                                      {"float16", DType::kF16},
                                                                      {"bf16", DType::kBf16},
                                                                      {"BF16", DType::kBf16},
                                                                      {"bfloat16", DType::kBf16}}};
  for (const auto& [known, type] : kNames)
    if (known == text) return type;
  return std::nullopt;
}

float from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals are fraction x 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // infinity
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 rounds to steps of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void to_floats(DType type, const std::byte* from, float* to, size_t n) {
  if (n == 0) return;
  if (type == DType::kF32) {
    std::memcpy(to, from, n * 4);
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = type == DType::kF16 ? from_f16(bits) : from_bf16(bits);
  }
}

void from_floats(DType type, const float* from, std::byte* to, size_t n) {
  if (n == 0) return;
  if (type == DType::kF32) {
    std::memcpy(to, from, n * 4);
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint16_t bits = type == DType::kF16 ? to_f16(from[i]) : to_bf16(from[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

}  // namespace mc::model
