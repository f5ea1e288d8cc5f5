// Describes rails: the NICs that each connects, its health and its rates.
//
// Thread: values.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "xfer/core/memory_location.h"

namespace mc::xfer {

using RailIndex = uint32_t;

enum class RailState : uint8_t { kHealthy, kSuspect, kSlow, kResting, kProbing };
const char* name(RailState state);

struct RailInfo {
  std::string local, remote;         // NIC names or addresses, for display
  int numa = -1;                     // NUMA node of the local NIC; -1: unknown
  bool mapped = true;                // in the rail map; others serve retries only
  std::vector<uint8_t> gpu_tiers{};  // of the local NIC, from each GPU (NicTiers); empty: unknown
  int remote_numa = -1;              // the same of the peer's NIC, on its machine
  std::vector<uint8_t> remote_gpu_tiers{};
};

// Returns: the tier of a NIC for memory of its machine. For a GPU's memory it is that of
// topo/model/tiers.h. For the host's it is 1 on the same NUMA node, 3 on another, and 1 if the
// kernel does not say.
inline uint32_t tier(int numa, const std::vector<uint8_t>& gpu_tiers,
                     const MemoryLocation& memory) {
  const auto gpu = static_cast<size_t>(memory.gpu);
  if (memory.gpu >= 0 && gpu < gpu_tiers.size() && gpu_tiers[gpu] > 0) return gpu_tiers[gpu];
  return numa < 0 || memory.node < 0 || numa == memory.node ? 1 : 3;
}
// Of a rail: that of the end that is farther from its memory.
inline uint32_t tier(const RailInfo& rail, const MemoryEnds& memory) {
  return std::max(tier(rail.numa, rail.gpu_tiers, memory.here),
                  tier(rail.remote_numa, rail.remote_gpu_tiers, memory.there));
}

struct RailView {  // for `paths`, metrics, the log
  RailInfo info;
  RailState state = RailState::kHealthy;
  uint32_t tier = 1;     // for the memory of the query
  double bandwidth = 0;  // bytes per second; 0: not measured yet
  Duration latency{};
  uint64_t inflight = 0, window = 0, slices = 0, bytes = 0, errors = 0, hedged = 0;
};

}  // namespace mc::xfer
