#include "store/node/host_times.h"

#include <sys/sysinfo.h>

#include "base/time.h"
#include "io/file.h"

namespace mc::store {

HostTimes host_times() {
  static const std::string boot = io::read_file("/proc/sys/kernel/random/boot_id").value_or("");
  struct sysinfo machine {};
  (void)::sysinfo(&machine);
  return {static_cast<uint64_t>(wall_now_ns() / 1'000'000'000),
          static_cast<uint64_t>(machine.uptime), boot};
}

}  // namespace mc::store
