// Accepts shared-memory connections (rpc/shm_channel.h) for a server. It polls recently used ones
// before it lets the loop wait. One caller that wakes the loop spares the other recent ones the
// system calls of waking it too.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/loop.h"
#include "rpc/busy_poll.h"
#include "rpc/shm_channel.h"

namespace mc::rpc {

class ShmListener {
 public:
  using Take = std::function<void(uint64_t peer, const ShmChannel::Message& message)>;
  static constexpr size_t kPeersMax = 256;  // more callers stay on ZeroMQ

  // Errors: kUnavailable when another process listens for that address on this host.
  static Result<std::unique_ptr<ShmListener>> open(io::Loop& loop, const std::string& address,
                                                   Take take);
  ~ShmListener();
  ShmListener(const ShmListener&) = delete;
  ShmListener& operator=(const ShmListener&) = delete;

  // False: the peer has gone, or does not read.
  bool send(uint64_t peer, std::string_view envelope, std::string_view body);
  // Drops peers by other keys. Returns: how many are by the second. Not from within Take.
  size_t keep(const ClusterKeys& keys);
  size_t peers() const { return peers_.size(); }

 private:
  struct Peer {
    uint64_t id;
    ShmChannel end;
    bool hot = false;
    Time heard{};
  };
  ShmListener(io::Loop& loop, std::string address, Take take);
  bool poll_hot();  // before the loop waits
  bool has_input() const;
  void take_hot();  // receives from all of hot_
  void heat(Peer& peer);
  void heat_warm();
  void poll();  // new connections, handshakes and wake-ups
  void accept();
  void rest_if_full(int error);
  void shake_hands(int fd);
  bool take_some(Peer& peer);
  void watch(int fd, uint64_t what);
  void drop(uint64_t peer);

  io::Loop& loop_;
  const std::string address_;
  const Take take_;
  io::Fd listener_, epoll_;
  io::Loop::Handle poll_watch_ = 0, hot_watch_ = 0, rest_ = 0;
  std::list<ShmHandshake> handshakes_;  // the oldest first
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> hot_;   // polled, not waited for
  std::vector<Peer*> warm_;  // hot until the last wait
  uint64_t next_peer_ = 1;
  BusyPoller poller_;
};

}  // namespace mc::rpc
