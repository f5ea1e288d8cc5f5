#include "xfer/staging/path_cost.h"

#include <algorithm>
#include <bit>

namespace mc::xfer {
namespace {
constexpr double kNewShare = 0.25;  // of the latest sample in the average
}

size_t PathCostModel::size_of(uint64_t bytes) {
  const auto width = static_cast<size_t>(std::bit_width(bytes >> 10));
  return std::min(width / 2, kSizes - 1);
}

uint32_t PathCostModel::choose(uint64_t bytes, uint32_t usable) {
  if ((usable & ~excluded_) != 0) usable &= ~excluded_;
  const size_t size = size_of(bytes);
  uint32_t best = kPaths;
  for (uint32_t path = 0; path < kPaths; ++path) {
    if ((usable >> path & 1) == 0) continue;
    const double cost = costs_[path][size].ns_per_byte;
    if (cost == 0) return path;
    if (best == kPaths || cost < costs_[best][size].ns_per_byte) best = path;
  }
  if (++choices_ % kProbeEvery != 0) return best;
  for (uint32_t i = 0; i < kPaths; ++i) {  // the others, in turn
    probed_ = (probed_ + 1) % kPaths;
    if (probed_ != best && (usable >> probed_ & 1) != 0) return probed_;
  }
  return best;
}

void PathCostModel::record(uint32_t path, uint64_t bytes, Duration time) {
  if (bytes == 0) return;
  const double sample =
      std::max(1.0, static_cast<double>(time.count())) / static_cast<double>(bytes);
  double& cost = costs_[path][size_of(bytes)].ns_per_byte;
  cost = cost == 0 ? sample : cost + kNewShare * (sample - cost);
}

}  // namespace mc::xfer
