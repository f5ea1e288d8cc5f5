// Sends and receives notifications: messages that follow the data of a transfer. `Notifier` calls
// the peer's control address once the data has landed. `Inbox` keeps what arrived until the
// application takes it, or passes it to a handler.
//
// Errors: kInvalid for a name over 255 bytes or a payload over 64 KiB; kBusy when the inbox is full
// (4096 messages, 16 MiB in all), which fails the sender's transfer.
// Thread: any.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "io/fd.h"
#include "io/loop.h"
#include "xfer/core/messages.h"
#include "xfer/core/request.h"

namespace mc::rpc {
class Client;
}

namespace mc::xfer {

inline constexpr size_t kNotificationNameMax = 255;
inline constexpr size_t kNotificationBytesMax = 64 * 1024;

Result<> check(const Notification& n);

class Inbox {
 public:
  static constexpr size_t kMessagesMax = 4096;
  static constexpr size_t kBytesMax = 16u << 20;
  using Handler = std::function<void(const Notification&)>;
  Result<> put(Notification n);
  std::vector<Notification> take(size_t max);
  // Returns: an eventfd that is readable while some wait, from the first call on.
  Result<int> fd();
  // Passes what waits, and all that arrives later, to `handler`. Several threads may call it at
  // once; it must not block.
  void hand_to(Handler handler);

 private:
  Mutex mutex_;
  std::shared_ptr<const Handler> handler_ MC_GUARDED_BY(mutex_);
  std::deque<Notification> waiting_ MC_GUARDED_BY(mutex_);
  size_t bytes_ MC_GUARDED_BY(mutex_) = 0;
  io::Fd event_ MC_GUARDED_BY(mutex_);
};

// Sends to many peers at once, and to one peer in the order of send(). It starts its thread, and
// connects to a peer, on first use.
class Notifier {
 public:
  using Done = std::function<void(const Result<>&)>;
  explicit Notifier(const Clock& clock);
  ~Notifier();
  // Calls `done` once: on its own thread, or immediately if it cannot send.
  void send(const std::string& control, Notify message, Duration budget, Done done);
  void stop();  // unanswered messages fail as kUnavailable

 private:
  static constexpr size_t kClientsMax = 256;
  void call(uint64_t id, const std::string& control, const Notify& message, Duration budget);
  Result<rpc::Client*> client(const std::string& control);
  void finish(uint64_t id, const Result<>& outcome);
  Result<> start() MC_REQUIRES(mutex_);

  io::Loop loop_;
  std::map<std::string, std::unique_ptr<rpc::Client>> clients_;  // of the loop's thread
  Mutex mutex_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ MC_GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, Done> waiting_ MC_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace mc::xfer
