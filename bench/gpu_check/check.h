// Declares the checks and figures of gpu-check. The program needs a CUDA driver and nothing else,
// so that it can be carried to a machine with a GPU. It compares every path of lib/device with what
// the host computes, then prints figures.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/figure.h"
#include "device/device.h"

namespace mc::gpu_check {

struct Bench {
  device::DevicePtr device;
  const Clock& clock;
  bool quick = false;
  size_t turns() const { return quick ? 5 : 11; }
};

struct Case {
  const char* name;
  const char* what;
  std::function<Result<>(const Bench&)> run;  // kUnsupported: skipped, with the reason
};

std::vector<Case> copy_checks();   // contents against the host's
std::vector<Case> copy_figures();  // rates against the driver's own copies
// The kernels of the forward pass, against references on the host, and timed.
std::vector<Case> kernel_checks();
std::vector<Case> kernel_figures();
std::vector<Case> library_checks();
std::vector<Case> library_figures();
std::vector<Case> attention_checks();
std::vector<Case> attention_figures();
std::vector<Case> sampling_checks();
std::vector<Case> sampling_figures();
std::vector<Case> graph_checks();
std::vector<Case> graph_figures();

// The child of the check of memory shared between processes. It prints a handle of its memory on
// standard output, and exits when standard input closes.
int share_until_stdin_closes(const std::string& device);

// Runs what `submit` puts into the stream, and waits for it.
Result<> finish(device::Stream& stream, const std::function<Result<>()>& submit);
Result<> same(std::span<const std::byte> got, std::span<const std::byte> want, const char* what);
std::vector<std::byte> noise(size_t bytes, uint64_t seed);

}  // namespace mc::gpu_check
