// A listening address over a change of the cluster's key: one socket for the first key, which gets
// the new connections, and one for the other key while connections by it may still be used. A key
// that is out of the file loses its socket, and with it every connection that was made by it, half
// a second after the file changed.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "io/loop.h"
#include "rpc/socket.h"

namespace mc::rpc {

class Listener {
 public:
  // Calls `ready` when receive() may have a message. Errors: as Socket::listen.
  static Result<std::unique_ptr<Listener>> open(io::Loop& loop, Socket::Kind kind,
                                                const std::string& address, Metrics& metrics,
                                                std::function<void()> ready);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const { return address_; }  // "host:port", resolved
  // The next message of any socket, and the number of that socket; empty when there is none.
  std::vector<std::string> receive(uint64_t& from);
  // By the socket of that number. Errors: as Socket::send; kUnavailable when it is closed.
  Result<> send(uint64_t by, const std::vector<std::string_view>& frames);
  void send_to_all(const std::vector<std::string_view>& frames);  // of kPub
  size_t subscriptions() const;  // of kPub, of those that receive() gave: topics of each socket
  // Ends connections of another kind that were made by keys which do not stand, and says how many
  // there are by the second. Called after the keys changed, and while there are two.
  using Others = std::function<size_t(const ClusterKeys& keys)>;
  void with(Others others) { others_ = std::move(others); }

 private:
  struct Port {
    Socket socket;
    uint64_t number;
    io::Loop::Handle watch = 0;
    size_t subscriptions = 0;
    void subscribed(char what);
  };
  Listener(io::Loop& loop, Socket::Kind kind, Metrics& metrics, std::function<void()> ready);
  void add(Socket socket);
  void look();
  Result<> serve_first();
  void close_revoked();
  void count_by_second();
  void tell_by_second(size_t now);

  io::Loop& loop_;
  const Socket::Kind kind_;
  Metrics& metrics_;
  const std::function<void()> ready_;
  Others others_;
  Gauge& by_second_;                          // of all listeners of the process
  size_t by_second_here_ = 0;                 // this one's part
  std::string address_, told_;                // `told_`: the last failure that was logged
  std::vector<std::unique_ptr<Port>> ports_;  // in the kernel's order
  uint64_t next_ = 1;
  size_t turn_ = 0;  // of the port that is read first
  ClusterKeys keys_;
  io::Loop::Handle timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace mc::rpc
