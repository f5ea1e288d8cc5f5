// Gather and scatter: thousands of blocks, or rows at even distances, moved by one launch. Each
// group of threads moves a tile of one block; ends may lie in this device, a peer, or pinned host
// memory.
#include "device/kernels/copy_kernels.h"

namespace {

// In the widest words that both ends are aligned for. Bytes are used once: no cache need keep them.
template <class Word>
__device__ void copy_words(char* to, const char* from, uint64_t bytes) {
  auto* const t = reinterpret_cast<Word*>(to);
  auto* const f = reinterpret_cast<const Word*>(from);
  const uint64_t n = bytes / sizeof(Word);
  uint64_t i = threadIdx.x;
  for (; i + 3 * MC_COPY_THREADS < n; i += 4 * MC_COPY_THREADS) {
    Word held[4];
    for (int k = 0; k < 4; ++k) held[k] = __ldcs(f + i + k * MC_COPY_THREADS);
    for (int k = 0; k < 4; ++k) __stcs(t + i + k * MC_COPY_THREADS, held[k]);
  }
  for (; i < n; i += MC_COPY_THREADS) __stcs(t + i, __ldcs(f + i));
}

__device__ void copy_tile(char* to, const char* from, uint64_t bytes) {
  const uint64_t begin = static_cast<uint64_t>(blockIdx.y) * MC_COPY_TILE;
  if (begin >= bytes) return;
  const uint64_t n = bytes - begin < MC_COPY_TILE ? bytes - begin : MC_COPY_TILE;
  to += begin;
  from += begin;
  const uint64_t together = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | n;
  if (together % 16 == 0)
    copy_words<uint4>(to, from, n);
  else if (together % 4 == 0)
    copy_words<unsigned>(to, from, n);
  else
    copy_words<unsigned char>(to, from, n);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MC_COPY_THREADS)
    mc_copy_blocks(const mc_copy_block* list) {
  const mc_copy_block block = list[blockIdx.x];
  copy_tile(reinterpret_cast<char*>(block.to), reinterpret_cast<const char*>(block.from),
            block.bytes);
}

extern "C" __global__ void __launch_bounds__(MC_COPY_THREADS)
    mc_copy_rows(char* to, const char* from, uint64_t to_stride, uint64_t from_stride,
                 uint64_t bytes) {
  copy_tile(to + blockIdx.x * to_stride, from + blockIdx.x * from_stride, bytes);
}
