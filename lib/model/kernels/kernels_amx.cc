// Only the products of many rows with blocks of integers: the other kernels are those of AVX-512.
#if defined(__x86_64__)
#include "model/kernels/kernels_x86.h"
#include "model/kernels/scratch.h"

MC_TARGET_BEGIN("avx512f,avx512dq,avx512bw,avx512vnni,fma,amx-tile,amx-int8")

namespace mc::model::amx {
namespace {

#include "model/kernels/kernels_lanes512.h"

#include "model/kernels/block_words512.h"

#include "model/kernels/block_tiles_body.h"

// What g++ 12 makes of the intrinsics does not say that memory is read.
[[gnu::always_inline]] inline void memory_is_written() { asm("" ::: "memory"); }

struct Tiles {
  static void configure(const TileConfig& config) {
    memory_is_written();
    _tile_loadconfig(&config);
  }
  static void release() { _tile_release(); }

  template <uint32_t kTile>
  [[gnu::always_inline]] static void zero() {
    static_assert(kTile < 4);
    if constexpr (kTile == 0) _tile_zero(0);
    if constexpr (kTile == 1) _tile_zero(1);
    if constexpr (kTile == 2) _tile_zero(2);
    if constexpr (kTile == 3) _tile_zero(3);
  }
  template <uint32_t kTile>
  [[gnu::always_inline]] static void load(const void* from, size_t stride) {
    static_assert(kTile >= 4 && kTile < 8);
    memory_is_written();
    if constexpr (kTile == 4) _tile_loadd(4, from, stride);
    if constexpr (kTile == 5) _tile_loadd(5, from, stride);
    if constexpr (kTile == 6) _tile_loadd(6, from, stride);
    if constexpr (kTile == 7) _tile_loadd(7, from, stride);
  }
  template <uint32_t kTile>
  [[gnu::always_inline]] static void store(void* to, size_t stride) {
    static_assert(kTile < 4);
    if constexpr (kTile == 0) _tile_stored(0, to, stride);
    if constexpr (kTile == 1) _tile_stored(1, to, stride);
    if constexpr (kTile == 2) _tile_stored(2, to, stride);
    if constexpr (kTile == 3) _tile_stored(3, to, stride);
  }
  template <uint32_t kSum, uint32_t kX, uint32_t kW>
  [[gnu::always_inline]] static void dot() {
    static_assert(kX == 4 + kSum % 2 && kW == 6 + kSum % 2);
    if constexpr (kSum == 0) _tile_dpbssd(0, 4, 6);
    if constexpr (kSum == 1) _tile_dpbssd(1, 5, 7);
    if constexpr (kSum == 2) _tile_dpbssd(2, 4, 6);
    if constexpr (kSum == 3) _tile_dpbssd(3, 5, 7);
  }
};

}  // namespace

const BlockKernels kBlockKernels{round_for_tiles, multiply_on_tiles<Tiles>, kTileRows};

}  // namespace mc::model::amx

MC_TARGET_END
#endif
