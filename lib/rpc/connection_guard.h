// Bounds what the peers of a listening ZeroMQ socket can take of this process. libzmq reads a
// message of any number of frames into memory before it gives a byte of it to anybody, and it keeps
// a connection that never greets. The guard compares what the kernel received on each connection
// with what the socket's owner was given, and ends a connection
// - that holds more than `undelivered_max` bytes,
// - that holds most, while all together hold more than `total_max`,
// - that waited longest to give its first message, while more than `unproven_max` wait for theirs,
// - that came last, while more than `connections_max` are open.
//
// Thread: it has its own, which looks at all connections every 20 ms while there are any.
// delivered() and refuse() belong to the socket's thread, and so does the destructor, before the
// socket's end.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "io/fd.h"

namespace mc::rpc {

class ConnectionGuard {
 public:
  struct Limits {
    size_t unproven_max, connections_max;
    uint64_t undelivered_max = 20 * kMiB;  // of a connection; a message has 16 MiB at most
    uint64_t total_max = 256 * kMiB;       // of all connections
    bool must_prove = true;  // peers send messages; else `unproven_max` does not count
  };
  // What fits into the open files that this process may have.
  static Limits limits();

  // Before the socket is bound. Errors: kInternal when it cannot be watched.
  static Result<std::unique_ptr<ConnectionGuard>> open(void* context, void* socket,
                                                       const Limits& limits);
  ~ConnectionGuard();
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  // The owner was given a message of so many bytes by the connection `fd` (ZMQ_SRCFD).
  void delivered(int fd, size_t bytes);
  // The connection broke the protocol: it is ended.
  void refuse(int fd);
  void count(Counter& closed) { counter_.store(&closed); }  // of connections ended
  size_t open_connections() const { return open_.load(); }

 private:
  struct Connection {
    uint64_t cookie = 0;  // the kernel's, of the TCP socket: a number of a descriptor is used again
    uint64_t order = 0;   // of arrival
    uint64_t received = 0, delivered = 0;
    bool proven = false;
    uint64_t held() const { return received > delivered ? received - delivered : 0; }
  };
  struct Delivery {
    uint64_t bytes = 0;
    bool refused = false;
  };
  using Connections = std::map<int, Connection>;
  ConnectionGuard(void* socket, void* monitor, const Limits& limits);
  void run();
  bool take_events();
  void look();
  void sample(Connections::iterator at);
  void end(Connections::iterator at, const std::string& why);

  void* const socket_;
  void* const monitor_;
  const Limits limits_;
  std::atomic<Counter*> counter_{nullptr};
  std::atomic<size_t> open_{0};
  Mutex mutex_;
  std::unordered_map<int, Delivery> deliveries_ MC_GUARDED_BY(mutex_);  // since the last look
  // The guard's thread alone:
  Connections connections_;
  uint64_t next_ = 0;
  const io::Fd nothing_, spare_;  // a descriptor to end one with, when none can be had
  std::thread thread_;
};

}  // namespace mc::rpc
