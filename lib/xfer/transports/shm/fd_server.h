// Passes the memfds of engine-owned memory to processes of the same user. It listens on an
// abstract unix socket and checks SO_PEERCRED. A peer without write rights gets a read-only
// descriptor.
//
// Thread: one of its own, which its destructor joins.
#pragma once
#include <memory>
#include <string>
#include <thread>

#include "io/fd.h"
#include "xfer/memory/registry.h"

namespace mc::xfer {

class FdServer {
 public:
  static Result<std::unique_ptr<FdServer>> open(const Registry& registry);
  ~FdServer();
  const std::string& name() const { return name_; }  // without the leading NUL

 private:
  explicit FdServer(const Registry& registry) : registry_(registry) {}
  void run();
  void answer(int connection);

  const Registry& registry_;
  std::string name_;
  io::Fd listener_, stop_;
  std::thread thread_;
};

// Asks such a server. Errors: kDenied (another user), kNotFound (no such id), kUnavailable.
struct ReceivedFd {
  io::Fd fd;
  uint64_t bytes = 0;
  bool writable = false;
  bool named = false;  // a file that cannot be sealed: its owner vouches for its size
};
Result<ReceivedFd> fetch_fd(const std::string& name, uint32_t shm_id);

}  // namespace mc::xfer
