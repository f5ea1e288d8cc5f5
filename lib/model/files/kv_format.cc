#include "model/files/kv_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mc::model {
namespace {

constexpr float kIntegerMost = 127, kScaleGreatest = 65504;  // of an integer; of f16

// Numbers as whole ones of 8 bits. Compilers make vectors of a loop of known length whose arrays
// are apart; the sum rounds as nearbyint() does, to even ones, and vectors have it.
template <uint32_t kCount>
void round_group(const float* __restrict from, float scale, int8_t* __restrict to) {
  constexpr float kRounds = 0x1.8p23f;
  for (uint32_t i = 0; i < kCount; ++i) {
    float v = from[i] / scale;
    v = v <= kIntegerMost ? v : kIntegerMost;
    v = v < -kIntegerMost ? -kIntegerMost : v;
    to[i] = static_cast<int8_t>(static_cast<int32_t>((v + kRounds) - kRounds));
  }
}

float greatest_of(const float* from, uint32_t n) {
  float most[8] = {};  // chains that do not wait for each other
  for (uint32_t i = 0; i < n; ++i) most[i % 8] = std::max(most[i % 8], std::fabs(from[i]));
  return *std::max_element(most, most + 8);
}

void write_q8(const float* row, uint32_t dim, std::byte* to) {
  auto* integers =
      reinterpret_cast<int8_t*>(to) + 2 * ((dim + KvFormat::kScaled - 1) / KvFormat::kScaled);
  for (uint32_t first = 0; first < dim; first += KvFormat::kScaled, to += 2) {
    const uint32_t n = std::min(KvFormat::kScaled, dim - first);
    const float most = greatest_of(row + first, n);
    const uint16_t bits = to_f16(std::min(most / kIntegerMost, kScaleGreatest));
    const float scale = from_f16(bits);
    std::memcpy(to, &bits, 2);
    if (scale == 0)
      std::fill_n(integers + first, n, int8_t{0});
    else if (n == KvFormat::kScaled)
      round_group<KvFormat::kScaled>(row + first, scale, integers + first);
    else
      for (uint32_t i = first; i < dim; ++i) round_group<1>(row + i, scale, integers + i);
  }
}

// Numbers of one group. Compilers make vectors of a loop of known length whose arrays are apart.
template <uint32_t kCount>
void scaled_group(const int8_t* __restrict from, float scale, float* __restrict to) {
  for (uint32_t i = 0; i < kCount; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

void read_q8(const std::byte* from, uint32_t dim, float* to) {
  const auto* integers = reinterpret_cast<const int8_t*>(from) +
                         2 * ((dim + KvFormat::kScaled - 1) / KvFormat::kScaled);
  for (uint32_t first = 0; first < dim; first += KvFormat::kScaled, from += 2) {
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    const float scale = from_f16(bits);
    if (dim - first >= KvFormat::kScaled) {
      scaled_group<KvFormat::kScaled>(integers + first, scale, to + first);
    } else {
      for (uint32_t i = first; i < dim; ++i) to[i] = static_cast<float>(integers[i]) * scale;
    }
  }
}

}  // namespace

void KvFormat::write(const float* row, uint32_t dim, std::byte* to) const {
  if (q8_) return write_q8(row, dim, to);
  from_floats(type_, row, to, dim);
}

void KvFormat::read(const std::byte* from, size_t rows, uint32_t dim, size_t stride,
                    float* to) const {
  if (!q8_ && stride == dim) return to_floats(type_, from, to, rows * dim);
  const size_t bytes = row_bytes(dim);
  for (size_t i = 0; i < rows; ++i, from += bytes, to += stride) {
    if (q8_)
      read_q8(from, dim, to);
    else
      to_floats(type_, from, to, dim);
    std::fill(to + dim, to + stride, 0.0f);
  }
}

const char* name(KvFormat format) { return format.quantized() ? "q8" : name(format.type()); }

std::optional<KvFormat> kv_format_named(std::string_view text) {
  if (text == "q8") return KvFormat::q8();
  const auto type = dtype_named(text);
  return type ? std::optional<KvFormat>(*type) : std::nullopt;
}

}  // namespace mc::model
