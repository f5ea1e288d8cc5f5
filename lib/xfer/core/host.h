// Identifies this host and checks whether a process of it is alive.
//
// Thread: any.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/time.h"
#include "io/fd.h"

namespace mc::xfer {

// Equal for processes that can share memory and see each other's process ids: the kernel's boot id
// and the pid namespace.
std::string host_id();
// Bytes that can be allocated before the kernel kills a process: of the machine, or of this control
// group if its limit is lower. An estimate that ages in minutes; UINT64_MAX when unknown.
uint64_t free_memory();
// Opens a descriptor of the process, which a reused pid does not mislead. Empty where the kernel
// refuses.
io::Fd pid_fd(pid_t pid);
bool process_alive(const io::Fd& pid);
// Skips the system call if the process was alive less than kAliveFor ago; `seen` keeps the time.
inline constexpr Duration kAliveFor = std::chrono::milliseconds(1);
bool alive_of_late(const io::Fd& pid, std::atomic<Time>& seen, Time now);

}  // namespace mc::xfer
