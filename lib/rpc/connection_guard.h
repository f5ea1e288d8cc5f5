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
// second; while something does, at those connections every 10 ms. delivered(), drained() and
// refuse() belong to the socket's thread, and so does the destructor, before the socket's end.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  // `ask` has the owner receive until nothing is left, soon; false: it cannot take the question
  // now. It is called on the guard's thread. Without it growth is laid on a connection at once.
  void on_doubt(std::function<bool()> ask);
  void drained() { drains_.fetch_add(1, std::memory_order_release); }  // nothing was left
  void count(Metrics& metrics);  // the connections that it ends

 private:
  enum State : uint8_t { kHandshake, kSilent, kSends };
  // Growth of the process while bytes are held: whose is it?
  struct Growth {
    uint64_t memory = 0;  // of the process, when little was held; 0: to be set
    uint64_t answer = 0;  // the number of drains after which the question is answered; 0: not asked
    bool again = false;   // the owner answered, and memory is that of then
  };
  struct Connection {
    uint64_t cookie = 0;  // the kernel's, of the TCP socket: a number of a descriptor is used again
    uint64_t order = 0;   // of arrival
    uint64_t received = 0, delivered = 0, held = 0;
    Growth growth = {};
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
  bool grew(Growth& growth, uint64_t memory, uint64_t most);
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
  std::atomic<Counter*> counter_{nullptr};
  Mutex mutex_;
  Deliveries deliveries_ MC_GUARDED_BY(mutex_);  // since the last look
  std::function<bool()> ask_ MC_GUARDED_BY(mutex_);
  std::atomic<uint64_t> drains_{0};
  // The guard's thread alone:
  Connections connections_;
  std::map<uint64_t, int> waiting_[2];  // those in kHandshake and in kSilent, by order
  std::set<int> active_;                // on which something arrived; the others are in epoll_
  uint64_t next_ = 0, held_ = 0;
  Growth growth_;  // while all connections together hold much
  uint64_t drains_seen_ = 0;
  const io::Fd epoll_, statm_;
  const io::Fd refused_;          // written by refuse()
  const io::Fd nothing_, spare_;  // to end connections with when no descriptor can be had
  io::Fd reserve_;  // released so that libzmq can accept, and the guard end, who waits
  std::thread thread_;
};

}  // namespace mc::rpc
