// Runs the kernels of the forward pass (model_kernels.h) on the host. It is the same source,
// compiled as C++, group after group. The stand-in uses it, and tests that compare the kernels with
// lib/model.
//
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mc::device {

struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

bool host_has_kernel(std::string_view name);
size_t host_kernel_arguments(std::string_view name);  // how many it takes; 0: no such kernel
// `arguments` as the driver takes them: each points to a value of its type. Addresses are those of
// the host. false: no kernel of that name.
bool run_kernel_on_host(std::string_view name, Grid grid, void* const* arguments);

}  // namespace mc::device
