// Opens the NVIDIA GPUs of this machine through the CUDA driver. The driver is loaded on first use.
// Without a driver or a device, everything else works, and the reason is reported.
//
// Thread: any.
#pragma once
#include <string>
#include <vector>

#include "device/device.h"

namespace mc::device {

namespace driver {
struct Driver;
}
namespace cublaslt {
struct Library;
}

struct Found {
  std::string driver;         // "13.0": the newest CUDA that it knows; "": no driver
  std::vector<Info> devices;  // by ordinal
  Error why;                  // when there are none
};
// Whether the driver loads. It is not started: a process that starts it cannot use it in its
// children after a fork.
bool has_cuda_driver();
// Opens no device, and is the same for the life of the process.
const Found& find_cuda();
// "CUDA 13.0: 2 devices; kernels for sm_80 sm_90a", or why there is none: one line, for people.
std::string cuda_summary();
// Which kernels this build has: "kernels for sm_80 sm_90a", or that it has none.
std::string kernels_summary();

// The same object on each call while any copy of it lives. Errors: kNotFound: no device of that
// number; otherwise find_cuda().why.
Result<DevicePtr> open_cuda(int ordinal);

// The same with another driver, which outlives the device, and an image of the kernels (null:
// blocks and rows are copied one by one). `products` finds the library of matrix products, which
// lives as long as the program. The first product calls it; null: no library.
using FindProducts = const Result<cublaslt::Library>& (*)();
Found find_cuda(const driver::Driver& driver);
Result<DevicePtr> open_cuda(const driver::Driver& driver, int ordinal, const void* kernels,
                            FindProducts products = nullptr);

}  // namespace mc::device
