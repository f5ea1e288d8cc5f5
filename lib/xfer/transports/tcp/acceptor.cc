#include "xfer/transports/tcp/acceptor.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "rpc/socket.h"

namespace mc::xfer::tcp {
namespace {

constexpr int kAcceptsTogether = 16;  // then those who are here already are heard
constexpr int kRefusalsTogether = 256;
constexpr Duration kLogPeriod = std::chrono::seconds(1);

// An address of IPv4 as IPv6 has it, so that each peer has one.
std::array<uint8_t, 16> address_of(const sockaddr_storage& peer) {
  std::array<uint8_t, 16> out{};
  if (peer.ss_family == AF_INET6) {
    std::memcpy(out.data(), &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, 16);
  } else if (peer.ss_family == AF_INET) {
    out[10] = out[11] = 0xff;
    std::memcpy(&out[12], &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, 4);
  }
  return out;
}

std::string text_of(const std::array<uint8_t, 16>& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const bool v4 = address[10] == 0xff && address[11] == 0xff && address[0] == 0;
  ::inet_ntop(v4 ? AF_INET : AF_INET6, &address[v4 ? 12 : 0], text, sizeof text);
  return text;
}

bool out_of_means(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

io::Fd spare_file() { return io::Fd(::eventfd(0, EFD_CLOEXEC)); }

}  // namespace

void Refusals::add(const Address& from, const std::string& why, Time now) {
  counter_.add();
  ++unlogged_;
  if (logged_ != Time{} && now - logged_ < kLogPeriod) return;
  log_warn("xfer", "refused %llu data connections, the last from %s: %s",
           static_cast<unsigned long long>(std::exchange(unlogged_, 0)), text_of(from).c_str(),
           why.c_str());
  logged_ = now;
}

void answer_hello(int fd, uint64_t id, const Result<>& outcome) {
  const std::string text = outcome ? "" : outcome.error().what.substr(0, kTextMax);
  Header header =
      make_header(Kind::kReply, id, text.data(), static_cast<uint32_t>(text.size()),
                  outcome ? uint16_t{0} : static_cast<uint16_t>(outcome.error().code), kTakesMany);
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(text.data()), text.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  (void)::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Acceptor::Limits Acceptor::limits() {
  rlimit files{};
  const uint64_t most =
      ::getrlimit(RLIMIT_NOFILE, &files) == 0 ? std::min<uint64_t>(files.rlim_cur, 1 << 20) : 1024;
  return {.unproven = static_cast<size_t>(std::clamp<uint64_t>(most / 8, 2, kUnprovenMax)),
          .proven = static_cast<size_t>(std::clamp<uint64_t>(most / 2, 2, kProvenMax))};
}

Acceptor::Acceptor(std::string secret, const Clock& clock, Counter& refused, Owner& owner)
    : secret_(std::move(secret)),
      clock_(clock),
      owner_(owner),
      limits_(limits()),
      refusals_(refused) {}

Result<> Acceptor::listen_on(const std::string& text) {
  MC_TRY(const io::Address address, io::parse_address(text));
  if (!io::is_loopback(address.host) && rpc::cluster_keys().first == nullptr)
    return fail(Code::kInvalid,
                "refusing to take data on %s, beyond loopback, without a "
                "cluster key",
                text.c_str());
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) !=
      0)
    return fail(Code::kInvalid, "listen on %s: no such host", text.c_str());
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  io::Fd listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listener.get(), 4096) != 0)
    return fail(Code::kUnavailable, "listen on %s: %s", text.c_str(), std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t n = sizeof bound;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &n);
  char port[16] = {};
  ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), n, nullptr, 0, port, sizeof port,
                NI_NUMERICSERV);
  MC_TRY(const uint64_t number, parse_uint(port));
  bound_.push_back({address.host, static_cast<uint16_t>(number)});
  listeners_.push_back(std::move(listener));
  return {};
}

