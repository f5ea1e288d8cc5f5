#include "device/kernels_on_host.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "device/kernels/model_kernels.h"

namespace mc::device {
namespace on_host {
namespace {

thread_local Grid blockIdx, gridDim;  // as CUDA names them

#include "device/kernels/attention.cu"
#include "device/kernels/attention_prompt.cu"
#include "device/kernels/attention_tensor.cu"
#include "device/kernels/multiply.cu"
#include "device/kernels/multiply_tensor.cu"
#include "device/kernels/rows.cu"
#include "device/kernels/sample.cu"

struct Runner {
  void (*run)(Grid, void* const*);
  size_t arguments;
};

template <class... A, size_t... I>
void call(void (*kernel)(A...), void* const* arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
void run(void (*kernel)(A...), Grid grid, void* const* arguments) {
  gridDim = grid;
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
        call(kernel, arguments, std::index_sequence_for<A...>());
}
template <class... A>
constexpr size_t count(void (*)(A...)) {
  return sizeof...(A);
}
template <auto kKernel>
void runner(Grid grid, void* const* arguments) {
  run(kKernel, grid, arguments);
}

#define MC_NAMED(kernel)                       \
  {                                            \
#kernel, { runner<kernel>, count(kernel) } \
  }
#define MC_EACH_FORMAT(kernel) \
  MC_NAMED(kernel##_f32), MC_NAMED(kernel##_f16), MC_NAMED(kernel##_bf16)
const std::map<std::string_view, Runner>& runners() {
  static const std::map<std::string_view, Runner> all{
      MC_EACH_FORMAT(mc_embed), MC_EACH_FORMAT(mc_normalize), MC_EACH_FORMAT(mc_multiply),
      MC_EACH_FORMAT(mc_store), MC_EACH_FORMAT(mc_attend),    MC_EACH_FORMAT(mc_gate),
      MC_NAMED(mc_tensor_f16),  MC_NAMED(mc_tensor_bf16),     MC_NAMED(mc_round_f16),
      MC_NAMED(mc_round_bf16),  MC_NAMED(mc_sample),          MC_NAMED(mc_flash_f16),
      MC_NAMED(mc_flash_bf16),  MC_NAMED(mc_combine),         MC_NAMED(mc_prompt_f16),
      MC_NAMED(mc_prompt_bf16)};
  return all;
}

}  // namespace
}  // namespace on_host

bool host_has_kernel(std::string_view name) { return on_host::runners().contains(name); }

size_t host_kernel_arguments(std::string_view name) {
  const auto it = on_host::runners().find(name);
  return it == on_host::runners().end() ? 0 : it->second.arguments;
}

bool run_kernel_on_host(std::string_view name, Grid grid, void* const* arguments) {
  const auto it = on_host::runners().find(name);
  if (it == on_host::runners().end()) return false;
  it->second.run(grid, arguments);
  return true;
}

}  // namespace mc::device
