// Messages that travel with transfers: "these bytes are there, and here is what they are". The
// sender's half calls the peer's control address once the data has landed; the receiver's half
// keeps what came until it is taken, or hands it on.
//
// Thread: any. Bounded: a name of 255 bytes, a payload of 64 KiB, and in the inbox 4096 messages of
// 16 MiB altogether; a full inbox answers kBusy, and the sender's transfer says so.
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
  // From now on, and for what waits already. It may be called on several threads, and not block.
  void hand_to(Handler handler);

 private:
  Mutex mutex_;
  std::shared_ptr<const Handler> handler_ MC_GUARDED_BY(mutex_);
  std::deque<Notification> waiting_ MC_GUARDED_BY(mutex_);
  size_t bytes_ MC_GUARDED_BY(mutex_) = 0;
};

// Sends to any number of peers at a time; to one peer in the order of send(). Its thread, and a
// connection per peer, are made when first used.
class Notifier {
 public:
  using Done = std::function<void(const Result<>&)>;
  explicit Notifier(const Clock& clock);
  ~Notifier();
  // `done` is called once, on the notifier's thread (or at once, when it cannot be sent).
  void send(const std::string& control, Notify message, Duration budget, Done done);
  void stop();  // what is not answered fails as kUnavailable

 private:
  static constexpr size_t kClientsMax = 256;
  void call(uint64_t id, const std::string& control, const Notify& message, Duration budget);
  Result<rpc::Client*> client(const std::string& control);
  void finish(uint64_t id, const Result<>& outcome);

  io::Loop loop_;
  std::map<std::string, std::unique_ptr<rpc::Client>> clients_;  // of the loop's thread
  Mutex mutex_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ MC_GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, Done> waiting_ MC_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace mc::xfer
