// Connections whose last answer is written, though their client sends on.
//
// A close with unread bytes of the request would reset the connection, and the client might lose
// the answer. So the write side ends first, and the rest of the request is read and dropped: to the
// end of the body, where that is known, and as long as bytes come, but not for ever. Who sends on
// without a look at the answer loses it.
//
// Thread: the event thread.
#pragma once
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <list>
#include <optional>
#include <utility>

#include "base/time.h"

namespace mc::http {

inline bool bytes_wait(int fd) {  // in its socket
  int bytes = 0;
  return ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

class Lingering {
 public:
  static constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();
  struct Limits {
    Duration pause, time;  // between two pieces of a rest, and of all of it
    uint64_t bytes = 0;
    size_t connections = 1;  // that linger at a time; the oldest gives way
  };
  // A connection's; the owner calls ended() before it goes.
  struct Rest {
    uint64_t most = 0;  // bytes; 0: the request was read whole
    void* connection = nullptr;

   private:
    friend class Lingering;
    Time end{};            // when it is closed at the latest
    uint64_t dropped = 0;  // bytes
    bool lingers = false;
    std::list<Rest*>::iterator at{};
  };

  explicit Lingering(const Limits& limits) : limits_(limits) {}
  // Where all was read the connection may close at once. `input`: bytes read, and not looked at.
  static bool is_due(const Rest& rest, int fd, size_t input) {
    return rest.most > 0 || input > 0 || bytes_wait(fd);
  }
  // Ends the write side. Returns: who gives way, and is to be closed; nullptr: nobody.
  Rest* begin(Rest& rest, int fd, Time now) {
    if (rest.most == 0) rest.most = kUnknown;  // requests that nobody reads any more
    rest.at = all_.insert(all_.end(), &rest);
    rest.lingers = true;
    rest.end = now + limits_.time;
    shutdown(fd, SHUT_WR);
    return all_.size() > std::max<size_t>(1, limits_.connections) ? all_.front() : nullptr;
  }
  // So many bytes were dropped. Returns: how long to wait for more; nothing: it is to be closed.
  std::optional<Duration> dropped(Rest& rest, int fd, size_t bytes, Time now) const {
    rest.dropped += bytes;
    const Duration left = rest.end - now;
    const bool whole = rest.dropped >= rest.most && !bytes_wait(fd);
    if (whole || rest.dropped > limits_.bytes || left <= Duration::zero()) return std::nullopt;
    return std::min(limits_.pause, left);
  }
  void ended(Rest& rest) {
    if (std::exchange(rest.lingers, false)) all_.erase(rest.at);
  }

 private:
  const Limits limits_;
  std::list<Rest*> all_;  // the oldest first
};

}  // namespace mc::http
