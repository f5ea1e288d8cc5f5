// What the kernels of attention take: queries, and a tile of up to 64 keys and values.
//
// A query goes through its tiles in order; its state is the greatest score, the sum of shares (e to
// what a score is above that) and the sum of values by their shares. There are three ways:
//
//   floats    f32 throughout
//   pairs     keys, values, queries and shares are bf16; sums are f32, two products at a time
//   integers  keys and values are those of KvFormat::q8(). Queries are rounded as what quantized
//             weights are multiplied by, and are multiplied as such (BlockJob, a key is a column).
//             Values are their integers as bf16, which are exact; shares times the scale of a
//             value are rounded to bf16.
//
// Where few queries take a tile, pairs are multiplied as the rows lie in memory, without being laid
// out before; the products and their order are the same.
//
// In all of them a query's numbers depend on the query and what it sees alone: nothing else is
// multiplied, so that it may be infinite, and other queries have their own sums.
//
// Thread: values. Source: FlashAttention (Dao 2022) for the running softmax.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

namespace mc::model {

inline constexpr uint32_t kTile = 64;  // positions attention takes at a time
inline constexpr uint32_t kHeadDimMax = 1024;

// A query's attention while it goes through its tiles.
struct Attention {
  float most = -std::numeric_limits<float>::infinity(), total = 0;
  float* values = nullptr;  // as many as the query is wide; zero before the first tile
};

// Positions of a tile that a query sees: [begin, end), at least one.
struct SeenKeys {
  uint32_t begin = 0, end = 0;
  bool operator==(const SeenKeys&) const = default;
};

// Queries that see all of `positions` keys and values of a tile, in floats.
struct FloatAttention {
  const float* queries = nullptr;                  // [query][dim], scaled
  uint32_t count = 0;                              // queries
  const float *keys = nullptr, *values = nullptr;  // [position][dim]
  uint32_t positions = 0;                          // 1 to kTile
  uint32_t dim = 0;                                // a multiple of 16, the padding zero
  float cap = 0;                                   // above 0: a score s becomes cap x tanh(s / cap)
  Attention* states = nullptr;
};

// Rows of bf16 as they lie, where few queries take them: pointers, of each position one, then up to
// a multiple of 16 of zeros. As many rows of `ahead` are fetched on the way.
struct PairRows {
  const std::byte* const* rows = nullptr;  // null: they are laid out
  const std::byte* const* ahead = nullptr;
};

// Scores of queries of bf16: scores[query][position].
struct PairScores {
  const uint16_t* queries = nullptr;  // [query][wide], scaled
  uint32_t count = 0;                 // queries
  const std::byte* keys = nullptr;    // of each 16 positions, [pair of wide][position][2]
  PairRows key_rows{};                // or these
  uint32_t positions = 0;             // that are wanted, rounded up to 16
  uint32_t wide = 0;                  // a multiple of 32, the padding zero
  float* scores = nullptr;            // [query][kTile]
};

// Values added to queries' attention by their scores.
struct PairValues {
  float* scores = nullptr;            // [query][kTile]; overwritten
  const SeenKeys* seen = nullptr;     // by each query
  uint32_t count = 0;                 // queries
  const std::byte* values = nullptr;  // [pair of positions][wide][2], of bf16
  PairRows value_rows{};              // or these; without scales
  uint32_t positions = 0;             // of the values; a zero behind an odd number of them
  const float* scales = nullptr;      // of the values, [wide / 32][kTile], or null: none
  uint32_t wide = 0;
  float cap = 0;
  Attention* states = nullptr;
};

}  // namespace mc::model
