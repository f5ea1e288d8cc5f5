// Describes rails: what each connects, and how it does.
//
// Thread: values.
#pragma once
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
  std::string local, remote;         // NIC names or addresses, as shown to people
  int numa = -1;                     // NUMA node of the local NIC; -1: unknown
  bool mapped = true;                // in the rail map; others serve retries only
  std::vector<uint8_t> gpu_tiers{};  // of the local NIC, from each GPU (NicTiers); empty: unknown
};

// Of a rail's local NIC as seen from memory. From a GPU: what topo/model/tiers.h says. Else by
// their NUMA nodes: 1 its own, 3 any other; 1 where the kernel does not tell, for then nothing
// speaks against it.
inline uint32_t tier(const RailInfo& rail, const MemoryLocation& memory) {
  const auto gpu = static_cast<size_t>(memory.gpu);
  if (memory.gpu >= 0 && gpu < rail.gpu_tiers.size() && rail.gpu_tiers[gpu] > 0)
    return rail.gpu_tiers[gpu];
  return rail.numa < 0 || memory.node < 0 || rail.numa == memory.node ? 1 : 3;
}

struct RailView {  // for `paths`, metrics, the log
  RailInfo info;
  RailState state = RailState::kHealthy;
  uint32_t tier = 1;     // as seen from the memory that was asked for
  double bandwidth = 0;  // bytes a second; 0: nothing learned yet
  Duration latency{};
  uint64_t inflight = 0, window = 0, slices = 0, bytes = 0, errors = 0, hedged = 0;
};

}  // namespace mc::xfer
