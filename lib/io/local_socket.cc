#include "io/local_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace mc::io {
namespace {

int with_address(int socket, std::string_view name, int (*call)(int, const sockaddr*, socklen_t)) {
  sockaddr_un address{};
  static_assert(kLocalNameMax + 1 == sizeof address.sun_path);
  if (name.size() > kLocalNameMax) return ENAMETOOLONG;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto n = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return call(socket, reinterpret_cast<const sockaddr*>(&address), n) == 0 ? 0 : errno;
}

int with_path(int socket, const std::string& path, int (*call)(int, const sockaddr*, socklen_t)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return call(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

Result<pid_t> pid_of_same_user(int socket) {
  ucred peer{};
  socklen_t n = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0)
    return fail_errno("read the user of a unix socket's peer");
  if (peer.uid != ::geteuid())
    return fail(Code::kDenied, "pid %d on this host runs as user %u: want user %u", peer.pid,
                peer.uid, ::geteuid());
  return peer.pid;
}

}  // namespace

int bind_local(int socket, std::string_view name) { return with_address(socket, name, ::bind); }

int connect_local(int socket, std::string_view name) {
  return with_address(socket, name, ::connect);
}

Result<Fd> listen_at_path(const std::string& path, int backlog) {
  if (path.size() > kLocalNameMax)
    return fail(Code::kInvalid, "socket %s: a path of more than %zu bytes", path.c_str(),
                kLocalNameMax);
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode))
      return fail(Code::kInvalid, "socket %s: there is a file that is no socket", path.c_str());
    const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (with_path(probe.get(), path, ::connect) != ECONNREFUSED)
      return fail(Code::kUnavailable, "socket %s: another process listens there", path.c_str());
    ::unlink(path.c_str());
  }
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || ::fchmod(fd.get(), 0600) != 0)  // Linux gives the path the socket's mode
    return fail_errno("socket %s", path.c_str());
  if (const int error = with_path(fd.get(), path, ::bind); error != 0)
    return fail(Code::kUnavailable, "socket %s: %s", path.c_str(), std::strerror(error));
  if (::listen(fd.get(), backlog) != 0) return fail_errno("listen on %s", path.c_str());
  return fd;
}

Result<> check_same_user(int socket) {
  MC_TRY_(pid_of_same_user(socket));
  return {};
}

Result<> check_process(int socket, pid_t pid) {
  MC_TRY(const pid_t listens, pid_of_same_user(socket));
  if (listens != pid)
    return fail(Code::kDenied, "pid %d listens there, not pid %d, which the peer says it is",
                listens, pid);
  return {};
}

bool send_with_fd(int socket, std::span<const char> bytes, int fd, int flags) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, flags | MSG_NOSIGNAL) >= 0;
}

WithFd receive_with_fd(int socket, std::span<char> into, int flags) {
  iovec data{into.data(), into.size()};
  msghdr message{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  WithFd out{::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC), {}};
  if (out.bytes < 0) return out;
  // A peer may send more descriptors than were asked for: the buffer has room for two on 64 bits.
  bool unasked = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= c->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
      unasked |= static_cast<bool>(out.fd);
      out.fd.reset(fd);
    }
  }
  if (unasked) {
    out = {-1, {}};
    errno = EPROTO;
  }
  return out;
}

}  // namespace mc::io
