#include "rpc/access/same_port.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace mc::rpc {
namespace {

Failure refused() {
  return fail(Code::kUnavailable, "listen on a port once more: %s", std::strerror(errno));
}

}  // namespace

Result<io::Fd> listen_on_same_port(int listener, int backlog) {
  const int on = 1, off = 0;
  sockaddr_storage address{};
  socklen_t n = sizeof address;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &n) != 0 ||
      ::setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0)
    return refused();
  io::Fd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return refused();
  if (address.ss_family == AF_INET6)
    (void)::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), n) != 0 ||
      ::listen(fd.get(), backlog) != 0)
    return refused();
  return fd;
}

Result<> take_connections_of_port(int listener, size_t at) {
  sock_filter answer[] = {{BPF_RET | BPF_K, 0, 0, static_cast<uint32_t>(at)}};
  const sock_fprog program{1, answer};
  if (::setsockopt(listener, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) != 0)
    return refused();
  return {};
}

}  // namespace mc::rpc
