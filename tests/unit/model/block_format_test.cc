#include "model/files/block_format.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "model/files/dtype.h"
#include "seeded_blocks.h"

using namespace mc;
using namespace mc::model;

namespace {

uint64_t fnv1a(const std::vector<float>& values) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const float v : values) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    for (int shift = 0; shift < 32; shift += 8)
      digest = (digest ^ (bits >> shift & 0xff)) * 0x100000001b3;
  }
  return digest;
}

}  // namespace

TEST_CASE("block formats: blocks are read bit for bit as the gguf package reads them") {
  REQUIRE(block_formats().size() == test::kBlockGoldens.size());
  for (const test::BlockGolden& golden : test::kBlockGoldens) {
    CAPTURE(golden.name);
    const auto formats = block_formats();
    const auto f = std::find_if(formats.begin(), formats.end(), [&](const BlockFormat& known) {
      return std::string(known.name) == golden.name;
    });
    REQUIRE(f != formats.end());
    CHECK(block_format_numbered(f->ggml) == &*f);
    CHECK(ggml_type_name(f->ggml) == golden.name);
    REQUIRE(f->bytes == golden.bytes);
    std::vector<float> values(test::kGoldenBlocks * f->elements);
    dequantize(*f, test::seeded_blocks(*f, test::kGoldenBlocks).data(), values.data(),
               test::kGoldenBlocks);
    CHECK(fnv1a(values) == golden.digest);
  }
}

// Kernels pack the integers and the scales by what the table says of them.
TEST_CASE("block formats: integers and scales keep to what the format says of them") {
  for (const BlockFormat& f : block_formats()) {
    CAPTURE(f.name);
    const auto bytes = test::seeded_blocks(f, test::kGoldenBlocks);
    std::vector<QuantGroup> groups(f.elements / kGroup);
    for (uint64_t b = 0; b < test::kGoldenBlocks; ++b) {
      f.unpack(bytes.data() + b * f.bytes, groups.data());
      for (const QuantGroup& g : groups) {
        for (const int8_t q : g.integers) REQUIRE(((q + f.offset) >> f.bits) == 0);
        if (!f.halves) REQUIRE(g.scale[0] == g.scale[1]);
        if (!f.halves) REQUIRE(g.minimum[0] == g.minimum[1]);
        if (!f.minimum) REQUIRE(g.minimum[0] == 0);
        if (f.f16) REQUIRE(from_f16(to_f16(g.scale[0])) == g.scale[0]);
        if (f.f16) REQUIRE(from_f16(to_f16(g.minimum[0])) == g.minimum[0]);
      }
    }
  }
}
