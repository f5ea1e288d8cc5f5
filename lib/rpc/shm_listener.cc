#include "rpc/shm_listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "io/local_socket.h"

namespace mc::rpc {
namespace {

constexpr Duration kAwake = std::chrono::microseconds(60);   // the longest poll after a message
constexpr Duration kRounds = std::chrono::microseconds(50);  // before others of the loop
// Heard within this time before a wake-up: it will call again soon.
constexpr Duration kWarm = std::chrono::milliseconds(1);
constexpr Duration kAcceptRest = std::chrono::milliseconds(100);
constexpr int kPeerTurn = 64;  // messages of one peer before the next has its turn
constexpr size_t kHandshakesMax = 32;
constexpr uint64_t kListener = UINT64_MAX;
constexpr uint64_t kShakesHands = uint64_t{1} << 63;  // plus its descriptor

}  // namespace

Result<std::unique_ptr<ShmListener>> ShmListener::open(io::Loop& loop, const std::string& address,
                                                       Counter& ended, Take take) {
  const auto names = shm_names(address);
  if (names.empty()) return fail(Code::kInvalid, "%s: not an address with a port", address.c_str());
  auto server =
      std::unique_ptr<ShmListener>(new ShmListener(loop, address, ended, std::move(take)));
  server->listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  server->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!server->listener_ || !server->epoll_)
    return fail_errno("create sockets for callers on this host");
  const int bound = io::bind_local(server->listener_.get(), names[0]);
  if (bound != 0 || ::listen(server->listener_.get(), 128) != 0)
    return fail(Code::kUnavailable, "unix socket @%s: %s", names[0].c_str(),
                std::strerror(bound != 0 ? bound : errno));
  server->watch(server->listener_.get(), kListener);
  return server;
}

ShmListener::ShmListener(io::Loop& loop, std::string address, Counter& ended, Take take)
    : loop_(loop),
      address_(std::move(address)),
      ended_(ended),
      take_(std::move(take)),
      poller_(kAwake) {
  hot_watch_ = loop_.watch_memory([this] { return poll_hot(); }, [this] { take_hot(); });
}

ShmListener::~ShmListener() {
  if (rest_ != 0) loop_.cancel(rest_);
  loop_.unwatch(hot_watch_);
  loop_.unwatch(poll_watch_);
}

