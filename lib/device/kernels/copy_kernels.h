// Declares the copy kernels (kernels/copy.cu) for the host: names, arguments, image. The driver
// loads the image. Plain C declarations, shared by nvcc and the host compiler.
//
// Thread: any.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MC_COPY_THREADS 256
#define MC_COPY_TILE 16384  // bytes that one group of threads moves

// mc_copy_blocks<<<(blocks, tiles of the largest), MC_COPY_THREADS>>>(list)
#define MC_COPY_BLOCKS "mc_copy_blocks"
struct mc_copy_block {
  uint64_t to, from, bytes;
};

// mc_copy_rows<<<(rows, tiles of a row), MC_COPY_THREADS>>>(to, from, to_stride, from_stride,
// bytes)
#define MC_COPY_ROWS "mc_copy_rows"

// The fatbin of all kernels, for cuModuleLoadData; null in a build without nvcc. And for which
// architectures it holds code: "sm_80 sm_90 compute_90".
#ifdef __cplusplus
extern "C" {
#endif
const void* mc_kernels_image(size_t* bytes);
const char* mc_kernels_architectures(void);
#ifdef __cplusplus
}
#endif
