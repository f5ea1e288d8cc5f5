// Number formats of weights and KV (f32, f16, bf16), and their conversion to float.
//
// Rounding is to nearest, ties to even.
//
// Thread: any.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mc::model {

enum class DType : uint8_t { kF32, kF16, kBf16 };

inline constexpr size_t size_of(DType type) { return type == DType::kF32 ? 4 : 2; }
const char* name(DType type);                             // "f32", "f16", "bf16"
std::optional<DType> dtype_named(std::string_view name);  // also "F32", "float32", ...

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
float from_f16(uint16_t bits);
uint16_t to_f16(float value);

void to_floats(DType type, const std::byte* from, float* to, size_t n);
void from_floats(DType type, const float* from, std::byte* to, size_t n);

}  // namespace mc::model
