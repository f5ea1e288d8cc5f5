#include "rpc/socket.h"

#include <zmq.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "io/address.h"
#include "io/fd.h"
#include "io/free_port.h"
#include "io/limits.h"
#include "rpc/access/same_port.h"
#include "rpc/access/unread_answers.h"
#include "rpc/zmq_context.h"
#include "wire/codec.h"

namespace mc::rpc {
namespace {

constexpr int kQueueMax = 1 << 16;
constexpr int kPublishedMax = 1 << 13;  // messages that one subscriber has not read
constexpr size_t kFramesMax = 64;
constexpr size_t kRequestFrames = 3;  // identity, envelope, body
constexpr int kHandshakeMs = 3'000, kBacklog = 1024;
// A host that is gone is noticed within 50 s. A process that stands still is not taken for gone:
// its kernel answers.
constexpr int kIdleS = 15, kProbeS = 5, kProbes = 6, kUnansweredMs = 45'000;

void* context() {
  static auto* context = new ZmqContext;  // never freed: sockets of statics may outlive main
  return context->get();
}

Result<> set_curve(void* socket, const ClusterKey* key, bool server) {
  if (key == nullptr) return {};
  bool ok = false;
  if (server) {
    const int on = 1;
    ok = zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof on) == 0 &&
         zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, key->server_secret.c_str(), 41) == 0;
  } else {
    std::array<char, 41> public_key{}, secret_key{};
    ok = zmq_curve_keypair(public_key.data(), secret_key.data()) == 0 &&
         zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, key->server_public.c_str(), 41) == 0 &&
         zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public_key.data(), 41) == 0 &&
         zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret_key.data(), 41) == 0;
  }
  if (!ok) return fail(Code::kUnsupported, "this libzmq has no CURVE: run without --cluster-key");
  return {};
}

// Servers listen on the IPv4 address; a resolver may return ::1 first, where none listens.
std::string numeric(const std::string& host) { return host == "localhost" ? "127.0.0.1" : host; }

int zmq_type(Socket::Kind kind) {
  switch (kind) {
    case Socket::Kind::kRouter: return ZMQ_ROUTER;
    case Socket::Kind::kDealer: return ZMQ_DEALER;
    case Socket::Kind::kPub: return ZMQ_XPUB;
    case Socket::Kind::kSub: return ZMQ_SUB;
  }
  return ZMQ_DEALER;
}

// A context, a socket, its monitor and a connection take this many at most.
constexpr int kSpareFiles = 24;

Result<void*> make(Socket::Kind kind) {
  MC_TRY_(io::spare_files(kSpareFiles));  // ZeroMQ aborts where it lacks one
  void* socket = zmq_socket(context(), zmq_type(kind));
  if (socket == nullptr) return fail_errno("new ZeroMQ socket");
  const int zero = 0, on = 1, queue = kQueueMax, reconnect_ms = 20, reconnect_max_ms = 500;
  const int sent = kind == Socket::Kind::kPub ? kPublishedMax : kQueueMax;
  const int64_t bytes_max = wire::kMessageBytesMax;
  zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
  zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max);
  zmq_setsockopt(socket, ZMQ_SNDHWM, &sent, sizeof sent);
  zmq_setsockopt(socket, ZMQ_RCVHWM, &queue, sizeof queue);
  zmq_setsockopt(socket, ZMQ_IPV6, &on, sizeof on);
  zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &reconnect_ms, sizeof reconnect_ms);
  zmq_setsockopt(socket, ZMQ_RECONNECT_IVL_MAX, &reconnect_max_ms, sizeof reconnect_max_ms);
  zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE, &on, sizeof on);
  zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_IDLE, &kIdleS, sizeof kIdleS);
  zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_INTVL, &kProbeS, sizeof kProbeS);
  zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_CNT, &kProbes, sizeof kProbes);
  zmq_setsockopt(socket, ZMQ_TCP_MAXRT, &kUnansweredMs, sizeof kUnansweredMs);
  if (kind == Socket::Kind::kRouter) zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &on, sizeof on);
  if (kind == Socket::Kind::kSub) zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
  return socket;
}

}  // namespace

Result<> Socket::prepare_to_listen() {
  MC_TRY_(set_curve(handle_, key_, true));
  zmq_setsockopt(handle_, ZMQ_BACKLOG, &kBacklog, sizeof kBacklog);
  zmq_setsockopt(handle_, ZMQ_HANDSHAKE_IVL, &kHandshakeMs, sizeof kHandshakeMs);
  ConnectionGuard::Limits limits = ConnectionGuard::limits();
  limits.senders = kind_ == Kind::kRouter;
  MC_TRY(guard_, ConnectionGuard::open(context(), handle_, limits));
  return {};
}

