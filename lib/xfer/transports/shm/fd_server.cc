#include "xfer/transports/shm/fd_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "io/local_socket.h"

namespace mc::xfer {
namespace {

constexpr int kPeerWaitMs = 2000;  // of a peer that asks
constexpr int kRestMs = 100;
constexpr Duration kTurn = std::chrono::milliseconds(10);

struct Answer {
  uint32_t code = 0;  // 0, or a Code
  uint32_t flags = 0;
  uint64_t bytes = 0;
};
constexpr uint32_t kWritable = 1, kNamed = 2;

bool readable(int fd, int ms) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, ms) == 1 && (p.revents & POLLIN) != 0;
}

void send_answer(int socket, const Answer& answer, int fd) {
  (void)io::send_with_fd(socket, {reinterpret_cast<const char*>(&answer), sizeof answer}, fd,
                         MSG_DONTWAIT);
}

}  // namespace

Result<std::unique_ptr<FdServer>> FdServer::open(const Registry& registry, const Clock& clock) {
  std::unique_ptr<FdServer> server(new FdServer(registry, clock));
  server->name_ =
      strf("mc-xfer-%d-%016llx", ::getpid(), static_cast<unsigned long long>(fresh_seed()));
  server->listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!server->listener_ || io::bind_local(server->listener_.get(), server->name_) != 0 ||
      ::listen(server->listener_.get(), 128) != 0)
    return fail_errno("unix socket for shared memory");
  server->stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!server->stop_) return fail_errno("eventfd for shared memory");
  server->pending_.reserve(kPendingMax + 1);
  server->thread_ = std::thread([s = server.get()] { s->run(); });
  return server;
}

FdServer::~FdServer() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void FdServer::run() {
  while (!stopping_.load()) turn();
}

// Waits until something happens, and handles it.
void FdServer::turn() {
  const Time now = clock_.now();
  std::erase_if(pending_, [&](const Pending& p) { return !p.fd || now - p.since >= kPeerWait; });
  std::array<pollfd, 2 + kPendingMax> polled;
  size_t n = 0;
  polled[n++] = {stop_.get(), POLLIN, 0};
  polled[n++] = {now < rest_until_ ? -1 : listener_.get(), POLLIN, 0};
  for (const Pending& p : pending_) polled[n++] = {p.fd.get(), POLLIN, 0};
  if (::poll(polled.data(), n, wait_ms(now)) < 0) {
    if (errno != EINTR) ::poll(nullptr, 0, kRestMs);
    return;
  }
  for (size_t i = 2; i < n; ++i)
    if (polled[i].revents != 0) answer(pending_[i - 2]);
  std::erase_if(pending_, [](const Pending& p) { return !p.fd; });
  if (polled[1].revents != 0) accept_some();
}

int FdServer::wait_ms(Time now) const {
  Time until = Time::max();
  if (!pending_.empty()) until = pending_.front().since + kPeerWait;
  if (now < rest_until_) until = std::min(until, rest_until_);
  if (until == Time::max()) return -1;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void FdServer::accept_some() {
  for (size_t i = 0; i < kPendingMax; ++i) {
    Pending peer{io::Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
                 clock_.now()};
    if (!peer.fd) {
      if (out_of_files(errno)) continue;
      return;
    }
    if (const auto known = io::check_same_user(peer.fd.get()); !known) {
      log_warn("xfer", "refused shared memory: %s", known.error().what.c_str());
      send_answer(peer.fd.get(), {static_cast<uint32_t>(Code::kDenied), 0, 0}, -1);
      continue;
    }
    if (pending_.size() >= kPendingMax) pending_.erase(pending_.begin());
    pending_.push_back(std::move(peer));
  }
}

// After accept() failed: the oldest makes room if it has not asked within its turn; else the server
// rests. True: try again.
bool FdServer::out_of_files(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS) return false;
  const Time now = clock_.now();
  if (pending_.empty()) {
    log_warn("xfer", "accept a peer for shared memory: %s", std::strerror(error));
    rest_until_ = now + std::chrono::milliseconds(kRestMs);
    return false;
  }
  if (now - pending_.front().since < kTurn) {
    rest_until_ = now + kTurn;
    return false;
  }
  pending_.erase(pending_.begin());
  return true;
}

