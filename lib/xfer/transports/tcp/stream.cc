#include "xfer/transports/tcp/stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/units.h"
#include "io/address.h"
#include "rpc/busy_poll.h"

namespace mc::xfer::tcp {
namespace {

constexpr int kTickMs = 50;
constexpr Duration kTick = std::chrono::milliseconds(kTickMs);
// Longer than a put takes with its calls to the master: else each end wakes the other anew.
constexpr Duration kEager = std::chrono::microseconds(150);
constexpr Duration kLookAgain = std::chrono::microseconds(50);

void consume(std::span<iovec>& parts, size_t n) {
  while (n > 0 && n >= parts.front().iov_len) {
    n -= parts.front().iov_len;
    parts = parts.subspan(1);
  }
  if (n > 0) {
    parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + n;
    parts.front().iov_len -= n;
  }
  while (!parts.empty() && parts.front().iov_len == 0) parts = parts.subspan(1);
}

// Few may look again and again at a time, or they take the CPU from whom they wait for.
std::atomic<uint32_t> g_eager{0};

class EagerTurn {
 public:
  EagerTurn() : mine_(g_eager.fetch_add(1, std::memory_order_relaxed) < most()) {}
  ~EagerTurn() { g_eager.fetch_sub(1, std::memory_order_relaxed); }
  EagerTurn(const EagerTurn&) = delete;
  EagerTurn& operator=(const EagerTurn&) = delete;
  explicit operator bool() const { return mine_; }

 private:
  static uint32_t most() {
    static const uint32_t n = std::thread::hardware_concurrency() / 2;
    return n;
  }
  const bool mine_;
};

bool nothing_yet(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

Error broken(ssize_t n) {
  if (n == 0) return {Code::kUnavailable, "the peer closed the connection"};
  return {Code::kUnavailable, std::string("connection: ") + std::strerror(errno)};
}

}  // namespace

Stream::Stream(io::Fd fd, const Clock& clock, Duration silence_max)
    : fd_(std::move(fd)),
      clock_(&clock),
      silence_max_(silence_max),
      ahead_(std::make_unique<std::byte[]>(kAheadBytes)) {}

// After a system call that moved nothing, or not all it could within a tick.
Result<> Stream::nothing_moved(Patience& patience, const GiveUp& give_up) const {
  const Time now = clock_->now();
  if (now - patience.asked < kTick) return {};
  patience.asked = now;
  MC_TRY_(give_up());
  if (now - patience.heard > silence_max_)
    return fail(Code::kTimeout, "the peer was silent for %s", to_text(silence_max_).c_str());
  if (now > patience.until) return fail(Code::kTimeout, "the peer sent a frame too slowly");
  return {};
}

Result<> Stream::send(std::span<iovec> parts, const GiveUp& give_up) {
  Patience patience;
  consume(parts, 0);
  while (!parts.empty()) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n > 0) consume(parts, static_cast<size_t>(n));
    if (parts.empty()) return {};
    if (n < 0 && !nothing_yet(errno)) return fail(broken(n));
    if (n > 0 || patience.heard == Time{}) patience.heard = clock_->now();
    MC_TRY_(nothing_moved(patience, give_up));
  }
  return {};
}

void Stream::take(std::span<iovec>& parts) {
  while (!parts.empty() && from_ < to_) {
    const size_t n = std::min(parts.front().iov_len, to_ - from_);
    std::memcpy(parts.front().iov_base, ahead_.get() + from_, n);
    from_ += n;
    consume(parts, n);
  }
}

// Nothing is left of what was read ahead before.
ssize_t Stream::read_ahead(int flags) {
  if (short_run_ && room_ < kFarAheadBytes) {
    ahead_ = std::make_unique<std::byte[]>(kFarAheadBytes);
    room_ = kFarAheadBytes;
  }
  const ssize_t n = ::recv(fd_.get(), ahead_.get(), short_run_ ? room_ : kAheadBytes, flags);
  from_ = 0;
  to_ = n > 0 ? static_cast<size_t>(n) : 0;
  return n;
}

// True: there is something, or the end.
bool Stream::fill_eagerly() {
  const EagerTurn turn;
  if (!turn) return false;
  thread_local rpc::AdaptiveSpin spin(kEager);
  thread_local rpc::YieldBackoff backoff;
  const Time start = clock_->now();
  Time until = start + backoff.begin(spin.begin(), start);
  do {
    const ssize_t n = read_ahead(MSG_DONTWAIT);
    if (n > 0) {
      spin.hit();
      return true;
    }
    if (n == 0 || !nothing_yet(errno)) return false;  // the next call tells
    for (int i = 0; i < 16; ++i) rpc::pause_cpu();
    until += backoff.yield(*clock_);  // time of other threads does not count
  } while (clock_->now() < until);
  spin.missed();
  return false;
}

