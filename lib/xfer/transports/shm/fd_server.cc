#include "xfer/transports/shm/fd_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "io/local_socket.h"

namespace mc::xfer {
namespace {

constexpr int kPeerWaitMs = 2000;

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
  (void)io::send_with_fd(socket, {reinterpret_cast<const char*>(&answer), sizeof answer}, fd, 0);
}

}  // namespace

Result<std::unique_ptr<FdServer>> FdServer::open(const Registry& registry) {
  std::unique_ptr<FdServer> server(new FdServer(registry));
  server->name_ =
      strf("mc-xfer-%d-%016llx", ::getpid(), static_cast<unsigned long long>(fresh_seed()));
  server->listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!server->listener_ || io::bind_local(server->listener_.get(), server->name_) != 0 ||
      ::listen(server->listener_.get(), 128) != 0)
    return fail_errno("unix socket for shared memory");
  server->stop_.reset(::eventfd(0, EFD_CLOEXEC));
  server->thread_ = std::thread([s = server.get()] { s->run(); });
  return server;
}

FdServer::~FdServer() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void FdServer::run() {
  for (;;) {
    pollfd p[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(p, 2, -1) < 0 && errno != EINTR) return;
    if (p[1].revents != 0) return;
    if (p[0].revents == 0) continue;
    const io::Fd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection) answer(connection.get());
  }
}

void FdServer::answer(int connection) {
  if (const auto known = io::check_same_user(connection); !known) {
    log_warn("xfer", "refused shared memory: %s", known.error().what.c_str());
    send_answer(connection, {static_cast<uint32_t>(Code::kDenied), 0, 0}, -1);
    return;
  }
  uint32_t id = 0;
  if (!readable(connection, kPeerWaitMs) ||
      ::recv(connection, &id, sizeof id, 0) != static_cast<ssize_t>(sizeof id))
    return;
  const BufferPtr buffer = registry_.by_shm_id(id);
  if (buffer == nullptr || id == 0) {
    send_answer(connection, {static_cast<uint32_t>(Code::kNotFound), 0, 0}, -1);
    return;
  }
  const uint32_t flags = (buffer->writable ? kWritable : 0u) | (buffer->named ? kNamed : 0u);
  const Answer ok{0, flags, buffer->bytes};
  if (buffer->writable) {
    send_answer(connection, ok, buffer->memfd.get());
    return;
  }
  // Reopened for reading; the seal keeps others from opening it for more.
  const std::string path = "/proc/self/fd/" + std::to_string(buffer->memfd.get());
  const io::Fd read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only)
    send_answer(connection, {static_cast<uint32_t>(Code::kUnsupported), 0, 0}, -1);
  else
    send_answer(connection, ok, read_only.get());
}

Result<ReceivedFd> fetch_fd(const std::string& name, uint32_t shm_id) {
  if (name.empty() || name.size() > io::kLocalNameMax)
    return fail(Code::kUnavailable, "the peer offers no shared memory");
  const io::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval limit{kPeerWaitMs / 1000, 0};  // of connect too, when the owner's backlog is full
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (!socket || io::connect_local(socket.get(), name) != 0 ||
      ::send(socket.get(), &shm_id, sizeof shm_id, MSG_NOSIGNAL) < 0)
    return fail(Code::kUnavailable, "shared memory of @%s: %s", name.c_str(), std::strerror(errno));
  Answer answer;
  if (!readable(socket.get(), kPeerWaitMs))
    return fail(Code::kTimeout, "shared memory of @%s: no answer within %d ms", name.c_str(),
                kPeerWaitMs);
  io::WithFd got =
      io::receive_with_fd(socket.get(), {reinterpret_cast<char*>(&answer), sizeof answer}, 0);
  if (got.bytes != static_cast<ssize_t>(sizeof answer))
    return fail(Code::kUnavailable, "shared memory of @%s: closed unanswered", name.c_str());
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

}  // namespace mc::xfer
