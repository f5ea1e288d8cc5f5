#include "rpc/socket.h"

#include <zmq.h>

#include <array>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "io/address.h"
#include "io/file.h"
#include "io/free_port.h"
#include "rpc/zmq_context.h"
#include "wire/codec.h"

namespace mc::rpc {
namespace {

constexpr int kQueueMax = 1 << 16;
constexpr size_t kFramesMax = 64;
constexpr size_t kRequestFrames = 3;  // identity, envelope, body
constexpr int kHandshakeMs = 3'000, kBacklog = 1024;
// A host that is gone is noticed within 50 s. A process that stands still is not taken for gone:
// its kernel answers.
constexpr int kIdleS = 15, kProbeS = 5, kProbes = 6, kUnansweredMs = 45'000;

struct ProcessState {
  ZmqContext context;
  std::string secret;
  std::string server_secret, server_public;  // z85
};
ProcessState& process() {
  static auto* state = new ProcessState;  // never freed: sockets of other statics may outlive main
  return *state;
}

Result<> set_curve(void* socket, bool server) {
  const ProcessState& state = process();
  if (state.secret.empty()) return {};
  bool ok = false;
  if (server) {
    const int on = 1;
    ok = zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof on) == 0 &&
         zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, state.server_secret.c_str(), 41) == 0;
  } else {
    std::array<char, 41> public_key{}, secret_key{};
    ok = zmq_curve_keypair(public_key.data(), secret_key.data()) == 0 &&
         zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, state.server_public.c_str(), 41) == 0 &&
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

Result<void*> make(Socket::Kind kind) {
  void* socket = zmq_socket(process().context.get(), zmq_type(kind));
  if (socket == nullptr) return fail_errno("new ZeroMQ socket");
  const int zero = 0, on = 1, queue = kQueueMax, reconnect_ms = 20, reconnect_max_ms = 500;
  const int64_t bytes_max = wire::kMessageBytesMax;
  zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
  zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max);
  zmq_setsockopt(socket, ZMQ_SNDHWM, &queue, sizeof queue);
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

Result<> use_cluster_key(const std::string& secret) {
  if (secret.size() < 16)
    return fail(Code::kInvalid, "cluster key of %zu bytes: want 16 or more", secret.size());
  const Digest seed = hmac_sha256(secret, "mc control plane server key 1");
  std::array<char, 41> secret_key{}, public_key{};
  if (zmq_z85_encode(secret_key.data(), seed.data(), seed.size()) == nullptr ||
      zmq_curve_public(public_key.data(), secret_key.data()) != 0)
    return fail(Code::kUnsupported, "this libzmq has no CURVE: run without --cluster-key");
  process().secret = secret;
  process().server_secret = secret_key.data();
  process().server_public = public_key.data();
  return {};
}

Result<> load_cluster_key(const std::string& path) {
  if (path.empty()) return {};
  auto key = io::read_secret_file(path, 4096);
  if (!key) return fail(key.error().code, "--cluster-key: %s", key.error().what.c_str());
  while (!key->empty() && (key->back() == '\n' || key->back() == ' ')) key->pop_back();
  if (auto used = use_cluster_key(*key); !used)
    return fail(used.error().code, "--cluster-key %s: %s", path.c_str(), used.error().what.c_str());
  return {};
}

const std::string& cluster_key() { return process().secret; }

Result<Socket> Socket::listen(Kind kind, const std::string& text) {
  MC_TRY(io::Address address, io::parse_address(text));
  if (!io::is_loopback(address.host) && process().secret.empty())
    return fail(Code::kInvalid,
                "refusing to listen on %s, beyond loopback, without --cluster-key: anyone could "
                "read and write the cache",
                text.c_str());
  MC_TRY(void* handle, make(kind));
  Socket socket(handle, "");
  MC_TRY_(set_curve(handle, true));
  zmq_setsockopt(handle, ZMQ_BACKLOG, &kBacklog, sizeof kBacklog);
  zmq_setsockopt(handle, ZMQ_HANDSHAKE_IVL, &kHandshakeMs, sizeof kHandshakeMs);
  ConnectionGuard::Limits limits = ConnectionGuard::limits();
  limits.senders = kind == Kind::kRouter;
  MC_TRY(socket.guard_, ConnectionGuard::open(process().context.get(), handle, limits));
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

Result<Socket> Socket::connect(Kind kind, const std::string& text) {
  MC_TRY(io::Address address, io::parse_address(text));
  address.host = numeric(address.host);
  if (address.port == 0) return fail(Code::kInvalid, "connect to %s: no port", text.c_str());
  MC_TRY(void* handle, make(kind));
  Socket socket(handle, address.text());
  MC_TRY_(set_curve(handle, false));
  if (zmq_connect(handle, ("tcp://" + address.text()).c_str()) != 0)
    return fail(Code::kInvalid, "connect to %s: %s", text.c_str(), zmq_strerror(zmq_errno()));
  return socket;
}

Socket::Socket(Socket&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      address_(std::move(other.address_)),
      uses_(std::move(other.uses_)),
      guard_(std::move(other.guard_)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(uses_, other.uses_);
  std::swap(guard_, other.guard_);
  return *this;
}
Socket::~Socket() {
  guard_.reset();
  if (handle_ != nullptr) zmq_close(handle_);
}

Result<> Socket::send(const std::vector<std::string_view>& frames) {
  ++*uses_;
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (zmq_send(handle_, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more) < 0) {
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
  zmq_pollitem_t item{handle_, 0, ZMQ_POLLIN, 0};
  return zmq_poll(&item, 1, ms) > 0;
}

}  // namespace mc::rpc
