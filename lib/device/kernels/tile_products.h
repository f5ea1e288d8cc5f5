// Products of a warp's 16 rows, in registers, with a tile of kTileRows keys or values in shared
// memory, in fragments as of tensor.h. A tile has parts of 64 numbers of all rows, and each row of
// a part is 128 bytes: 8 pieces of 8 numbers, whose order differs by row, so that the same piece of
// 8 rows lies in all banks. wgmma reads that (its swizzle of 128 bytes) where the code is for
// sm_90a: four warps multiply at once, and each number is read once for all of them. Elsewhere each
// warp reads the tile as fragments (ldmatrix, mma). Both make the same bits, as far as it was
// tried.
//
// Threads: of a group of four warps, all. Between the copies that fill a tile and its products each
// thread waits for its own, then copies_visible(), then a barrier; another after the products.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once
#include "device/kernels/tensor.h"

namespace {

constexpr uint32_t kTileRows = 64, kTilePart = kTileRows * 64;
constexpr uint32_t kTileNumbers = (MC_TENSOR_DIM_MAX + 63) / 64 * kTilePart;
#define MC_TILE alignas(1024) uint16_t  // as the swizzle wants it

// Where a piece of a row begins.
MC_DEVICE uint32_t place_of(uint32_t row, uint32_t piece) {
  return piece / 8 * kTilePart + row * 64 + (piece ^ row) % 8 * 8;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A matrix whose rows are those of a tile's part from there on: in the swizzle of 128 bytes, 8 rows
// are 1024 bytes. One part is as wide as any product here, so the distance of parts is not read.
MC_DEVICE uint64_t matrix_at(const uint16_t* part) {
  const auto at = static_cast<uint64_t>(__cvta_generic_to_shared(part));
  return (at & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
MC_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MC_DEVICE void products_end() {
  asm volatile(
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;" ::
          : "memory");
}
MC_DEVICE void copies_visible() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define MC_FOUR(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define MC_SIXTEEN(c, i) MC_FOUR(c, i), MC_FOUR(c, i + 4), MC_FOUR(c, i + 8), MC_FOUR(c, i + 12)
// sums += a b, where b is 16 by 64 or 16 by 32; `turned`: its numbers of one k lie side by side.
#define MC_PRODUCTS(T, type)                                                                       \
  template <int turned>                                                                            \
  MC_DEVICE void product_64(T, float* c, const uint32_t* a, uint64_t b) {                          \
    asm volatile(                                                                                  \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"     \
        "%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, %37;"              \
        : MC_SIXTEEN(c, 0), MC_SIXTEEN(c, 16)                                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(turned));                        \
  }                                                                                                \
  template <int turned>                                                                            \
  MC_DEVICE void product_32(T, float* c, const uint32_t* a, uint64_t b) {                          \
    asm volatile(                                                                                  \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, " \
        "1, %21;"                                                                                  \
        : MC_SIXTEEN(c, 0)                                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(turned));                        \
  }
MC_PRODUCTS(Bf16, "bf16")
MC_PRODUCTS(F16, "f16")
#undef MC_PRODUCTS
#undef MC_SIXTEEN
#undef MC_FOUR

// scores = queries x keys, kSteps times 16 of the dim.
template <class T, int kSteps>
MC_DEVICE void multiply_keys(Own<float, kTileRows / 2>& scores, Own<uint32_t, kSteps * 4>& queries,
                             const uint16_t* keys) {
  MC_UNROLL
  for (uint32_t i = 0; i < kTileRows / 2; ++i) scores.of(0)[i] = 0;
  products_begin();
  MC_UNROLL
  for (int k = 0; k < kSteps; ++k)
    product_64<0>(T(), scores.of(0), queries.of(0) + k * 4,
                  matrix_at(keys + k / 4 * kTilePart + k % 4 * 16));
  products_end();
}

// sums += shares x values.
template <class T, int kSteps>
MC_DEVICE void add_products(Own<float, kSteps * 8>& sums, Own<uint32_t, kTileRows / 4>& shares,
                            const uint16_t* values) {
  products_begin();
  MC_UNROLL
  for (int k = 0; k < static_cast<int>(kTileRows) / 16; ++k) {
    const uint16_t* const rows = values + k * 16 * 64;
    MC_UNROLL
    for (int n = 0; n + 4 <= kSteps; n += 4)  // 64 of the dim
      product_64<1>(T(), sums.of(0) + n * 8, shares.of(0) + k * 4,
                    matrix_at(rows + n / 4 * kTilePart));
    if (kSteps % 4 != 0)
      product_32<1>(T(), sums.of(0) + kSteps / 4 * 32, shares.of(0) + k * 4,
                    matrix_at(rows + kSteps / 4 * kTilePart));
  }
  products_end();
}

#else

MC_DEVICE void copies_visible() {}

// Two fragments of B: 16 rows of a tile from `row` on are its columns, two pieces its k.
MC_DEVICE void fragments_of_rows(uint32_t* b, const uint16_t* tile, uint32_t row, uint32_t piece,
                                 uint32_t t) {
#ifdef __CUDACC__
  const uint16_t* const at = tile + place_of(row + t % 8 + t % 32 / 16 * 8, piece + t / 8 % 2);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))));
#else
  for (uint32_t i = 0; i < 4; ++i)
    b[i] = two(tile + place_of(row + i / 2 * 8 + t % 32 / 4, piece + i % 2) + t % 4 * 2);
#endif
}
// The same where the rows are its k, and two pieces its columns.
MC_DEVICE void fragments_of_columns(uint32_t* b, const uint16_t* tile, uint32_t row, uint32_t piece,
                                    uint32_t t) {
#ifdef __CUDACC__
  const uint16_t* const at = tile + place_of(row + t % 8 + t / 8 % 2 * 8, piece + t % 32 / 16);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))));
