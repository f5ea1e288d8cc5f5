// Declares the kernels of each instruction set, one file each.
#pragma once
#include "model/kernels/kernels.h"

namespace mc::model {

namespace plain {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
extern const BlockKernels kBlockKernels;
}  // namespace avx2
namespace avx512vnni {
extern const BlockKernels kBlockKernels;
}
namespace avx512 {
extern const Kernels kKernels, kKernelsOfFloats;
}
namespace avx512bf16 {
extern const Kernels kKernels;
}
namespace amx {
extern const BlockKernels kBlockKernels;
}
#endif

}  // namespace mc::model
