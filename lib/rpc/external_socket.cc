#include "rpc/external_socket.h"

#include <zmq.h>

#include <utility>

#include "io/address.h"
#include "rpc/zmq_context.h"

namespace mc::rpc {
namespace {

constexpr size_t kExternalFramesMax = 16;

void* external_context() {
  static ZmqContext context;
  return context.get();
}

}  // namespace

Result<ExternalSocket> ExternalSocket::connect(Kind kind, const std::string& text) {
  MC_TRY(io::Address address, io::parse_address(text));
  if (address.port == 0) return fail(Code::kInvalid, "connect to %s: no port", text.c_str());
  if (address.host == "localhost") address.host = "127.0.0.1";
  void* const handle = zmq_socket(external_context(), kind == Kind::kSub ? ZMQ_SUB : ZMQ_DEALER);
  if (handle == nullptr) return fail_errno("new ZeroMQ socket");
  ExternalSocket socket(handle);
  const int zero = 0, on = 1, queue = kExternalQueueMax, reconnect_ms = 20, reconnect_max_ms = 500;
  const int64_t bytes_max = kExternalBytesMax;
  zmq_setsockopt(handle, ZMQ_LINGER, &zero, sizeof zero);
  zmq_setsockopt(handle, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max);
  zmq_setsockopt(handle, ZMQ_SNDHWM, &queue, sizeof queue);
  zmq_setsockopt(handle, ZMQ_RCVHWM, &queue, sizeof queue);
  zmq_setsockopt(handle, ZMQ_IPV6, &on, sizeof on);
  zmq_setsockopt(handle, ZMQ_RECONNECT_IVL, &reconnect_ms, sizeof reconnect_ms);
  zmq_setsockopt(handle, ZMQ_RECONNECT_IVL_MAX, &reconnect_max_ms, sizeof reconnect_max_ms);
  if (kind == Kind::kSub) zmq_setsockopt(handle, ZMQ_SUBSCRIBE, "", 0);
  if (zmq_connect(handle, ("tcp://" + address.text()).c_str()) != 0)
    return fail(Code::kInvalid, "connect to %s: %s", text.c_str(), zmq_strerror(zmq_errno()));
  return socket;
}

ExternalSocket::ExternalSocket(ExternalSocket&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)) {}
ExternalSocket& ExternalSocket::operator=(ExternalSocket&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}
ExternalSocket::~ExternalSocket() {
  if (handle_ != nullptr) zmq_close(handle_);
}

bool ExternalSocket::send(const std::vector<std::string_view>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (zmq_send(handle_, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more) < 0)
      return false;
  }
  return true;
}

std::vector<std::string> ExternalSocket::receive() {
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, handle_, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return {};
    }
    if (frames.size() < kExternalFramesMax)
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
  }
  return frames;
}

}  // namespace mc::rpc