Result<> Stream::fill(Patience& patience, const GiveUp& give_up) {
  if (eager_ && fill_eagerly()) return {};
  for (;;) {
    const ssize_t n = read_ahead(0);
    if (n > 0) return {};
    if (n == 0 || !nothing_yet(errno)) return fail(broken(n));
    if (patience.heard == Time{}) patience.heard = clock_->now() - kTick;
    MC_TRY_(nothing_moved(patience, give_up));
  }
}

Result<> Stream::receive(std::span<iovec> parts, const GiveUp& give_up) {
  Patience patience;
  patience.until = receive_by_;
  bool dribbles = false;
  consume(parts, 0);
  for (take(parts); !parts.empty(); take(parts)) {
    size_t wanted = 0;
    for (size_t i = 0; i < parts.size() && wanted < kAheadBytes; ++i) wanted += parts[i].iov_len;
    if (wanted < kAheadBytes) {
      if (std::exchange(dribbles, true)) {
        patience.heard = clock_->now();
        MC_TRY_(nothing_moved(patience, give_up));
      }
      MC_TRY_(fill(patience, give_up));
      continue;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_WAITALL);
    if (n == 0 || (n < 0 && !nothing_yet(errno))) return fail(broken(n));
    if (n > 0) consume(parts, static_cast<size_t>(n));
    if (parts.empty()) return {};
    if (n > 0 || patience.heard == Time{}) patience.heard = clock_->now();
    MC_TRY_(nothing_moved(patience, give_up));
  }
  return {};
}

Result<> Stream::send(const void* p, size_t n, const GiveUp& give_up) {
  iovec part{const_cast<void*>(p), n};
  return send({&part, 1}, give_up);
}
Result<> Stream::receive(void* p, size_t n, const GiveUp& give_up) {
  iovec part{p, n};
  return receive({&part, 1}, give_up);
}

Result<bool> Stream::wait_for_request(const GiveUp& give_up) {
  if (from_ < to_ || (eager_ && fill_eagerly())) return true;
  for (;;) {
    pollfd p{fd_.get(), POLLIN, 0};
    // Woken by shut_down() as well, and by the kernel when the peer's host is gone, so an idle
    // connection costs nothing.
    const int ready = ::poll(&p, 1, -1);
    if (ready < 0 && errno != EINTR) return fail_errno("poll");
    if (ready <= 0) continue;
    MC_TRY_(give_up());
    const ssize_t n = read_ahead(MSG_DONTWAIT);
    if (n > 0) return true;
    if (n == 0) return false;
    if (!nothing_yet(errno)) return fail(broken(n));
  }
}

bool Stream::readable_now() const {
  pollfd p{fd_.get(), POLLIN, 0};
  return from_ < to_ || ::poll(&p, 1, 0) == 1;
}

bool Stream::has_by(size_t bytes, Time until) {
  if (from_ == to_ && eager_) (void)fill_eagerly();
  for (size_t had = 0;;) {
    if (ahead() >= bytes) return true;
    int arrived = 0;
    if (::ioctl(fd_.get(), FIONREAD, &arrived) != 0) return true;  // the next call tells
    const size_t has = ahead() + static_cast<size_t>(std::max(arrived, 0));
    if (has >= bytes) return true;
    const Duration left = std::max(until - clock_->now(), Duration::zero());
    if (left == Duration::zero()) return false;
    // Part of it makes the socket readable: then look again a little later.
    const bool part = has > ahead() && has == std::exchange(had, has);
    const Duration turn = part ? std::min(left, kLookAgain) : left;
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(turn);
    const timespec wait{whole.count(), (turn - whole).count()};
    pollfd p{fd_.get(), static_cast<short>(part ? POLLRDHUP : POLLIN | POLLRDHUP), 0};
    const int ready = ::ppoll(&p, 1, &wait, nullptr);
    if (ready < 0 && errno != EINTR) return true;
    if (ready > 0 && (p.revents & ~POLLIN) != 0) return true;
  }
}

bool Stream::peek(void* p, size_t n) const {
  if (ahead() == 0)
    return ::recv(fd_.get(), p, n, MSG_PEEK | MSG_DONTWAIT) == static_cast<ssize_t>(n);
  if (ahead() < n) return false;
  std::memcpy(p, ahead_.get() + from_, n);
  return true;
}