void FdServer::answer(Pending& peer) {
  const io::Fd connection = std::move(peer.fd);  // one word, one answer
  uint32_t id = 0;
  if (::recv(connection.get(), &id, sizeof id, 0) != static_cast<ssize_t>(sizeof id)) return;
  const BufferPtr buffer = registry_.by_shm_id(id);
  if (buffer == nullptr || id == 0) {
    send_answer(connection.get(), {static_cast<uint32_t>(Code::kNotFound), 0, 0}, -1);
    return;
  }
  const uint32_t flags = (buffer->writable ? kWritable : 0u) | (buffer->named ? kNamed : 0u);
  const Answer ok{0, flags, buffer->bytes};
  if (buffer->writable) {
    send_answer(connection.get(), ok, buffer->memfd.get());
    return;
  }
  // Reopened for reading; the seal keeps others from opening it for more.
  const std::string path = "/proc/self/fd/" + std::to_string(buffer->memfd.get());
  const io::Fd read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const bool full = !read_only && (errno == EMFILE || errno == ENFILE || errno == ENOMEM);
  const Code refused = full ? Code::kBusy : Code::kUnsupported;
  if (!read_only)
    send_answer(connection.get(), {static_cast<uint32_t>(refused), 0, 0}, -1);
  else
    send_answer(connection.get(), ok, read_only.get());
}

Result<ReceivedFd> fetch_fd(const std::string& name, uint32_t shm_id,
                            const std::function<bool()>& given_up) {
  if (name.empty() || name.size() > io::kLocalNameMax)
    return fail(Code::kUnavailable, "the peer offers no shared memory");
  const io::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval limit{kPeerWaitMs / 1000, 0};  // of connect too, when the owner's backlog is full
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (!socket || io::connect_local(socket.get(), name) != 0 ||
      ::send(socket.get(), &shm_id, sizeof shm_id, MSG_NOSIGNAL) < 0)
    return fail(Code::kUnavailable, "shared memory of @%s: %s", name.c_str(), std::strerror(errno));
  MC_TRY_(io::check_same_user(socket.get()));
  Answer answer;
  constexpr int kStepMs = 20;
  int left = kPeerWaitMs;
  while (left > 0 && !readable(socket.get(), kStepMs) && !(given_up && given_up())) left -= kStepMs;
  if (!readable(socket.get(), 0))
    return fail(Code::kTimeout, "shared memory of @%s: no answer within %d ms", name.c_str(),
                kPeerWaitMs - std::max(left, 0));
  io::WithFd got =
      io::receive_with_fd(socket.get(), {reinterpret_cast<char*>(&answer), sizeof answer}, 0);
  if (got.bytes != static_cast<ssize_t>(sizeof answer))
    return fail(Code::kBusy, "shared memory of @%s: closed unanswered", name.c_str());
  ReceivedFd received;
  received.bytes = answer.bytes;
  received.writable = (answer.flags & kWritable) != 0;
  received.named = (answer.flags & kNamed) != 0;
  received.fd = std::move(got.fd);
  if (answer.code != 0 || !received.fd)
    return fail(answer.code == 0 ? Code::kUnavailable : code_from_wire(answer.code),
                "shared memory %u of @%s was not handed out", shm_id, name.c_str());
  return received;
}

bool listens_at(const std::string& name, uint32_t pid) {
  const io::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return socket && !name.empty() && io::connect_local(socket.get(), name) == 0 &&
         io::check_process(socket.get(), static_cast<pid_t>(pid)).has_value();
}

}  // namespace mc::xfer
