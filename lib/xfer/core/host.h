// Who and where this process is, and whether another still lives.
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

// The same for processes that can share memory and see each other's process ids: the kernel's boot
// id and the pid namespace.
std::string host_id();
// Bytes that may still be allocated before the kernel kills somebody: of the machine, or of this
// control group where it is given less. A guess by the minute; UINT64_MAX when unknown.
uint64_t free_memory();
// A descriptor of the process, to ask whether it lives without being fooled by a reused pid. Empty
// where the kernel refuses.
io::Fd pid_fd(pid_t pid);
bool process_alive(const io::Fd& pid);
// The same without a system call if it was alive less than kAliveFor ago; `seen` remembers when.
inline constexpr Duration kAliveFor = std::chrono::milliseconds(1);
bool alive_of_late(const io::Fd& pid, std::atomic<Time>& seen, Time now);

}  // namespace mc::xfer