#else
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t k = row + t % 4 * 2 + i % 2 * 8, column = t % 32 / 4;
    b[i] = tile[place_of(k, piece + i / 2) + column] |
           static_cast<uint32_t>(tile[place_of(k + 1, piece + i / 2) + column]) << 16;
  }
#endif
}

template <class T, int kSteps>
MC_DEVICE void multiply_keys(Own<float, kTileRows / 2>& scores, Own<uint32_t, kSteps * 4>& queries,
                             const uint16_t* keys) {
  constexpr int kFragments = kTileRows / 8;
  Own<uint32_t, kFragments * 2> b;
  MC_EACH(t) {
    MC_UNROLL
    for (int i = 0; i < kFragments * 4; ++i) scores.of(t)[i] = 0;
  }
  MC_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    MC_EACH(t) {
      MC_UNROLL
      for (uint32_t n = 0; n < kTileRows / 16; ++n)
        fragments_of_rows(b.of(t) + n * 4, keys, n * 16, static_cast<uint32_t>(k) * 2, t);
    }
    multiply_fragments<T, 1, kFragments>(scores, queries, b, 0, k * 4);
  }
}

template <class T, int kSteps>
MC_DEVICE void add_products(Own<float, kSteps * 8>& sums, Own<uint32_t, kTileRows / 4>& shares,
                            const uint16_t* values) {
  Own<uint32_t, 4> b;
  MC_UNROLL
  for (int k = 0; k < static_cast<int>(kTileRows) / 16; ++k) MC_UNROLL
  for (int n = 0; n < kSteps; ++n) {
    MC_EACH(t) {
      fragments_of_columns(b.of(t), values, static_cast<uint32_t>(k) * 16,
                           static_cast<uint32_t>(n) * 2, t);
    }
    multiply_fragments<T, 1, 2>(sums, shares, b, n * 8, k * 4);
  }
}

#endif

}  // namespace
