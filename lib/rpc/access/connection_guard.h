// Bounds what the peers of a listening ZeroMQ socket can take of this process. libzmq reads a
// message of any number of frames into memory before it hands out a byte of it, keeps connections
// that never send one, and accepts without rest when no descriptor is free. The guard
// compares what arrived on each connection with what the socket's owner was given, and ends
// - a connection that holds more than `undelivered_max` bytes, or whose frames take many times
//   their bytes: this process grew while it held them, twice, and its owner took all messages that
//   were whole between the two (growth alone may be the owner's own),
// - those that hold most, while all together hold more than `total_max`, or take many times that,
// - the oldest one whose handshake is not done, while there are more than `handshakes_max`,
// - the oldest one that sent no message yet, while there are more than `silent_max`,
// - the newest one, while there are more than `connections_max` or no descriptor is free.
//
// Thread: it has its own. While nothing arrives it waits, and looks at all connections once a
// second; while something does, at those connections every 10 ms. delivered() and refuse() belong
// to the socket's thread, and so does the destructor, before the socket's end.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "io/fd.h"
#include "rpc/access/held_growth.h"

namespace mc::rpc {

class ConnectionGuard {
 public:
  struct Limits {
    size_t handshakes_max, silent_max, connections_max;
    uint64_t undelivered_max = 32 * kMiB;  // of a connection; a message has 16 MiB at most
    uint64_t total_max = 256 * kMiB;       // of all connections
    bool senders = true;                   // peers send messages; else `silent_max` does not count
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
  HeldGrowth& growth() { return growth_; }  // the owner says there when nothing was left
  void count(Metrics& metrics);             // the connections that it ends
  struct Facts {
    std::atomic<int> listener{-1};  // libzmq's descriptor; -1: not known yet
    std::atomic<size_t> connections{0};
    std::atomic<Counter*> ended{nullptr};
  };
  Facts facts;

 private:
  enum State : uint8_t { kHandshake, kSilent, kSends };
  struct Connection {
    uint64_t cookie = 0;  // the kernel's, of the TCP socket: a number of a descriptor is used again
    uint64_t order = 0;   // of arrival
    uint64_t received = 0, delivered = 0, held = 0;
    HeldGrowth::Since since = {};
    State state = kHandshake;
  };
  struct Delivery {
    uint64_t bytes = 0;
    bool refused = false;
  };
  using Connections = std::unordered_map<int, Connection>;
  using Deliveries = std::unordered_map<int, Delivery>;
  ConnectionGuard(void* socket, void* monitor, const Limits& limits);
  void run();
  bool take_events();
  void accepted(int fd);
  void make_room();
  void wake();
  void take(const Deliveries& deliveries);
  void look();
  bool sample(int fd, Connection& c, uint64_t memory);
  void judge(int fd, uint64_t memory);
  void judge_all(uint64_t memory);
  void enforce();
  void end_largest(const char* why);
  bool end_oldest(State state, const char* why);
  void set_state(int fd, Connection& c, State state);
  void forget(int fd);
  void end(int fd, const std::string& why);

  void* const socket_;
  void* const monitor_;
  const Limits limits_;
  Mutex mutex_;
  Deliveries deliveries_ MC_GUARDED_BY(mutex_);  // since the last look
  // The guard's thread alone:
  Connections connections_;
  std::map<uint64_t, int> waiting_[2];  // those in kHandshake and in kSilent, by order
  std::set<int> active_;                // on which something arrived; the others are in epoll_
  uint64_t next_ = 0, held_ = 0;
  HeldGrowth growth_;
  const io::Fd epoll_, statm_;
  const io::Fd refused_;          // written by refuse()
  const io::Fd nothing_, spare_;  // to end connections with when no descriptor can be had
  io::Fd reserve_;  // released so that libzmq can accept, and the guard end, who waits
  std::thread thread_;
};

// Control connections that were ended for what they held.
Counter& ended_connections(Metrics& metrics);

}  // namespace mc::rpc
