// Made by scripts/gen-block-goldens: what the gguf package reads in seeded blocks.
#pragma once
#include <cstdint>
#include <vector>

namespace mc::test {

inline constexpr uint64_t kGoldenBlocks = 96;
struct BlockGolden {
  const char* name;
  uint64_t bytes;                // of a block
  std::vector<uint64_t> f16_at;  // numbers of f16 in a block, kept below 2
  uint64_t digest;               // FNV-1a of the floats
};
inline const std::vector<BlockGolden> kBlockGoldens = {
    {"Q4_0", 18, {0}, 0x4ace9d734ff66553},     {"Q4_1", 20, {0, 2}, 0x5ab019631ce2ca35},
    {"Q5_0", 22, {0}, 0xd8a366171f2404cf},     {"Q5_1", 24, {0, 2}, 0xbdb7a85ca3533716},
    {"Q8_0", 34, {0}, 0x3a793ac88a4e75a4},     {"Q2_K", 84, {80, 82}, 0xa9cf1e4251c518f9},
    {"Q3_K", 110, {108}, 0x8a9a7b22af5eb10e},  {"Q4_K", 144, {0, 2}, 0xee5a5f46f3d7739b},
    {"Q5_K", 176, {0, 2}, 0x05750dbeaafc1fcd}, {"Q6_K", 210, {208}, 0xf9a2d4410ec29543},
    {"IQ4_NL", 18, {0}, 0xbe1217c2253a3447},   {"IQ4_XS", 136, {0}, 0xbebc93c4888821d7},
    {"MXFP4", 17, {}, 0x24ecb3dd2c6c508b},
};

}  // namespace mc::test
