#include "rpc/connection_guard.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "io/address.h"

namespace mc::rpc {
namespace {

constexpr int kLookMs = 20;
// Bytes that no message explains: greetings and READY at the start, heartbeats ever after.
constexpr uint64_t kGreetingBytes = 4096, kQuietBytesPerLook = 8;
constexpr uint64_t kFrameBytes = 64;  // at most, beside what a frame carries (CURVE: 42)

uint64_t cookie_of(int fd) {
  uint64_t cookie = 0;
  socklen_t n = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 ? cookie : 0;
}

std::optional<uint64_t> received_by(int fd) {
  tcp_info info{};
  socklen_t n = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0) return std::nullopt;
  return info.tcpi_bytes_received;
}

std::string peer_of(int fd) {
  sockaddr_storage peer{};
  socklen_t n = sizeof peer;
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "0";
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &n) == 0)
    (void)::getnameinfo(reinterpret_cast<sockaddr*>(&peer), n, host, sizeof host, port, sizeof port,
                        NI_NUMERICHOST | NI_NUMERICSERV);
  return strf("%s:%s", host, port);
}

}  // namespace

ConnectionGuard::Limits ConnectionGuard::limits() {
  rlimit files{};
  const uint64_t most =
      ::getrlimit(RLIMIT_NOFILE, &files) == 0 ? std::min<uint64_t>(files.rlim_cur, 1 << 20) : 1024;
  return {.unproven_max = static_cast<size_t>(std::min<uint64_t>(256, most / 4)),
          .connections_max = static_cast<size_t>(most / 2)};
}

Result<std::unique_ptr<ConnectionGuard>> ConnectionGuard::open(void* context, void* socket,
                                                               const Limits& limits) {
  static std::atomic<uint64_t> number{0};
  const std::string name = strf("inproc://guard-%llu", static_cast<unsigned long long>(++number));
  constexpr int kEvents =
      ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_MONITOR_STOPPED;
  if (zmq_socket_monitor(socket, name.c_str(), kEvents) != 0)
    return fail(Code::kInternal, "watch a control socket: %s", zmq_strerror(zmq_errno()));
  void* const monitor = zmq_socket(context, ZMQ_PAIR);
  const int none = 0;
  if (monitor != nullptr) zmq_setsockopt(monitor, ZMQ_RCVHWM, &none, sizeof none);
  if (monitor == nullptr || zmq_connect(monitor, name.c_str()) != 0) {
    const Failure failed =
        fail(Code::kInternal, "watch a control socket: %s", zmq_strerror(zmq_errno()));
    if (monitor != nullptr) zmq_close(monitor);
    zmq_socket_monitor(socket, nullptr, 0);
    return failed;
  }
  return std::unique_ptr<ConnectionGuard>(new ConnectionGuard(socket, monitor, limits));
}

ConnectionGuard::ConnectionGuard(void* socket, void* monitor, const Limits& limits)
    : socket_(socket),
      monitor_(monitor),
      limits_(limits),
      nothing_(::eventfd(0, EFD_CLOEXEC)),
      spare_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

ConnectionGuard::~ConnectionGuard() {
  zmq_socket_monitor(socket_, nullptr, 0);  // the thread is told, and ends
  thread_.join();
  zmq_close(monitor_);
}

void ConnectionGuard::delivered(int fd, size_t bytes) {
  Lock lock(mutex_);
  deliveries_[fd].bytes += bytes + 3 * kFrameBytes;
}

void ConnectionGuard::refuse(int fd) {
  Lock lock(mutex_);
  deliveries_[fd].refused = true;
}

void ConnectionGuard::run() {
  for (;;) {
    zmq_pollitem_t item{monitor_, 0, ZMQ_POLLIN, 0};
    (void)zmq_poll(&item, 1, connections_.empty() ? -1 : kLookMs);
    if (!take_events()) return;
    look();
  }
}

