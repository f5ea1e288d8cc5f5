#include "rpc/access/connection_guard.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"

namespace mc::rpc {
namespace {

constexpr long kLookMs = 10, kSweepMs = 1000;
constexpr size_t kActivePerMs = 20;  // with more active connections it looks less often
// Fewer bytes than this make no handshake: a greeting, and the shortest READY (of a SUB).
constexpr uint64_t kHandshakeBytes = 64 + 27;
constexpr uint64_t kFrameBytes = 64;  // at most, beside what a frame carries (CURVE: 42)
constexpr uint64_t kSlack = 4096;     // more than handshakes take; sizes above are estimates
// Frames of few bytes take many times their size in memory. An ordinary message takes its size.
constexpr uint64_t kLittle = 64 * kKiB, kMuch = 256 * kKiB, kGrowth = 32 * kMiB, kTimes = 4;
constexpr uint64_t kGrowthOfAll = 128 * kMiB;  // by connections that hold less than kMuch each

uint64_t cookie_of(int fd) {
  uint64_t cookie = 0;
  socklen_t n = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 ? cookie : 0;
}

uint64_t received_by(int fd) {
  tcp_info info{};
  socklen_t n = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? info.tcpi_bytes_received : 0;
}

// What arrived and libzmq did not read yet: it takes memory of the kernel, which bounds it.
uint64_t unread_by(int fd) {
  int bytes = 0;
  return ::ioctl(fd, SIOCINQ, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

// The memory that this process has to itself, from /proc/self/statm.
uint64_t memory_of(int statm) {
  char text[128] = {};
  unsigned long long all = 0, resident = 0, shared = 0;
  if (::pread(statm, text, sizeof text - 1, 0) <= 0 ||
      std::sscanf(text, "%llu %llu %llu", &all, &resident, &shared) != 3 || resident < shared)
    return 0;
  return (resident - shared) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
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
  return {.handshakes_max = static_cast<size_t>(std::min<uint64_t>(256, most / 8)),
          .silent_max = static_cast<size_t>(std::min<uint64_t>(2048, most / 8)),
          .connections_max = static_cast<size_t>(most / 2)};
}

Result<std::unique_ptr<ConnectionGuard>> ConnectionGuard::open(void* context, void* socket,
                                                               const Limits& limits) {
  static std::atomic<uint64_t> number{0};
  const std::string name = strf("inproc://guard-%llu", static_cast<unsigned long long>(++number));
  constexpr int kEvents = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED |
                          ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_MONITOR_STOPPED;
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
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      statm_(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)),
      refused_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      nothing_(::eventfd(0, EFD_CLOEXEC)),
      spare_(::eventfd(0, EFD_CLOEXEC)),
      reserve_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

ConnectionGuard::~ConnectionGuard() {
  zmq_socket_monitor(socket_, nullptr, 0);  // ends the thread
  thread_.join();
  zmq_close(monitor_);
}

Counter& ended_connections(Metrics& metrics) {
  return metrics.counter("mc_rpc_ended_connections_total",
                         "control connections ended for what they held, sent or kept open");
}

void ConnectionGuard::count(Metrics& metrics) { facts.ended.store(&ended_connections(metrics)); }

void ConnectionGuard::delivered(int fd, size_t bytes) {
  Lock lock(mutex_);
  deliveries_[fd].bytes += bytes + 3 * kFrameBytes;
}

void ConnectionGuard::refuse(int fd) {
  Lock lock(mutex_);
  deliveries_[fd].refused = true;
  ::eventfd_write(refused_.get(), 1);
}

void ConnectionGuard::run() {
  for (;;) {
    zmq_pollitem_t items[] = {{monitor_, 0, ZMQ_POLLIN, 0},
                              {nullptr, refused_.get(), ZMQ_POLLIN, 0},
                              {nullptr, epoll_.get(), ZMQ_POLLIN, 0}};
    // While some are active the others are not waited for: they are looked at with them.
    if (!active_.empty())
      (void)zmq_poll(items, 2, kLookMs + static_cast<long>(active_.size() / kActivePerMs));
    else if (zmq_poll(items, 3, connections_.empty() ? -1 : kSweepMs) == 0)
      for (const auto& [fd, c] : connections_) active_.insert(fd);
    Deliveries deliveries;
    growth_.look();
    {
      // Before the events: a connection that delivered is among those accepted.
      Lock lock(mutex_);
      deliveries.swap(deliveries_);
    }
    eventfd_t ignored = 0;
    (void)::eventfd_read(refused_.get(), &ignored);
    if (!take_events()) return;
    take(deliveries);
    wake();
    look();
    enforce();
    facts.connections = connections_.size();
  }
}

// False: the socket is about to end.
bool ConnectionGuard::take_events() {
  bool starved = false;
  for (;;) {
    std::array<char, 6> event{};
    const int n = zmq_recv(monitor_, event.data(), event.size(), ZMQ_DONTWAIT);
    if (n < 0 && zmq_errno() == EINTR) continue;
    if (n < 0 && zmq_errno() == EAGAIN) break;
    if (n != static_cast<int>(event.size())) return false;
    char address[8];
    (void)zmq_recv(monitor_, address, sizeof address, ZMQ_DONTWAIT);
    uint16_t what = 0;
    int32_t value = -1;  // a descriptor, or an error
    std::memcpy(&what, event.data(), sizeof what);
    std::memcpy(&value, event.data() + sizeof what, sizeof value);
    if (what == ZMQ_EVENT_MONITOR_STOPPED) return false;
    if (what == ZMQ_EVENT_LISTENING) facts.listener = value;
    if (what == ZMQ_EVENT_ACCEPTED) accepted(value);
    if (what == ZMQ_EVENT_DISCONNECTED || what == ZMQ_EVENT_CLOSED) forget(value);
    if (what == ZMQ_EVENT_ACCEPT_FAILED)
      starved |= value == EMFILE || value == ENFILE || value == ENOMEM || value == ENOBUFS;
  }
  if (starved)
    make_room();
  else if (!reserve_)
    reserve_.reset(::eventfd(0, EFD_CLOEXEC));
  return true;
}

void ConnectionGuard::accepted(int fd) {
  const uint64_t order = next_++;
  connections_[fd] = {.cookie = cookie_of(fd), .order = order, .delivered = kSlack};
  waiting_[kHandshake].emplace(order, fd);
  active_.insert(fd);
  if (connections_.size() > limits_.connections_max)
    end(fd, strf("%zu connections are open", connections_.size() - 1));
}

// No descriptor is free, and libzmq tries again without end to accept who waits. The reserve lets
// it; after that, the end of an older connection.
void ConnectionGuard::make_room() {
  constexpr const char* kWhy = "no descriptor is free";
  if (reserve_) return reserve_.reset();
  if (!end_oldest(kHandshake, kWhy)) (void)end_oldest(kSilent, kWhy);
}

void ConnectionGuard::take(const Deliveries& deliveries) {
  for (const auto& [fd, delivery] : deliveries) {
    const auto at = connections_.find(fd);
    if (at == connections_.end()) continue;
    active_.insert(fd);
    at->second.delivered += delivery.bytes;
    at->second.since = {};
    set_state(fd, at->second, kSends);
    if (delivery.refused) end(fd, "it sent what is no control message");
  }
}

// Connections on which something arrived since they were last looked at. Those that libzmq read
// faster than this thread woke are missed; the sweep finds them.
void ConnectionGuard::wake() {
  std::array<epoll_event, 256> events{};
  for (int n = static_cast<int>(events.size()); n == static_cast<int>(events.size());) {
    n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < n; ++i) active_.insert(events[static_cast<size_t>(i)].data.fd);
  }
}

void ConnectionGuard::look() {
  if (active_.empty()) return;
  const uint64_t memory = memory_of(statm_.get());
  for (auto at = active_.begin(); at != active_.end();) {
    const int fd = *at;
    const auto found = connections_.find(fd);
    if (found != connections_.end() && sample(fd, found->second, memory)) {
      ++at;
      continue;
    }
    epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.fd = fd}};
    if (found != connections_.end() && ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
    at = active_.erase(at);
  }
  for (const int fd : std::set<int>(active_)) judge(fd, memory);
  judge_all(memory);
}

void ConnectionGuard::judge(int fd, uint64_t memory) {
  Connection& c = connections_.at(fd);
  if (c.held > limits_.undelivered_max)
    end(fd, strf("it sent %llu bytes that make no message yet",
                 static_cast<unsigned long long>(c.held)));
  else if (c.held > kMuch && growth_.grew(c.since, memory, kGrowth + kTimes * held_))
    end(fd, "its frames take much memory, and make no message yet");
}

// Many connections with few tiny frames each: those that hold most are ended, until half is left.
void ConnectionGuard::judge_all(uint64_t memory) {
  if (held_ <= kLittle || growth_.all.memory == 0) growth_.all = {.memory = memory};
  if (!growth_.grew(growth_.all, memory, kGrowthOfAll + kTimes * held_)) return;
  growth_.all = {.memory = memory};
  for (const uint64_t half = held_ / 2; held_ > half;)
    end_largest("the frames of all connections take much memory, and make no message yet");
}

// True when something arrived since the last time, or will soon.
bool ConnectionGuard::sample(int fd, Connection& c, uint64_t memory) {
  const uint64_t before = std::exchange(c.received, std::max(c.received, received_by(fd)));
  c.delivered = std::min(c.delivered, c.received + kSlack);  // estimates too high do not add up
  uint64_t held = c.received > c.delivered ? c.received - c.delivered : 0;
  if (held > kLittle) held -= std::min(held, unread_by(fd));
  if (held <= kLittle || c.since.memory == 0) c.since = {.memory = memory};
  held_ = held_ - c.held + held;
  c.held = held;
  if (c.state == kHandshake && c.received >= kHandshakeBytes)
    set_state(fd, c, limits_.senders ? kSilent : kSends);
  return c.received != before || c.state == kHandshake;
}

void ConnectionGuard::enforce() {
  while (held_ > limits_.total_max)
    end_largest("all connections together sent more than can be taken in");
  while (waiting_[kHandshake].size() > limits_.handshakes_max)
    end_oldest(kHandshake, "its handshake is not done, and others wait");
  while (waiting_[kSilent].size() > limits_.silent_max)
    end_oldest(kSilent, "it sent no message, and others wait");
}

void ConnectionGuard::end_largest(const char* why) {
  const auto most =
      std::max_element(connections_.begin(), connections_.end(),
                       [](const auto& a, const auto& b) { return a.second.held < b.second.held; });
  end(most->first, why);
}

bool ConnectionGuard::end_oldest(State state, const char* why) {
  if (waiting_[state].empty()) return false;
  end(waiting_[state].begin()->second, why);
  return true;
}

void ConnectionGuard::set_state(int fd, Connection& c, State state) {
  if (c.state != kSends) waiting_[c.state].erase(c.order);
  c.state = state;
  if (c.state != kSends) waiting_[c.state].emplace(c.order, fd);
}

void ConnectionGuard::forget(int fd) {
  const auto at = connections_.find(fd);
  if (at == connections_.end()) return;
  held_ -= at->second.held;
  set_state(fd, at->second, kSends);
  connections_.erase(at);
}

// Ends the TCP connection by a reset; libzmq then sees its end and frees what it held.
void ConnectionGuard::end(int fd, const std::string& why) {
  const uint64_t cookie = connections_.at(fd).cookie;
  forget(fd);
  if (::dup3(fd, spare_.get(), O_CLOEXEC) < 0) return;
  // libzmq may have closed it meanwhile, and its number may name another one.
  if (cookie != 0 && cookie_of(spare_.get()) == cookie) {
    log_debug("rpc", "ended the control connection of %s: %s", peer_of(spare_.get()).c_str(),
              why.c_str());
    const linger now{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(spare_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    ::shutdown(spare_.get(), SHUT_RDWR);
    if (Counter* counter = facts.ended.load()) counter->add();
  }
  ::dup3(nothing_.get(), spare_.get(), O_CLOEXEC);
}

}  // namespace mc::rpc
