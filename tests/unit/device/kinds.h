// The devices that the conformance suite runs over: the stand-in, the CUDA device over a driver in
// host memory, and over the real one where this machine has a device.
#pragma once
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "device/cuda.h"
#include "device/stand_in.h"
#include "tests/unit/device/fake_driver.h"

namespace mc::device {

inline const SteadyClock kClock;

template <class T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error().what));
  return std::move(*result);
}
inline void must(const Result<>& result) {
  REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error().what));
}

inline std::vector<std::string> kinds() {
  std::vector<std::string> names{"stand-in", "fake-cuda"};
  if (!find_cuda().devices.empty())
    names.push_back("cuda");
  else
    MESSAGE("without a device: ", find_cuda().why.what);
  return names;
}

inline DevicePtr open_kind(const std::string& kind, int ordinal = 0) {
  if (kind == "stand-in") return StandIn::make(kClock, {.ordinal = ordinal, .bytes = 256u << 20});
  if (kind == "cuda") return must(open_cuda(ordinal));
  return must(open_cuda(fake::driver(), ordinal, "an image"));
}

inline std::vector<std::byte> noise(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  Random random(seed);
  for (auto& b : out) b = static_cast<std::byte>(random.next());
  return out;
}

inline void put(Stream& stream, std::byte* to, std::span<const std::byte> from) {
  must(stream.copy(to, from.data(), from.size()));
  must(must(stream.record())->wait());
}
inline std::vector<std::byte> get(Stream& stream, const std::byte* from, size_t bytes) {
  std::vector<std::byte> out(bytes);
  must(stream.copy(out.data(), from, bytes));
  must(must(stream.record())->wait());
  return out;
}

}  // namespace mc::device
