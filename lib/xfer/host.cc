#include "xfer/host.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/file.h"

namespace mc::xfer {

std::string host_id() {
  std::string boot = io::read_file("/proc/sys/kernel/random/boot_id").value_or("unknown-boot\n");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  struct stat ns {};
  ::stat("/proc/self/ns/pid", &ns);
  return boot + "/" + std::to_string(ns.st_ino);
}

io::Fd pid_fd(pid_t pid) { return io::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

bool process_alive(const io::Fd& pid) {
  if (!pid) return true;  // unknown: the transfer itself will tell
  pollfd p{pid.get(), POLLIN, 0};
  return ::poll(&p, 1, 0) == 0;
}

}  // namespace mc::xfer
