// Reads the machine's clocks of whole seconds: the wall clock, which people and NTP set, and the
// time since the boot, which counts on.
//
// Thread: any.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace mc::store {

struct HostTimes {
  uint64_t wall_s = 0;
  uint64_t boot_s = 0;  // since the machine's boot, suspended time included
  std::string boot;     // id of that boot, as the kernel prints it; empty: unknown
};
HostTimes host_times();
using HostClock = std::function<HostTimes()>;

}  // namespace mc::store
