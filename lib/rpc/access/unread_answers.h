// Counts the bytes of answers that listening sockets keep for peers that have not read them. A peer
// that asks and never reads would have the server keep all answers: ZeroMQ bounds their number
// alone, and each may be 16 MiB.
//
// An answer over a limit is not sent. Its caller waits until its deadline, as for one that was
// lost.
//
// Thread: any. What ZeroMQ has written, or dropped with its connection, its own threads count out.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/units.h"

namespace mc::rpc {

class UnreadAnswers {
 public:
  static constexpr uint64_t kOfPeer = 64 * kMiB;
  static constexpr uint64_t kOfAll = 256 * kMiB;  // then a peer may have kWhenFull, or one answer
  static constexpr uint64_t kWhenFull = 1 * kMiB;
  static constexpr uint64_t kOfAllMax = 1 * kGiB;  // then nobody gets more
  static constexpr uint64_t kSmall = 512;  // up to this size their number is bounded instead
  static UnreadAnswers& of_process();

  using Bytes = std::shared_ptr<std::atomic<uint64_t>>;
  // The count of a socket's peer that may have so many bytes more; nullptr: it may not.
  Bytes of(const void* socket, std::string_view peer, uint64_t bytes);
  // The count of what is published, which may have so many bytes more; nullptr: it may not. Bytes
  // that several subscribers have not read count once.
  Bytes published(uint64_t bytes);
  // Sends a last frame, and counts its bytes until ZeroMQ has no more use for them. Requires:
  // `count` came from of(). Returns: as zmq_send().
  static int send(void* socket, std::string_view frame, const Bytes& count);

  // Of answers that wait elsewhere than in ZeroMQ: whether a peer with so many unread bytes may
  // have more.
  static bool may_have(uint64_t unread, uint64_t more);
  // The unread bytes of such a peer, among those of all.
  class Counted {
   public:
    Counted() = default;
    Counted(Counted&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
    Counted& operator=(Counted&&) = delete;
    ~Counted() { set(0); }
    void set(uint64_t bytes);
    uint64_t bytes() const { return bytes_; }

   private:
    uint64_t bytes_ = 0;
  };

 private:
  struct Frame;
  static void written(void* data, void* frame);
  void forget_idle() MC_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::pair<const void*, std::string>, Bytes> peers_ MC_GUARDED_BY(mutex_);
  size_t look_at_ MC_GUARDED_BY(mutex_) = 64;  // peers at which those without bytes are forgotten
};

}  // namespace mc::rpc
