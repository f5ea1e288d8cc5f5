#include "rpc/access/unread_answers.h"

#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace mc::rpc {
namespace {

constexpr size_t kCopied = UnreadAnswers::kSmall;
std::atomic<uint64_t> g_all{0};

}  // namespace

struct UnreadAnswers::Frame {  // what ZeroMQ writes from
  Bytes count;
  std::string data;
};

void UnreadAnswers::written(void* /*data*/, void* frame) {
  const std::unique_ptr<Frame> own(static_cast<Frame*>(frame));
  *own->count -= own->data.size();
  g_all -= own->data.size();
}

UnreadAnswers& UnreadAnswers::of_process() {
  static auto* const all = new UnreadAnswers;  // never freed: sockets of statics may outlive main
  return *all;
}

UnreadAnswers::Bytes UnreadAnswers::of(const void* socket, std::string_view peer, uint64_t bytes) {
  static const auto* const uncounted = new Bytes(std::make_shared<std::atomic<uint64_t>>(0));
  if (bytes <= kCopied) return *uncounted;
  const Lock lock(mutex_);
  if (peers_.size() >= look_at_) forget_idle();
  Bytes& count = peers_[{socket, std::string(peer)}];
  if (count == nullptr) count = std::make_shared<std::atomic<uint64_t>>(0);
  return may_have(*count, bytes) ? count : nullptr;
}

UnreadAnswers::Bytes UnreadAnswers::published(uint64_t bytes) {
  static const auto* const all = new Bytes(std::make_shared<std::atomic<uint64_t>>(0));
  return bytes <= kCopied || g_all + bytes <= kOfAllMax ? *all : nullptr;
}

bool UnreadAnswers::may_have(uint64_t unread, uint64_t more) {
  const uint64_t all = g_all + more;
  if (all > kOfAllMax) return false;
  // A peer that reads its answers has none, and may always have one.
  const uint64_t limit = all > kOfAll ? std::max(kWhenFull, more) : kOfPeer;
  return unread + more <= limit;
}

void UnreadAnswers::Counted::set(uint64_t bytes) {
  if (bytes == bytes_) return;
  g_all += bytes - bytes_;  // modulo 2^64, so that less is taken off
  bytes_ = bytes;
}

int UnreadAnswers::send(void* socket, std::string_view frame, const Bytes& count) {
  if (frame.size() <= kCopied) return zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT);
  auto owned = std::make_unique<Frame>(Frame{count, std::string(frame)});
  *count += frame.size();
  g_all += frame.size();
  zmq_msg_t message;
  std::string& data = owned->data;
  Frame* const kept = owned.get();
  if (zmq_msg_init_data(&message, data.data(), data.size(), written, owned.release()) != 0) {
    written(nullptr, kept);
    return -1;
  }
  const int sent = zmq_msg_send(&message, socket, ZMQ_DONTWAIT);
  if (sent < 0) {
    const int error = zmq_errno();
    zmq_msg_close(&message);  // which counts it out
    errno = error;
  }
  return sent;
}

// Connections come and go under new names.
void UnreadAnswers::forget_idle() {
  std::erase_if(peers_, [](const auto& peer) { return peer.second.use_count() == 1; });
  look_at_ = std::max<size_t>(64, 2 * peers_.size());
}

}  // namespace mc::rpc
