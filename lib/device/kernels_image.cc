#include "device/kernels/copy_kernels.h"

#ifdef MC_KERNELS_FATBIN  // a file that CMake has nvcc write
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "mc_kernels_begin:\n"
    ".incbin \"" MC_KERNELS_FATBIN
    "\"\n"
    "mc_kernels_end:\n"
    ".popsection\n");
extern "C" const unsigned char mc_kernels_begin[], mc_kernels_end[];

const void* mc_kernels_image(size_t* bytes) {
  *bytes = static_cast<size_t>(mc_kernels_end - mc_kernels_begin);
  return mc_kernels_begin;
}
const char* mc_kernels_architectures() { return MC_KERNELS_ARCHITECTURES; }
#else
const void* mc_kernels_image(size_t* bytes) {
  *bytes = 0;
  return nullptr;
}
const char* mc_kernels_architectures() { return ""; }
#endif
