#include "model/files/block_format.h"

#include <array>
#include <bit>
#include <cstring>

#include "model/files/dtype.h"

namespace mc::model {
namespace {

constexpr std::array<int8_t, 16> kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
// Halves of the numbers of E2M1.
constexpr std::array<int8_t, 16> kHalvesOfE2m1 = {0, 1,  2,  3,  4,  6,  8,  12,
                                                  0, -1, -2, -3, -4, -6, -8, -12};

float f16_at(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return from_f16(bits);
}
uint32_t u8(const std::byte* p, size_t i) { return std::to_integer<uint32_t>(p[i]); }
uint32_t low(const std::byte* p, size_t i) { return u8(p, i) & 15; }
uint32_t high(const std::byte* p, size_t i) { return u8(p, i) >> 4; }

void set_scale(QuantGroup& g, float scale, float minimum = 0) {
  g.scale[0] = g.scale[1] = scale;
  g.minimum[0] = g.minimum[1] = minimum;
}

// 16 bytes: the first half in the low nibbles, the second in the high ones.
template <class Value>
void halves_of_bytes(const std::byte* bytes, QuantGroup& g, const Value& value) {
  for (uint32_t i = 0; i < 16; ++i) {
    g.integers[i] = value(low(bytes, i), i);
    g.integers[i + 16] = value(high(bytes, i), i + 16);
  }
}

void unpack_q4_0(const std::byte* b, QuantGroup* g) {
  set_scale(*g, f16_at(b));
  halves_of_bytes(b + 2, *g, [](uint32_t q, uint32_t) { return static_cast<int8_t>(q - 8); });
}

void unpack_q4_1(const std::byte* b, QuantGroup* g) {
  set_scale(*g, f16_at(b), f16_at(b + 2));
  halves_of_bytes(b + 4, *g, [](uint32_t q, uint32_t) { return static_cast<int8_t>(q); });
}

// The fifth bits of a group are one number.
void five_bits(const std::byte* fifth, const std::byte* bytes, uint32_t offset, QuantGroup& g) {
  uint32_t bits;
  std::memcpy(&bits, fifth, 4);
  halves_of_bytes(bytes, g, [&](uint32_t q, uint32_t i) {
    return static_cast<int8_t>((q | (bits >> i & 1) << 4) - offset);
  });
}

void unpack_q5_0(const std::byte* b, QuantGroup* g) {
  set_scale(*g, f16_at(b));
  five_bits(b + 2, b + 6, 16, *g);
}

void unpack_q5_1(const std::byte* b, QuantGroup* g) {
  set_scale(*g, f16_at(b), f16_at(b + 2));
  five_bits(b + 4, b + 8, 0, *g);
}

void unpack_q8_0(const std::byte* b, QuantGroup* g) {
  set_scale(*g, f16_at(b));
  std::memcpy(g->integers, b + 2, kGroup);
}

void unpack_iq4_nl(const std::byte* b, QuantGroup* g) {
  set_scale(*g, f16_at(b));
  halves_of_bytes(b + 2, *g, [](uint32_t q, uint32_t) { return kNonLinear[q]; });
}

void unpack_mxfp4(const std::byte* b, QuantGroup* g) {
  const uint32_t exponent = u8(b, 0);  // the scale is 2^(exponent - 128): of halves
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
  set_scale(*g, std::bit_cast<float>(bits));
  halves_of_bytes(b + 1, *g, [](uint32_t q, uint32_t) { return kHalvesOfE2m1[q]; });
}

// Formats of 256 elements. Two bits of four groups share a byte.
uint32_t two_bits(const std::byte* bytes, uint32_t group, uint32_t i) {
  return u8(bytes, group / 4 * 32 + i) >> (2 * (group % 4)) & 3;
}

void unpack_q2_k(const std::byte* b, QuantGroup* g) {
  const std::byte *scales = b, *bytes = b + 16;
  const float d = f16_at(b + 80), m = f16_at(b + 82);
  for (uint32_t group = 0; group < 8; ++group, ++g) {
    for (uint32_t half = 0; half < 2; ++half) {
      g->scale[half] = d * static_cast<float>(low(scales, 2 * group + half));
      g->minimum[half] = -(m * static_cast<float>(high(scales, 2 * group + half)));
    }
    for (uint32_t i = 0; i < kGroup; ++i)
      g->integers[i] = static_cast<int8_t>(two_bits(bytes, group, i));
  }
}

void unpack_q3_k(const std::byte* b, QuantGroup* g) {
  const std::byte *third = b, *bytes = b + 32, *scales = b + 96;
  const float d = f16_at(b + 108);
  const auto scale = [&](uint32_t i) {  // of 16: four bits here, two there
    const uint32_t four = i < 8 ? low(scales, i) : high(scales, i - 8);
    const uint32_t two = u8(scales, 8 + i % 4) >> (2 * (i / 4)) & 3;
    return d * static_cast<float>(static_cast<int32_t>(four | two << 4) - 32);
  };
  for (uint32_t group = 0; group < 8; ++group, ++g) {
    set_scale(*g, 0);
    for (uint32_t half = 0; half < 2; ++half) g->scale[half] = scale(2 * group + half);
    for (uint32_t i = 0; i < kGroup; ++i) {
      const uint32_t q = two_bits(bytes, group, i) | (u8(third, i) >> group & 1) << 2;
      g->integers[i] = static_cast<int8_t>(q - 4);
    }
  }
}

// Scale and minimum of a group, six bits each, of twelve bytes.
void six_bit_scale(const std::byte* s, uint32_t group, float d, float m, QuantGroup& g) {
  const uint32_t i = group % 4;
  const uint32_t scale = group < 4 ? u8(s, i) & 63 : low(s, i + 8) | u8(s, i) >> 6 << 4;
  const uint32_t minimum = group < 4 ? u8(s, i + 4) & 63 : high(s, i + 8) | u8(s, i + 4) >> 6 << 4;
  set_scale(g, d * static_cast<float>(scale), -(m * static_cast<float>(minimum)));
}

// Nibbles of two groups share 32 bytes.
uint32_t nibble(const std::byte* bytes, uint32_t group, uint32_t i) {
  const size_t at = group / 2 * 32 + i;
  return group % 2 == 0 ? low(bytes, at) : high(bytes, at);
}

void unpack_q4_k(const std::byte* b, QuantGroup* g) {
  for (uint32_t group = 0; group < 8; ++group, ++g) {
    six_bit_scale(b + 4, group, f16_at(b), f16_at(b + 2), *g);
    for (uint32_t i = 0; i < kGroup; ++i)
      g->integers[i] = static_cast<int8_t>(nibble(b + 16, group, i));
  }
}

void unpack_q5_k(const std::byte* b, QuantGroup* g) {
  for (uint32_t group = 0; group < 8; ++group, ++g) {
    six_bit_scale(b + 4, group, f16_at(b), f16_at(b + 2), *g);
    for (uint32_t i = 0; i < kGroup; ++i)
      g->integers[i] =
          static_cast<int8_t>(nibble(b + 48, group, i) | (u8(b + 16, i) >> group & 1) << 4);
  }
}

void unpack_q6_k(const std::byte* b, QuantGroup* g) {
  const std::byte *fours = b, *twos = b + 128, *scales = b + 192;
  const float d = f16_at(b + 208);
  for (uint32_t group = 0; group < 8; ++group, ++g) {
    set_scale(*g, 0);
    for (uint32_t half = 0; half < 2; ++half)
      g->scale[half] = d * static_cast<float>(static_cast<int8_t>(u8(scales, 2 * group + half)));
    // Of a half of the block, groups 0 and 2 share 32 bytes, and 1 and 3.
    const size_t at = group / 4 * 64 + group % 2 * 32;
    for (uint32_t i = 0; i < kGroup; ++i) {
      const uint32_t four = group % 4 < 2 ? low(fours, at + i) : high(fours, at + i);
      g->integers[i] = static_cast<int8_t>((four | two_bits(twos, group, i) << 4) - 32);
    }
  }
}

void unpack_iq4_xs(const std::byte* b, QuantGroup* g) {
  uint16_t twos;
  std::memcpy(&twos, b + 2, 2);
  const float d = f16_at(b);
  for (uint32_t group = 0; group < 8; ++group, ++g) {
    const uint32_t four = group % 2 == 0 ? low(b + 4, group / 2) : high(b + 4, group / 2);
    const uint32_t scale = four | (uint32_t{twos} >> (2 * group) & 3) << 4;
    set_scale(*g, d * static_cast<float>(static_cast<int32_t>(scale) - 32));
    halves_of_bytes(b + 8 + 16 * group, *g, [](uint32_t q, uint32_t) { return kNonLinear[q]; });
  }
}

constexpr std::array<BlockFormat, 13> kFormats = {{
    {"Q4_0", 2, 32, 18, unpack_q4_0, 4, 8, false, false, true},
    {"Q4_1", 3, 32, 20, unpack_q4_1, 4, 0, false, true, true},
    {"Q5_0", 6, 32, 22, unpack_q5_0, 5, 16, false, false, true},
    {"Q5_1", 7, 32, 24, unpack_q5_1, 5, 0, false, true, true},
    {"Q8_0", 8, 32, 34, unpack_q8_0, 8, 128, false, false, true},
    {"Q2_K", 10, 256, 84, unpack_q2_k, 4, 0, true, true, false},
    {"Q3_K", 11, 256, 110, unpack_q3_k, 4, 4, true, false, false},
    {"Q4_K", 12, 256, 144, unpack_q4_k, 4, 0, false, true, false},
    {"Q5_K", 13, 256, 176, unpack_q5_k, 5, 0, false, true, false},
    {"Q6_K", 14, 256, 210, unpack_q6_k, 6, 32, true, false, false},
    {"IQ4_NL", 20, 32, 18, unpack_iq4_nl, 8, 128, false, false, true},
    {"IQ4_XS", 23, 256, 136, unpack_iq4_xs, 8, 128, false, false, false},
    {"MXFP4", 39, 32, 17, unpack_mxfp4, 5, 16, false, false, false},
}};

// By number; those of removed formats are empty.
constexpr std::array<std::string_view, 42> kGgmlNames = {
    "F32",     "F16",   "Q4_0",   "Q4_1",  "",      "",       "Q5_0", "Q5_1",    "Q8_0",
    "Q8_1",    "Q2_K",  "Q3_K",   "Q4_K",  "Q5_K",  "Q6_K",   "Q8_K", "IQ2_XXS", "IQ2_XS",
    "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",   "I16",     "I32",
    "I64",     "F64",   "IQ1_M",  "BF16",  "",      "",       "",     "TQ1_0",   "TQ2_0",
    "",        "",      "",       "MXFP4", "NVFP4", "Q1_0"};

}  // namespace

std::span<const BlockFormat> block_formats() { return kFormats; }

const BlockFormat* block_format_numbered(uint32_t ggml) {
  for (const BlockFormat& f : kFormats)
    if (f.ggml == ggml) return &f;
  return nullptr;
}

std::string_view ggml_type_name(uint32_t ggml) {
  return ggml < kGgmlNames.size() ? kGgmlNames[ggml] : "";
}

void dequantize(const BlockFormat& format, const std::byte* from, float* to, size_t blocks) {
  std::array<QuantGroup, 8> groups;
  for (size_t b = 0; b < blocks; ++b, from += format.bytes) {
    format.unpack(from, groups.data());
    for (uint32_t i = 0; i < format.elements; ++i, ++to) {
      const QuantGroup& g = groups[i / kGroup];
      const uint32_t half = i % kGroup / 16;
      *to = g.scale[half] * static_cast<float>(g.integers[i % kGroup]);
      if (format.minimum) *to += g.minimum[half];
    }
  }
}

}  // namespace mc::model
