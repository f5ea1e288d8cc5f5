// Launches the kernels of the forward pass by name and format.
//
// Thread: as Stream.
#pragma once
#include <array>
#include <string>

#include "device/device.h"
#include "device/kernels/model_kernels.h"
#include "model/files/dtype.h"

namespace mc::gpu {

inline std::string named(const char* kernel, model::DType type) {
  return std::string(kernel) + "_" + model::name(type);
}

struct Groups {
  size_t x = 1, y = 1, z = 1;
};

inline size_t over(size_t n, size_t part) { return (n + part - 1) / part; }

inline const float* floats(const std::byte* at) { return reinterpret_cast<const float*>(at); }
inline float* floats(std::byte* at) { return reinterpret_cast<float*>(at); }
inline const mc_row* row_list(const std::byte* at) { return reinterpret_cast<const mc_row*>(at); }
inline uint32_t narrow(uint64_t n) { return static_cast<uint32_t>(n); }

template <class... A>
Result<> launch(device::Stream& stream, const std::string& kernel, Groups groups, A... arguments) {
  const std::array<device::Argument, sizeof...(A)> list{device::Argument(arguments)...};
  return stream.launch({kernel.c_str(), static_cast<uint32_t>(groups.x),
                        static_cast<uint32_t>(groups.y), static_cast<uint32_t>(groups.z), list});
}

}  // namespace mc::gpu
