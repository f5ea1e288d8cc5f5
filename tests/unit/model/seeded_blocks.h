// Blocks of any format from its seed, as scripts/gen-block-goldens makes them too.
#pragma once
#include <cstring>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "block_goldens.h"
#include "model/files/block_format.h"

namespace mc::test {

inline std::vector<std::byte> seeded_blocks(const model::BlockFormat& f, uint64_t count) {
  std::vector<std::byte> bytes((count * f.bytes + 7) / 8 * 8);
  for (uint64_t i = 0; i < bytes.size() / 8; ++i) {
    const uint64_t word = mix64((uint64_t{f.ggml} << 32) + i);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  for (const BlockGolden& golden : kBlockGoldens)
    if (std::string_view(golden.name) == f.name)
      for (uint64_t b = 0; b < count; ++b)
        for (const uint64_t at : golden.f16_at) bytes[b * f.bytes + at + 1] &= std::byte{0xBF};
  return bytes;
}

}  // namespace mc::test
