#include "xfer/tcp/stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/units.h"
#include "io/address.h"

namespace mc::xfer::tcp {
namespace {

constexpr int kTickMs = 50;
constexpr Duration kTick = std::chrono::milliseconds(kTickMs);

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

}  // namespace

Result<> Stream::move(std::span<iovec> parts, bool sending, const GiveUp& give_up) {
  Time heard = clock_->now(), asked = heard;
  bool progress = false;
  consume(parts, 0);
  while (!parts.empty()) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t n = sending ? ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (n > 0) {
      consume(parts, static_cast<size_t>(n));
      progress = true;
      continue;
    }
    if (n == 0) return fail(Code::kUnavailable, "the peer closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return fail(Code::kUnavailable, "connection: %s", std::strerror(errno));
    // The clock is read only where there is nothing to move; a peer that trickles is asked about
    // as often as one that is silent.
    const Time now = clock_->now();
    if (std::exchange(progress, false)) heard = now;
    if (now - asked >= kTick) {
      MC_TRY_(give_up());
      asked = now;
      if (now - heard > silence_max_)
        return fail(Code::kTimeout, "the peer was silent for %s", to_text(silence_max_).c_str());
    }
    pollfd p{fd_.get(), static_cast<short>(sending ? POLLOUT : POLLIN), 0};
    ::poll(&p, 1, kTickMs);
  }
  return {};
}

Result<> Stream::send(std::span<iovec> parts, const GiveUp& give_up) {
  return move(parts, true, give_up);
}
Result<> Stream::receive(std::span<iovec> parts, const GiveUp& give_up) {
  return move(parts, false, give_up);
}
Result<> Stream::send(const void* p, size_t n, const GiveUp& give_up) {
  iovec part{const_cast<void*>(p), n};
  return move({&part, 1}, true, give_up);
}
Result<> Stream::receive(void* p, size_t n, const GiveUp& give_up) {
  iovec part{p, n};
  return move({&part, 1}, false, give_up);
}

Result<bool> Stream::wait_for_request(const GiveUp& give_up) {
  for (;;) {
    pollfd p{fd_.get(), POLLIN, 0};
    // Woken by shut_down() as well, so an idle connection costs nothing.
    const int ready = ::poll(&p, 1, -1);
    if (ready < 0 && errno != EINTR) return fail_errno("poll");
    if (ready <= 0) continue;
    MC_TRY_(give_up());
    char byte = 0;
    const ssize_t n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) return true;
    if (n == 0) return false;
    if (errno != EAGAIN && errno != EINTR)
      return fail(Code::kUnavailable, "connection: %s", std::strerror(errno));
  }
}

bool Stream::readable_now() const {
  pollfd p{fd_.get(), POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

void Stream::shut_down() {
  if (fd_) ::shutdown(fd_.get(), SHUT_RDWR);
}

void Stream::tune() {
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
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
  if (::connect(stream.fd_.get(), found->ai_addr, found->ai_addrlen) == 0) return stream;
  if (errno != EINPROGRESS)
    return fail(Code::kUnavailable, "connect to %s: %s", text.c_str(), std::strerror(errno));
  MC_TRY_(stream.connected(text, give_up));
  return stream;
}

std::span<iovec> RowWalk::next() {
  size_t n = 0;
  for (; n < kParts && rows_ > 0; --rows_, at_ += stride_, ++n) parts_[n] = {at_, bytes_};
  return {parts_, n};
}

}  // namespace mc::xfer::tcp
