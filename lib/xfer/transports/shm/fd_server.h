// Passes the memfds of engine-owned memory to processes of the same user. It listens on an
// abstract unix socket and checks SO_PEERCRED. A peer without write rights gets a read-only
// descriptor. Peers do not wait for each other: up to kPendingMax that have not asked yet are kept,
// for kPeerWait each, and the oldest makes room.
//
// Thread: one of its own, which its destructor joins.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/time.h"
#include "io/fd.h"
#include "xfer/memory/registry.h"

namespace mc::xfer {

class FdServer {
 public:
  static constexpr size_t kPendingMax = 64;
  static constexpr Duration kPeerWait = std::chrono::seconds(2);

  static Result<std::unique_ptr<FdServer>> open(const Registry& registry, const Clock& clock);
  ~FdServer();
  const std::string& name() const { return name_; }  // without the leading NUL

 private:
  struct Pending {
    io::Fd fd;  // empty: answered, or gone
    Time since;
  };
  FdServer(const Registry& registry, const Clock& clock) : registry_(registry), clock_(clock) {}
  void run();
  void turn();
  int wait_ms(Time now) const;
  void accept_some();
  bool out_of_files(int error);
  void answer(Pending& peer);

  const Registry& registry_;
  const Clock& clock_;
  std::string name_;
  io::Fd listener_, stop_;
  std::atomic<bool> stopping_{false};
  std::vector<Pending> pending_;  // of the thread; the oldest first
  Time rest_until_{};
  std::thread thread_;
};

// Asks such a server. Errors: kDenied (another user), kNotFound (no such id), kBusy (it has no file
// or no place for us now), kTimeout (no answer), kUnavailable.
struct ReceivedFd {
  io::Fd fd;
  uint64_t bytes = 0;
  bool writable = false;
  bool named = false;  // a file that cannot be sealed: it may be truncated
};
Result<ReceivedFd> fetch_fd(const std::string& name, uint32_t shm_id,
                            const std::function<bool()>& given_up = {});
// Whether such a server of that process, of this user, is there: descriptors can name any pid.
bool listens_at(const std::string& name, uint32_t pid);

}  // namespace mc::xfer
