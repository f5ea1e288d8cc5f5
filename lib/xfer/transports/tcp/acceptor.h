// Accepts data connections and hears their hello. A peer that has not proved that it knows the
// secret costs a descriptor and some hundred bytes: it has no thread, one of few slots, and
// kHelloTime in all, however it spends it. When a newcomer needs a slot, the peer that has waited
// longest for its own hello goes, after a turn of kTurn; an address has half of the slots at most.
//
// Without a descriptor or memory for them, callers are refused, and the acceptor rests before it
// tries again.
//
// Thread: one of its own, which calls the owner; wake() from any.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "base/time.h"
#include "io/address.h"
#include "io/fd.h"
#include "xfer/transports/tcp/frame.h"

namespace mc::xfer::tcp {

// Counts connections that were refused. Unknown peers may come by the thousand: a log line a second
// speaks for all.
class Refusals {
 public:
  using Address = std::array<uint8_t, 16>;
  explicit Refusals(Counter& counter) : counter_(counter) {}
  void add(const Address& from, const std::string& why, Time now);

 private:
  Counter& counter_;
  uint64_t unlogged_ = 0;
  Time logged_{};
};

class Acceptor {
 public:
  struct Proven {
    io::Fd fd;
    Nonce nonce;
    uint64_t id;  // of its hello, which is to be answered
  };
  class Owner {
   public:
    virtual void take(Proven peer) = 0;
    virtual void reap() = 0;  // after wake(), and before connections are accepted

   protected:
    ~Owner() = default;
  };
  struct Limits {
    size_t unproven, proven;
  };
  // What fits into the open files that this process may have.
  static Limits limits();
  static constexpr size_t kListenersMax = 64, kUnprovenMax = 64, kProvenMax = 1024;
  static constexpr Duration kHelloTime = std::chrono::seconds(3);
  static constexpr Duration kTurn = std::chrono::milliseconds(10);
  static constexpr Duration kRest = std::chrono::milliseconds(100);

  Acceptor(std::string secret, const Clock& clock, Counter& refused, Owner& owner);
  ~Acceptor() { stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  // "host:port"; port 0: a free one. Errors: kInvalid (no such host), kUnavailable (taken).
  Result<> listen_on(const std::string& text);
  const std::vector<io::Address>& bound() const { return bound_; }
  Result<> start();
  void wake();
  void stop();  // joins

 private:
  using Address = Refusals::Address;
  static constexpr size_t kHelloBytes = sizeof(Header) + sizeof(HelloBody);
  struct Pending {
    io::Fd fd;  // empty: it has left
    Address from;
    Time since;
    Nonce nonce;
    std::array<std::byte, kHelloBytes> hello;
    size_t bytes = 0;  // of it
  };
  void run();
  void turn();
  int wait_ms(Time now, bool accepts) const;
  void expire(Time now);
  void drop_gone();
  Time accepts_from() const;
  const Pending* oldest_of_full_address() const;
  void accept_some(int listener);
  bool accept_one(int listener, Time now);
  void make_room(const Address& newcomer);
  bool out_of_files(int listener, int error, Time now);
  void hear(Pending& p);
  Result<> check_hello(Pending& p);
  void refuse(Pending& p, const std::string& why);

  const std::string secret_;
  const Clock& clock_;
  Owner& owner_;
  const Limits limits_;
  std::vector<io::Address> bound_;
  std::vector<io::Fd> listeners_;
  io::Fd wake_;
  std::atomic<bool> stopping_{false};
  // The acceptor's thread alone:
  io::Fd spare_;                  // given up to refuse a caller when no descriptor is left
  std::vector<Pending> pending_;  // the oldest first
  Time rest_until_{};
  Refusals refusals_;
  std::thread thread_;
};

// The answer to a hello, on a socket that nothing was sent to since the nonce.
void answer_hello(int fd, uint64_t id, const Result<>& outcome);

}  // namespace mc::xfer::tcp