void Stream::shut_down() {
  if (fd_) ::shutdown(fd_.get(), SHUT_RDWR);
}

void Stream::discard() {
  const linger now{1, 0};
  if (fd_) ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

Duration Stream::vanished_after(Duration silence_max) {
  return std::clamp<Duration>(10 * silence_max, std::chrono::seconds(10), std::chrono::seconds(45));
}

// An idle peer is probed after half of that time, and one that answers nothing, or acknowledges no
// byte sent to it, loses its connection after all of it.
void Stream::probe() const {
  const auto limit =
      std::chrono::duration_cast<std::chrono::milliseconds>(vanished_after(silence_max_));
  const auto set = [this](int level, int option, int64_t value) {
    const int v = static_cast<int>(value);
    ::setsockopt(fd_.get(), level, option, &v, sizeof v);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, limit.count() / 2000);
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max<int64_t>(limit.count() / 8000, 1));
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, limit.count());
}

void Stream::tune() {
  probe();
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // From here on it blocks, a tick at a time: a call that waits costs less than one that asks, is
  // told to wait, polls, and asks again.
  const timeval tick{0, kTickMs * 1000};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick);
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick);
  // The default (bbr, paced) holds a loopback stream to a fraction of these. Not permitted to
  // every user: then the default stays.
  for (const char* name : {"reno", "cubic"})
    if (::setsockopt(fd_.get(), IPPROTO_TCP, TCP_CONGESTION, name,
                     static_cast<socklen_t>(std::strlen(name))) == 0)
      break;
}

Result<> Stream::leave_by(const Local& local) {
  if (local.bind.empty()) return {};
  sockaddr_storage from{};
  socklen_t n = sizeof(sockaddr_in);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&from);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&from);
  if (::inet_pton(AF_INET, local.bind.c_str(), &v4->sin_addr) == 1) {
    from.ss_family = AF_INET;
  } else if (::inet_pton(AF_INET6, local.bind.c_str(), &v6->sin6_addr) == 1) {
    from.ss_family = AF_INET6;
    n = sizeof(sockaddr_in6);
  } else {
    return fail(Code::kInvalid, "%s is no IP address to connect from", local.bind.c_str());
  }
  // The address alone does not choose the interface where two are on one subnet. Kernels before
  // 5.7 permit this to root alone: then routing decides.
  if (!local.device.empty())
    (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_BINDTODEVICE, local.device.data(),
                       static_cast<socklen_t>(local.device.size()));
  if (::bind(fd_.get(), reinterpret_cast<sockaddr*>(&from), n) != 0)
    return fail(Code::kUnavailable, "connect from %s: %s", local.bind.c_str(),
                std::strerror(errno));
  return {};
}

Result<> Stream::connected(const std::string& to, const GiveUp& give_up) const {
  const Time deadline = clock_->now() + silence_max_;
  for (;;) {
    pollfd p{fd_.get(), POLLOUT, 0};
    if (::poll(&p, 1, kTickMs) == 1) break;
    MC_TRY_(give_up());
    if (clock_->now() > deadline)
      return fail(Code::kUnavailable, "connect to %s: no answer", to.c_str());
  }
  int error = 0;
  socklen_t n = sizeof error;
  ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &n);
  if (error != 0)
    return fail(Code::kUnavailable, "connect to %s: %s", to.c_str(), std::strerror(error));
  return {};
}

Result<Stream> Stream::connect(const std::string& text, const Clock& clock, Duration silence_max,
                               const GiveUp& give_up, const Local& local) {
  MC_TRY(const io::Address address, io::parse_address(text));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) !=
      0)
    return fail(Code::kInvalid, "no such host: %s", text.c_str());
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  io::Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail_errno("socket");
  Stream stream(std::move(fd), clock, silence_max);
  stream.tune();
  MC_TRY_(stream.leave_by(local));
  if (::connect(stream.fd_.get(), found->ai_addr, found->ai_addrlen) != 0) {
    if (errno != EINPROGRESS)
      return fail(Code::kUnavailable, "connect to %s: %s", text.c_str(), std::strerror(errno));
    MC_TRY_(stream.connected(text, give_up));
  }
  if (::fcntl(stream.fd_.get(), F_SETFL, 0) != 0) return fail_errno("socket");
  return stream;
}

std::span<iovec> RowWalk::next(size_t before) {
  size_t n = before;
  for (; n < kParts && rows_ > 0; ++n) {
    parts_[n] = {at_, bytes_};
    if (--rows_ > 0) at_ += stride_;  // a peer's stride may be anything where there is one row
  }
  return {parts_, n};
}

}  // namespace mc::xfer::tcp