void ShmListener::watch(int fd, uint64_t what) {
  if (poll_watch_ == 0) poll_watch_ = loop_.watch_fd(epoll_.get(), [this] { poll(); });
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = what;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

bool ShmListener::has_input() const {
  return std::any_of(hot_.begin(), hot_.end(), [](const Peer* p) { return p->end.has_input(); });
}

bool ShmListener::poll_hot() {
  if (hot_.empty()) return false;
  const auto outcome = poller_.poll(loop_.clock(), [this] { return has_input(); });
  if (outcome != BusyPoller::Outcome::kSleep) return true;
  std::erase_if(hot_, [this](Peer* peer) {
    peer->hot = !peer->end.arm() && !peer->end.broken();
    if (!peer->hot) warm_.push_back(peer);
    return !peer->hot;
  });
  if (!hot_.empty()) heat_warm();  // one of them called just now
  return !hot_.empty();
}

void ShmListener::heat(Peer& peer) {
  if (!std::exchange(peer.hot, true)) hot_.push_back(&peer);
}

void ShmListener::heat_warm() {
  const Time since = loop_.clock().now() - kWarm;
  for (Peer* peer : std::exchange(warm_, {})) {
    if (peer->hot || peer->heard < since) continue;
    peer->end.disarm();
    heat(*peer);
  }
}

// Goes round again while there is input, for a while: the loop's look at its descriptors costs as
// much as several messages.
void ShmListener::take_hot() {
  const Time until = loop_.clock().now() + kRounds;
  do {
    for (size_t i = 0; i < hot_.size();) {
      Peer& peer = *hot_[i];
      const bool lives = take_some(peer);
      if (!lives) drop(peer.id);  // from hot_ too
      i += lives ? 1 : 0;
    }
  } while (has_input() && loop_.clock().now() < until);
}

// False: the caller must drop the peer.
bool ShmListener::take_some(Peer& peer) {
  for (int i = 0; i < kPeerTurn; ++i) {
    const auto message = peer.end.receive();
    if (!message) break;
    poller_.restart();
    peer.heard = loop_.now();
    take_(peer.id, *message);
    peer.end.forget_message();
  }
  count(peer);
  return !peer.end.broken();
}

// What it holds of this process's memory.
void ShmListener::count(Peer& peer) {
  peer.unread.set(peer.end.waiting());
  held_ -= std::exchange(peer.held, peer.end.held());
  held_ += peer.held;
  if (held_ > kHeldMax) end_largest();
}

// Its end is noticed later, because callers may hold a reference to it now.
void ShmListener::end_largest() {
  const auto most = std::max_element(
      peers_.begin(), peers_.end(),
      [](const auto& a, const auto& b) { return a.second->held < b.second->held; });
  Peer& peer = *most->second;
  log_debug("rpc", "ended a caller of this host: all sent more than can be taken in, it most");
  peer.end.end();
  held_ -= std::exchange(peer.held, 0);
  ended_.add();
}

void ShmListener::poll() {
  std::array<epoll_event, 64> events{};
  const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool called = false;
  for (int i = 0; i < n; ++i) {
    const uint64_t what = events[static_cast<size_t>(i)].data.u64;
    if (what == kListener) {
      accept();
    } else if ((what & kShakesHands) != 0) {
      shake_hands(static_cast<int>(what & ~kShakesHands));
    } else if (const auto it = peers_.find(what); it != peers_.end()) {
      Peer& peer = *it->second;
      called = true;
      if (!take_some(peer)) {  // before woken() sees that the peer ended: its last messages count
        drop(what);
        continue;
      }
      peer.end.woken();
      heat(peer);
      if (!take_some(peer)) drop(what);
    }
  }
  if (called) heat_warm();
}

void ShmListener::accept() {
  for (;;) {
    io::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return rest_if_full(errno);
    if (peers_.size() >= kPeersMax) continue;
    auto handshake = ShmHandshake::from(std::move(socket), address_);
    if (!handshake) {
      log_debug("rpc", "%s", handshake.error().what.c_str());
      continue;
    }
    // The oldest unfinished handshake makes room.
    if (handshakes_.size() >= kHandshakesMax) handshakes_.pop_front();
    watch(handshake->fd(), kShakesHands | static_cast<uint64_t>(handshake->fd()));
    handshakes_.push_back(std::move(*handshake));
  }
}

// Without a descriptor for it a caller stays in the queue, and the loop would be woken for it
// without end.
void ShmListener::rest_if_full(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS) return;
  log_warn("rpc", "accept a caller of this host: %s", std::strerror(error));
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  rest_ = loop_.after(kAcceptRest, [this] {
    rest_ = 0;
    watch(listener_.get(), kListener);
  });
}

void ShmListener::shake_hands(int fd) {
  const auto it = std::find_if(handshakes_.begin(), handshakes_.end(),
                               [fd](const ShmHandshake& g) { return g.fd() == fd; });
  if (it == handshakes_.end()) return;
  auto end = it->step();
  if (end && !*end) return;
  handshakes_.erase(it);  // and its socket, unless the channel took it over
  if (!end) return log_debug("rpc", "%s", end.error().what.c_str());
  const uint64_t id = next_peer_++;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, (*end)->fd(), &event);
  auto& peer = peers_[id] = std::make_unique<Peer>(Peer{id, std::move(**end), true});
  hot_.push_back(peer.get());
  poller_.restart();
}

void ShmListener::drop(uint64_t id) {
  const auto it = peers_.find(id);
  held_ -= it->second->held;
  std::erase(hot_, it->second.get());
  std::erase(warm_, it->second.get());
  peers_.erase(it);
}

size_t ShmListener::keep(const ClusterKeys& keys) {
  std::vector<uint64_t> revoked;
  size_t by_second = 0;
  for (const auto& [id, peer] : peers_) {
    if (!keys.has(peer->end.key()))
      revoked.push_back(id);
    else
      by_second += peer->end.key() != keys.first ? 1 : 0;
  }
  for (const uint64_t id : revoked) drop(id);
  return by_second;
}

// A peer that does not read loses its connection. The shutdown event drops it later, because
// callers may hold a reference to it now.
bool ShmListener::send(uint64_t id, std::string_view envelope, std::string_view body) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return false;
  Peer& peer = *it->second;
  ShmChannel& end = peer.end;
  const bool waits = end.waiting() > 0 || body.size() > kShmRingBytes;
  if (waits && body.size() > UnreadAnswers::kSmall &&
      !UnreadAnswers::may_have(end.waiting(), body.size()))
    return false;
  const bool sent = end.send(envelope, body);
  if (!sent) ::shutdown(end.fd(), SHUT_RDWR);
  peer.unread.set(end.waiting());
  return sent;
}

}  // namespace mc::rpc
