#include "xfer/core/host.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/units.h"
#include "io/file.h"

namespace mc::xfer {
namespace {

// Returns: the number after `name` in text such as "MemAvailable:   123 kB"; UINT64_MAX without it.
uint64_t number_after(const std::string& text, const std::string& name) {
  const size_t at = text.find(name);
  const size_t first = at == std::string::npos ? at : text.find_first_of("0123456789", at);
  if (first == std::string::npos) return UINT64_MAX;
  const size_t end = text.find_first_not_of("0123456789", first);
  return parse_uint(text.substr(first, end - first)).value_or(UINT64_MAX);
}

std::string contents(const std::string& path) { return io::read_file(path).value_or(""); }
std::string first_line(const std::string& path) {
  const std::string text = contents(path);
  return text.substr(0, text.find('\n'));
}

// Bytes that this control group (version 2) may still use; inactive page cache counts as free.
uint64_t free_of_group() {
  const std::string group = contents("/proc/self/cgroup");
  const size_t at = group.find("0::");
  if (at == std::string::npos) return UINT64_MAX;
  const std::string path =
      "/sys/fs/cgroup" + group.substr(at + 3, group.find('\n', at) - at - 3) + "/memory.";
  const uint64_t most = parse_uint(first_line(path + "max")).value_or(UINT64_MAX);
  if (most == UINT64_MAX) return most;  // "max", or no such file
  const uint64_t now = parse_uint(first_line(path + "current")).value_or(0);
  const uint64_t cache = number_after(contents(path + "stat"), "inactive_file ");
  const uint64_t used = cache < now ? now - cache : now;
  return used < most ? most - used : 0;
}

}  // namespace

uint64_t free_memory() {
  const uint64_t kilobytes = number_after(contents("/proc/meminfo"), "MemAvailable:");
  return std::min(kilobytes > UINT64_MAX / 1024 ? UINT64_MAX : kilobytes * 1024, free_of_group());
}

std::string host_id() {
  std::string boot = io::read_file("/proc/sys/kernel/random/boot_id").value_or("unknown-boot\n");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  struct stat ns {};
  ::stat("/proc/self/ns/pid", &ns);
  return boot + "/" + std::to_string(ns.st_ino);
}

io::Fd pid_fd(pid_t pid) { return io::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

bool process_alive(const io::Fd& pid) {
  if (!pid) return true;  // unknown: the transfer fails if it is dead
  pollfd p{pid.get(), POLLIN, 0};
  return ::poll(&p, 1, 0) == 0;
}

bool alive_of_late(const io::Fd& pid, std::atomic<Time>& seen, Time now) {
  const Time then = seen.load(std::memory_order_relaxed);
  if (then != Time{} && now - then < kAliveFor) return true;
  if (!process_alive(pid)) return false;
  seen.store(now, std::memory_order_relaxed);
  return true;
}

}  // namespace mc::xfer
