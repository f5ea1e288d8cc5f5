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

#include "base/metrics.h"
#include "base/units.h"
#include "io/loop.h"
#include "rpc/access/unread_answers.h"
#include "rpc/busy_poll.h"
#include "rpc/shm_channel.h"

namespace mc::rpc {

class ShmListener {
 public:
  using Take = std::function<void(uint64_t peer, const ShmChannel::Message& message)>;
  static constexpr size_t kPeersMax = 256;  // more callers stay on ZeroMQ

  // Of messages that are not whole, by all peers: who has most is ended.
  static constexpr size_t kHeldMax = 256 * kMiB;

  // `ended` counts peers that are ended for what they sent. Errors: kUnavailable when another
  // process listens for that address on this host.
  static Result<std::unique_ptr<ShmListener>> open(io::Loop& loop, const std::string& address,
                                                   Counter& ended, Take take);
  ~ShmListener();
  ShmListener(const ShmListener&) = delete;
  ShmListener& operator=(const ShmListener&) = delete;

  // False: the peer has gone, or does not read, or may have no more answers
  // (rpc/access/unread_answers.h).
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
    size_t held = 0;  // of a message that is not whole
    UnreadAnswers::Counted unread{};
  };
  ShmListener(io::Loop& loop, std::string address, Counter& ended, Take take);
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
  void count(Peer& peer);
  void end_largest();
  void drop(uint64_t peer);

  io::Loop& loop_;
  const std::string address_;
  Counter& ended_;
  const Take take_;
  io::Fd listener_, epoll_;
  io::Loop::Handle poll_watch_ = 0, hot_watch_ = 0, rest_ = 0;
  std::list<ShmHandshake> handshakes_;  // the oldest first
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> hot_;   // polled, not waited for
  std::vector<Peer*> warm_;  // hot until the last wait
  uint64_t next_peer_ = 1;
  size_t held_ = 0;  // by all peers
  BusyPoller poller_;
};

}  // namespace mc::rpc