Result<> Acceptor::start() {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_ = spare_file();
  if (!wake_ || !spare_) return fail_errno("accept data connections");
  pending_.reserve(limits_.unproven + 1);
  thread_ = std::thread([this] { run(); });
  return {};
}

void Acceptor::wake() { eventfd_write(wake_.get(), 1); }

void Acceptor::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wake();
  thread_.join();
  pending_.clear();
}

void Acceptor::run() {
  while (!stopping_.load()) {
    try {
      turn();
    } catch (const std::bad_alloc&) {  // the next turn may find memory
      rest_until_ = clock_.now() + kRest;
    }
  }
}

// Waits until something happens, and handles it.
void Acceptor::turn() {
  owner_.reap();
  const Time now = clock_.now();
  drop_gone();
  expire(now);
  const bool accepts = accepts_from() <= now;
  std::array<pollfd, 1 + kUnprovenMax + 1 + kListenersMax> polled;
  size_t n = 0;
  polled[n++] = {wake_.get(), POLLIN, 0};
  const size_t waiting = pending_.size();
  for (const Pending& p : pending_) polled[n++] = {p.fd.get(), POLLIN, 0};
  for (size_t i = 0; accepts && i < listeners_.size(); ++i)
    polled[n++] = {listeners_[i].get(), POLLIN, 0};
  if (::poll(polled.data(), n, wait_ms(now, accepts)) < 0) {
    if (errno != EINTR) ::poll(nullptr, 0, static_cast<int>(kRest / std::chrono::milliseconds(1)));
    return;
  }
  eventfd_t count = 0;
  if (polled[0].revents != 0) (void)eventfd_read(wake_.get(), &count);
  for (size_t i = 0; i < waiting; ++i)
    if (polled[1 + i].revents != 0) hear(pending_[i]);
  drop_gone();
  for (size_t i = 1 + waiting; i < n; ++i)
    if (polled[i].revents != 0) accept_some(polled[i].fd);
}

int Acceptor::wait_ms(Time now, bool accepts) const {
  Time until = Time::max();
  if (!pending_.empty()) until = pending_.front().since + kHelloTime;
  if (!accepts) until = std::min(until, accepts_from());
  if (until == Time::max()) return -1;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void Acceptor::expire(Time now) {
  for (Pending& p : pending_) {
    if (now - p.since < kHelloTime) break;
    refuse(p, strf("no hello within %s", to_text(kHelloTime).c_str()));
  }
  drop_gone();
}

void Acceptor::drop_gone() {
  std::erase_if(pending_, [](const Pending& p) { return !p.fd; });
}

// Of an address that has all the slots it may have; null: there is none.
const Acceptor::Pending* Acceptor::oldest_of_full_address() const {
  const size_t most = (limits_.unproven + 1) / 2;
  if (pending_.size() < most) return nullptr;
  for (const Pending& p : pending_) {
    const auto same = [&](const Pending& other) { return other.from == p.from; };
    if (static_cast<size_t>(std::count_if(pending_.begin(), pending_.end(), same)) >= most)
      return &p;
  }
  return nullptr;
}

// When newcomers may be accepted: after a rest, and once who must make room has had a turn. Until
// then they wait in the kernel's queue.
Time Acceptor::accepts_from() const {
  Time from = rest_until_;
  if (pending_.size() >= limits_.unproven) from = std::max(from, pending_.front().since + kTurn);
  if (const Pending* full = oldest_of_full_address()) from = std::max(from, full->since + kTurn);
  return from;
}

void Acceptor::accept_some(int listener) {
  for (int i = 0; i < kAcceptsTogether; ++i) {
    const Time now = clock_.now();
    if (accepts_from() > now || !accept_one(listener, now)) return;
  }
}

// False: not now.
bool Acceptor::accept_one(int listener, Time now) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  Pending p;
  p.fd.reset(::accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC));
  if (!p.fd) return out_of_files(listener, errno, now);
  p.from = address_of(peer);
  p.since = now;
  if (::getrandom(p.nonce.data(), p.nonce.size(), 0) != static_cast<ssize_t>(p.nonce.size()))
    return true;
  make_room(p.from);
  const ssize_t sent = ::send(p.fd.get(), p.nonce.data(), p.nonce.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(p.nonce.size())) pending_.push_back(std::move(p));
  return true;
}