Result<Socket> Socket::listen(Kind kind, const std::string& text) {
  MC_TRY(io::Address address, io::parse_address(text));
  const ClusterKey* const key = cluster_keys().first;
  if (!io::is_loopback(address.host) && key == nullptr)
    return fail(Code::kInvalid,
                "refusing to listen on %s, beyond loopback, without --cluster-key: anyone could "
                "read and write the cache",
                text.c_str());
  MC_TRY(void* handle, make(kind));
  Socket socket(handle, "", kind, key);
  MC_TRY_(socket.prepare_to_listen());
  const std::string host = numeric(address.host);
  const auto bind = [&](uint16_t port) {
    std::string endpoint = "tcp://" + io::Address{host, port}.text();
    if (port == 0) endpoint.back() = '*';
    return zmq_bind(handle, endpoint.c_str()) == 0;
  };
  Random random(fresh_seed());
  if (!(address.port == 0 ? io::listen_on_free_port(random, bind) : bind(address.port)))
    return fail(zmq_errno() == EADDRINUSE ? Code::kUnavailable : Code::kInvalid,
                "listen on %s: %s%s", text.c_str(), zmq_strerror(zmq_errno()),
                zmq_errno() == EADDRINUSE ? ": choose another port, or 0 for a free one" : "");
  std::array<char, 256> bound{};
  size_t n = bound.size();
  zmq_getsockopt(handle, ZMQ_LAST_ENDPOINT, bound.data(), &n);
  MC_TRY(const io::Address resolved, io::parse_address(bound.data()));
  // Keeps the host as given: ZeroMQ reports 127.0.0.1 as an IPv6-mapped address.
  socket.address_ = io::Address{host, resolved.port}.text();
  return socket;
}

Result<Socket> Socket::listen_beside(const Socket& other, const ClusterKey* key) {
  MC_TRY(io::Fd listener, listen_on_same_port(other.guard_->facts.listener, kBacklog));
  MC_TRY(void* handle, make(other.kind_));
  Socket socket(handle, other.address_, other.kind_, key);
  MC_TRY_(socket.prepare_to_listen());
  const int fd = listener.get();
  zmq_setsockopt(handle, ZMQ_USE_FD, &fd, sizeof fd);
  MC_TRY(io::Address address, io::parse_address(other.address_));
  if (zmq_bind(handle, ("tcp://" + address.text()).c_str()) != 0)
    return fail(Code::kUnavailable, "listen on %s by another key: %s", other.address_.c_str(),
                zmq_strerror(zmq_errno()));
  socket.guard_->facts.listener = listener.release();  // libzmq closes it
  return socket;
}

Result<> Socket::take_connections(size_t at) {
  return take_connections_of_port(guard_->facts.listener, at);
}

Result<Socket> Socket::connect(Kind kind, const std::string& text) {
  return connect(kind, text, cluster_keys().first);
}

Result<Socket> Socket::connect(Kind kind, const std::string& text, const ClusterKey* key) {
  return connect(kind, text, key, kind == Kind::kDealer && cluster_keys().second != nullptr);
}

Result<Socket> Socket::connect(Kind kind, const std::string& text, const ClusterKey* key,
                               bool tells) {
  MC_TRY(io::Address address, io::parse_address(text));
  address.host = numeric(address.host);
  if (address.port == 0) return fail(Code::kInvalid, "connect to %s: no port", text.c_str());
  MC_TRY(void* handle, make(kind));
  Socket socket(handle, address.text(), kind, key);
  MC_TRY_(set_curve(handle, key, false));
  if (tells) MC_TRY_(socket.watch_fate());
  if (zmq_connect(handle, ("tcp://" + address.text()).c_str()) != 0)
    return fail(Code::kInvalid, "connect to %s: %s", text.c_str(), zmq_strerror(zmq_errno()));
  return socket;
}

// Without another try nothing can leave after a refusal, so that it may be sent elsewhere.
Result<> Socket::watch_fate() {
  static std::atomic<uint64_t> number{0};
  const std::string name = strf("inproc://fate-%llu", static_cast<unsigned long long>(++number));
  constexpr int kEvents = ZMQ_EVENT_CONNECT_DELAYED | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED |
                          ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  const int never = -1;
  zmq_setsockopt(handle_, ZMQ_RECONNECT_IVL, &never, sizeof never);
  if (zmq_socket_monitor(handle_, name.c_str(), kEvents) != 0)
    return fail(Code::kInternal, "watch a connection: %s", zmq_strerror(zmq_errno()));
  monitor_uses_ = std::make_shared<uint64_t>(0);
  monitor_ = zmq_socket(context(), ZMQ_PAIR);
  if (monitor_ == nullptr || zmq_connect(monitor_, name.c_str()) != 0)
    return fail(Code::kInternal, "watch a connection: %s", zmq_strerror(zmq_errno()));
  return {};
}