// False: the socket is about to end.
bool ConnectionGuard::take_events() {
  for (;;) {
    std::array<char, 6> event{};
    const int n = zmq_recv(monitor_, event.data(), event.size(), ZMQ_DONTWAIT);
    if (n < 0) return zmq_errno() == EAGAIN || zmq_errno() == EINTR;
    char address[8];
    (void)zmq_recv(monitor_, address, sizeof address, ZMQ_DONTWAIT);
    if (n != static_cast<int>(event.size())) continue;
    uint16_t what = 0;
    int32_t fd = -1;
    std::memcpy(&what, event.data(), sizeof what);
    std::memcpy(&fd, event.data() + sizeof what, sizeof fd);
    if (what == ZMQ_EVENT_MONITOR_STOPPED) return false;
    if (what == ZMQ_EVENT_ACCEPTED)
      connections_[fd] = {.cookie = cookie_of(fd), .order = next_++, .delivered = kGreetingBytes};
    else
      connections_.erase(fd);
    open_ = connections_.size();
  }
}

void ConnectionGuard::sample(Connections::iterator at) {
  auto& [fd, c] = *at;
  if (const auto received = received_by(fd)) c.received = *received;
  // Neither heartbeats nor a size estimated too high add up.
  c.delivered = std::min(c.delivered + kQuietBytesPerLook, c.received + kGreetingBytes);
}

void ConnectionGuard::look() {
  std::unordered_map<int, Delivery> deliveries;
  {
    Lock lock(mutex_);
    deliveries.swap(deliveries_);
  }
  uint64_t held = 0;
  size_t unproven = 0;
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto here = at++;
    Connection& c = here->second;
    if (const auto got = deliveries.find(here->first); got != deliveries.end()) {
      c.delivered += got->second.bytes;
      c.proven |= got->second.bytes > 0;
      if (got->second.refused) {
        end(here, "it sent what is no control message");
        continue;
      }
    }
    sample(here);
    if (c.held() > limits_.undelivered_max) {
      end(here, strf("it sent %llu bytes that make no message yet",
                     static_cast<unsigned long long>(c.held())));
      continue;
    }
    held += c.held();
    unproven += c.proven ? 0 : 1;
  }
  while (held > limits_.total_max && !connections_.empty()) {
    const auto most = std::max_element(
        connections_.begin(), connections_.end(),
        [](const auto& a, const auto& b) { return a.second.held() < b.second.held(); });
    held -= most->second.held();
    end(most, "all connections together sent more than can be taken in");
  }
  const auto by_order = [](const auto& a, const auto& b) {
    return a.second.order < b.second.order;
  };
  for (; limits_.must_prove && unproven > limits_.unproven_max; --unproven) {
    const auto oldest = std::min_element(connections_.begin(), connections_.end(),
                                         [&](const auto& a, const auto& b) {
                                           return std::pair(a.second.proven, a.second.order) <
                                                  std::pair(b.second.proven, b.second.order);
                                         });
    end(oldest, "it sent no message, and others wait");
  }
  while (connections_.size() > limits_.connections_max)
    end(std::max_element(connections_.begin(), connections_.end(), by_order),
        strf("%zu connections are open", connections_.size()));
}

// Ends the TCP connection; libzmq then sees its end and frees what it held.
void ConnectionGuard::end(Connections::iterator at, const std::string& why) {
  const auto [fd, c] = *at;
  connections_.erase(at);
  open_ = connections_.size();
  if (::dup3(fd, spare_.get(), O_CLOEXEC) < 0) return;
  // libzmq may have closed it meanwhile, and the number may be somebody else's.
  if (c.cookie != 0 && cookie_of(spare_.get()) == c.cookie) {
    log_debug("rpc", "ended the control connection of %s: %s", peer_of(spare_.get()).c_str(),
              why.c_str());
    ::shutdown(spare_.get(), SHUT_RDWR);
    if (Counter* counter = counter_.load()) counter->add();
  }
  ::dup3(nothing_.get(), spare_.get(), O_CLOEXEC);
}

}  // namespace mc::rpc