// The one of the newcomer's address that waited longest goes where that address has all of its
// slots; else, of the address that has most.
void Acceptor::make_room(const Address& newcomer) {
  const auto held_by = [&](const Address& a) {
    const auto same = [&](const Pending& p) { return p.from == a; };
    return static_cast<size_t>(std::count_if(pending_.begin(), pending_.end(), same));
  };
  Address from = newcomer;
  if (held_by(newcomer) < (limits_.unproven + 1) / 2) {
    if (pending_.size() < limits_.unproven) return;
    for (const Pending& p : pending_)
      if (held_by(p.from) > held_by(from)) from = p.from;
  }
  const auto oldest = std::find_if(pending_.begin(), pending_.end(),
                                   [&](const Pending& p) { return p.from == from; });
  if (oldest == pending_.end()) return;
  refuse(*oldest, "too many had not said hello yet");
  pending_.erase(oldest);
}

// After accept() failed. True: try again.
bool Acceptor::out_of_files(int listener, int error, Time now) {
  if (!out_of_means(error)) return error == ECONNABORTED;
  if (!pending_.empty() && now - pending_.front().since >= kTurn) {
    refuse(pending_.front(), strf("accept: %s", std::strerror(error)));
    pending_.erase(pending_.begin());
    return true;
  }
  // Who waits in the kernel's queue is refused, not left to wait.
  spare_.reset();
  for (int i = 0; i < kRefusalsTogether; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const io::Fd fd(::accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC));
    if (!fd) break;
    refusals_.add(address_of(peer),
                  strf("%s: raise the limit on open files (ulimit -n)", std::strerror(error)), now);
  }
  spare_ = spare_file();
  rest_until_ = now + kRest;
  return false;
}

void Acceptor::hear(Pending& p) {
  const ssize_t n =
      ::recv(p.fd.get(), p.hello.data() + p.bytes, kHelloBytes - p.bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (n <= 0) return p.fd.reset();  // it went away, which is no fault
  p.bytes += static_cast<size_t>(n);
  if (const auto checked = check_hello(p); !checked) return refuse(p, checked.error().what);
  if (p.bytes < kHelloBytes) return;
  Header header;
  std::memcpy(&header, p.hello.data(), sizeof header);
  owner_.take({std::move(p.fd), p.nonce, header.id});
}

// What has come of it so far.
Result<> Acceptor::check_hello(Pending& p) {
  if (p.bytes < sizeof(Header)) return {};
  Header header;
  std::memcpy(&header, p.hello.data(), sizeof header);
  MC_TRY_(check_header(header));
  if (header.kind != Kind::kHello || header.body_bytes != sizeof(HelloBody))
    return fail(Code::kCorrupt, "a data connection that does not begin with hello");
  if (p.bytes < kHelloBytes) return {};
  HelloBody hello;
  std::memcpy(&hello, p.hello.data() + sizeof header, sizeof hello);
  uint8_t difference = 0;  // compared without branching: the time must not tell where it differs
  const HelloBody want = prove(secret_, p.nonce);
  for (size_t i = 0; i < want.proof.size(); ++i)
    difference = static_cast<uint8_t>(difference | (want.proof[i] ^ hello.proof[i]));
  if (difference == 0) return {};
  const Result<> denied = fail(Code::kDenied, "wrong secret: fetch the segment again");
  answer_hello(p.fd.get(), header.id, denied);
  return denied;
}

void Acceptor::refuse(Pending& p, const std::string& why) {
  refusals_.add(p.from, why, clock_.now());
  p.fd.reset();
}

}  // namespace mc::xfer::tcp
