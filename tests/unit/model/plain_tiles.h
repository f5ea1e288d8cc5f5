// Stands in for the tiles of AMX, in plain C++: TILELOADD, TILEZERO, TDPBSSD and TILESTORED as
// their pseudocode has them. Included as block_tiles_body.h is, and behind it.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
#pragma once

struct TileState {
  TileConfig config;
  bool in_use;
  int8_t bytes[8][16][64];
};
thread_local TileState plain_tiles{};
bool tiles_misused = false;  // what a CPU would have answered with #UD or #GP

struct PlainTiles {
  static void misused_if(bool wrong) {
    if (wrong) __atomic_store_n(&tiles_misused, true, __ATOMIC_RELAXED);
  }
  static void configure(const TileConfig& config) {
    misused_if(config.palette != 1 || config.start_row != 0);
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t rows = config.rows[i], bytes = config.row_bytes[i];
      misused_if(rows > 16 || bytes > 64 || (rows == 0) != (bytes == 0) || (i >= 8 && rows > 0));
    }
    for (const uint8_t byte : config.none) misused_if(byte != 0);
    plain_tiles = {};
    plain_tiles.config = config;
    plain_tiles.in_use = true;
  }
  static void release() {
    misused_if(!plain_tiles.in_use);
    plain_tiles = {};
  }
  static bool has(uint32_t tile) { return plain_tiles.in_use && plain_tiles.config.rows[tile] > 0; }

  template <uint32_t kTile>
  static void zero() {
    misused_if(!has(kTile));
    __builtin_memset(plain_tiles.bytes[kTile], 0, sizeof plain_tiles.bytes[kTile]);
  }
  template <uint32_t kTile>
  static void load(const void* from, size_t stride) {
    zero<kTile>();
    for (uint32_t row = 0; row < plain_tiles.config.rows[kTile]; ++row)
      __builtin_memcpy(plain_tiles.bytes[kTile][row], static_cast<const char*>(from) + row * stride,
                       plain_tiles.config.row_bytes[kTile]);
  }
  template <uint32_t kTile>
  static void store(void* to, size_t stride) {
    misused_if(!has(kTile));
    for (uint32_t row = 0; row < plain_tiles.config.rows[kTile]; ++row)
      __builtin_memcpy(static_cast<char*>(to) + row * stride, plain_tiles.bytes[kTile][row],
                       plain_tiles.config.row_bytes[kTile]);
  }
  template <uint32_t kSum, uint32_t kX, uint32_t kW>
  static void dot() {
    const TileConfig& c = plain_tiles.config;
    misused_if(!has(kSum) || !has(kX) || !has(kW) || kSum == kX || kSum == kW || kX == kW);
    misused_if(c.row_bytes[kSum] % 4 != 0 || c.row_bytes[kX] % 4 != 0 || c.row_bytes[kW] % 4 != 0);
    misused_if(c.rows[kSum] != c.rows[kX] || c.row_bytes[kSum] != c.row_bytes[kW] ||
               c.row_bytes[kX] / 4 != c.rows[kW]);
    for (uint32_t m = 0; m < c.rows[kSum]; ++m)
      for (uint32_t k = 0; k < c.row_bytes[kX] / 4u; ++k)
        for (uint32_t n = 0; n < c.row_bytes[kSum] / 4u; ++n) {
          uint32_t sum;  // it wraps
          __builtin_memcpy(&sum, &plain_tiles.bytes[kSum][m][4 * n], 4);
          for (uint32_t i = 0; i < 4; ++i)
            sum += static_cast<uint32_t>(int32_t{plain_tiles.bytes[kX][m][4 * k + i]} *
                                         int32_t{plain_tiles.bytes[kW][k][4 * n + i]});
          __builtin_memcpy(&plain_tiles.bytes[kSum][m][4 * n], &sum, 4);
        }
  }
};
