#include "model/kernels/kernels.h"

#include "model/kernels/kernel_dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mc::model {
#if defined(__x86_64__)
namespace {

// Whether the CPU has AMX for integers, and the system lets this process use it: Linux wants to be
// asked once, by arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
bool tiles_permitted() {
  constexpr unsigned kTiles = 1u << 24, kIntegers = 1u << 25;  // of leaf 7, edx
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kTiles) == 0 || (d & kIntegers) == 0) return false;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Those of AVX512_BF16, with products of quantized weights on tiles.
const Kernels& kernels_with_tiles() {
  static const Kernels set = [] {
    Kernels k = avx512bf16::kKernels;
    k.name = "amx";
    k.blocks = &amx::kBlockKernels;
    return k;
  }();
  return set;
}

}  // namespace
#endif

std::vector<const Kernels*> kernels_here() {
  std::vector<const Kernels*> sets;
#if defined(__x86_64__)
  // Processors with AVX2 have F16C, which clang 14 cannot ask for.
  const bool with_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool vnni = __builtin_cpu_supports("avx512vnni");
  if (with_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    const bool pairs = vnni && __builtin_cpu_supports("avx512bf16");
    static const bool tiles = tiles_permitted();
    if (pairs) sets.push_back(&avx512bf16::kKernels);
    // Behind: on the one CPU measured they are as fast as VNNI at most (docs/results.md).
    if (pairs && tiles) sets.push_back(&kernels_with_tiles());
    sets.push_back(vnni ? &avx512::kKernels : &avx512::kKernelsOfFloats);
  }
  if (with_avx2) sets.push_back(&avx2::kKernels);
#endif
  sets.push_back(&plain::kKernels);
  return sets;
}

const Kernels* kernels_named(std::string_view name) {
  for (const Kernels* set : kernels_here())
    if (name == "auto" || name == set->name) return set;
  return nullptr;
}

}  // namespace mc::model
