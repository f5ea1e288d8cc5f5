// Describes the block formats of quantized weights, and reads their blocks. A row of a matrix is
// cut into blocks of 32 or 256 elements. A block holds small integers and the scales that they have
// in common.
//
// Every format becomes the same form: groups of 32 integers, with a scale (and in some a minimum)
// for each half. An element is scale x integer + minimum, each step rounded to f32, as the `gguf`
// package of Python computes it.
//
// Thread: any. Source: the GGUF specification; OCP Microscaling Formats 1.0 for MXFP4.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mc::model {

inline constexpr uint32_t kGroup = 32;  // elements of a group

struct QuantGroup {
  int8_t integers[kGroup];
  float scale[2], minimum[2];  // of each half; minimum: where the format has it
};

// What a format's integers and scales are like.
struct BlockFormat {
  const char* name;                                            // as the files' tools say it: "Q4_1"
  uint32_t ggml;                                               // its number in a GGUF file
  uint16_t elements, bytes;                                    // of a block
  void (*unpack)(const std::byte* block, QuantGroup* groups);  // elements / kGroup of them
  // An integer plus `offset` is at least 0 and has at most `bits` bits.
  uint8_t bits, offset;
  bool halves;   // the halves of a group have scales of their own
  bool minimum;  // added to every element
  bool f16;      // scales and minimums are numbers of f16
};

std::span<const BlockFormat> block_formats();
// nullptr: none that is read here.
const BlockFormat* block_format_numbered(uint32_t ggml);
// The name of a number in GGUF files, also of formats that are not read here; "" for others.
std::string_view ggml_type_name(uint32_t ggml);

// Reads `blocks` blocks as floats.
void dequantize(const BlockFormat& format, const std::byte* from, float* to, size_t blocks);

}  // namespace mc::model