Socket::Fate Socket::fate() {
  if (monitor_ != nullptr) ++*monitor_uses_;
  while (monitor_ != nullptr) {
    std::array<char, 6> event{};
    const int n = zmq_recv(monitor_, event.data(), event.size(), ZMQ_DONTWAIT);
    if (n < 0 && zmq_errno() == EINTR) continue;
    if (n != static_cast<int>(event.size())) break;
    char address[8];
    (void)zmq_recv(monitor_, address, sizeof address, ZMQ_DONTWAIT);
    uint16_t what = 0;
    std::memcpy(&what, event.data(), sizeof what);
    if (what == ZMQ_EVENT_CONNECT_DELAYED || what == ZMQ_EVENT_CONNECTED)
      begun_ = true;
    else if (what == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
      fate_ = Fate::kProven;
    else
      fate_ = fate_ == Fate::kOpen || fate_ == Fate::kRefused ? Fate::kRefused : Fate::kEnded;
  }
  return fate_;
}

Socket::Socket(Socket&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      monitor_(std::exchange(other.monitor_, nullptr)),
      address_(std::move(other.address_)),
      kind_(other.kind_),
      key_(other.key_),
      fate_(other.fate_),
      begun_(other.begun_),
      uses_(std::move(other.uses_)),
      monitor_uses_(std::move(other.monitor_uses_)),
      guard_(std::move(other.guard_)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(monitor_, other.monitor_);
  std::swap(address_, other.address_);
  std::swap(kind_, other.kind_);
  std::swap(key_, other.key_);
  std::swap(fate_, other.fate_);
  std::swap(begun_, other.begun_);
  std::swap(uses_, other.uses_);
  std::swap(monitor_uses_, other.monitor_uses_);
  std::swap(guard_, other.guard_);
  return *this;
}
Socket::~Socket() {
  guard_.reset();
  if (monitor_ != nullptr) {
    zmq_socket_monitor(handle_, nullptr, 0);
    zmq_close(monitor_);
  }
  if (handle_ != nullptr) zmq_close(handle_);
}

Result<> Socket::send(const std::vector<std::string_view>& frames) {
  ++*uses_;
  UnreadAnswers::Bytes unread;
  if (guard_ && kind_ == Kind::kRouter && frames.size() > 1) {
    unread = UnreadAnswers::of_process().of(handle_, frames.front(), frames.back().size());
    if (unread == nullptr)
      return fail(Code::kBusy, "send by %s: the peer does not read its answers", address_.c_str());
  } else if (guard_ && kind_ == Kind::kPub && !frames.empty()) {
    unread = UnreadAnswers::of_process().published(frames.back().size());
    if (unread == nullptr)
      return fail(Code::kBusy, "publish by %s: subscribers do not read", address_.c_str());
  }
  for (size_t i = 0; i < frames.size(); ++i) {
    const bool last = i + 1 == frames.size();
    const int sent = last && unread != nullptr
                         ? UnreadAnswers::send(handle_, frames[i], unread)
                         : zmq_send(handle_, frames[i].data(), frames[i].size(),
                                    ZMQ_DONTWAIT | (last ? 0 : ZMQ_SNDMORE));
    if (sent < 0) {
      const int error = zmq_errno();
      if (error == EAGAIN) return fail(Code::kBusy, "send to %s: queue full", address_.c_str());
      return fail(Code::kUnavailable, "send to %s: %s", address_.c_str(), zmq_strerror(error));
    }
  }
  return {};
}

std::vector<std::string> Socket::receive() {
  ++*uses_;
  std::vector<std::string> frames;
  int more = 1, from = -1;  // a connection's descriptor
  size_t bytes = 0;
  while (more != 0) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, handle_, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      if (guard_) guard_->growth().drained();
      return {};
    }
    if (frames.size() < kFramesMax)
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    bytes += zmq_msg_size(&message);
    more = zmq_msg_more(&message);
    if (guard_ && more == 0) from = zmq_msg_get(&message, ZMQ_SRCFD);
    zmq_msg_close(&message);
  }
  if (guard_) guard_->delivered(from, bytes);
  if (guard_ && frames.size() > kRequestFrames) guard_->refuse(from);
  return frames;
}

bool Socket::wait_readable(int ms) {
  ++*uses_;
  if (monitor_ != nullptr) ++*monitor_uses_;
  zmq_pollitem_t items[] = {{handle_, 0, ZMQ_POLLIN, 0}, {monitor_, 0, ZMQ_POLLIN, 0}};
  return zmq_poll(items, monitor_ != nullptr ? 2 : 1, ms) > 0;
}

}  // namespace mc::rpc
