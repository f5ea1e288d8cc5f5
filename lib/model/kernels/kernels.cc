#include "model/kernels/kernels.h"

#include "model/kernels/kernel_dispatch.h"

namespace mc::model {

std::vector<const Kernels*> kernels_here() {
  std::vector<const Kernels*> sets;
#if defined(__x86_64__)
  // Processors with AVX2 have F16C, which clang 14 cannot ask for.
  const bool with_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool vnni = __builtin_cpu_supports("avx512vnni");
  if (with_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    if (vnni && __builtin_cpu_supports("avx512bf16")) sets.push_back(&avx512bf16::kKernels);
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
