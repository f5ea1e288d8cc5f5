#include "rpc/probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "io/address.h"
#include "io/fd.h"

namespace mc::rpc {
namespace {

// A listening address is chosen once those before it in the list were silent for this long.
constexpr Duration kPatience = std::chrono::milliseconds(50);

// Starts a connection; empty on failure.
io::Fd begin_connect(const std::string& text, bool& there) {
  const auto address = io::parse_address(text);
  if (!address) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address->host.c_str(), std::to_string(address->port).c_str(), &hints, &found) !=
      0)
    return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  io::Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {};
  there = ::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
  if (!there && errno != EINPROGRESS) return {};
  return fd;
}

bool connected(int fd) {
  int error = 0;
  socklen_t n = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == 0;
}

}  // namespace

size_t first_listening(const std::vector<std::string>& addresses, Duration budget,
                       const Clock& clock) {
  const Time start = clock.now();
  std::vector<io::Fd> fds;
  std::vector<bool> listens(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) {
    bool there = false;
    fds.push_back(begin_connect(addresses[i], there));
    listens[i] = there;
    if (there) fds.back().reset();
  }
  for (;;) {
    size_t best = 0;
    while (best < listens.size() && !listens[best]) ++best;
    const bool found = best < listens.size();
    std::vector<pollfd> open;
    bool before = false;  // an earlier address may still answer
    for (size_t i = 0; i < fds.size(); ++i) {
      open.push_back({fds[i].get(), POLLOUT, 0});  // poll() ignores -1
      before = before || (fds[i] && i < best);
    }
    if (!before) return found ? best : SIZE_MAX;
    const Duration left = (found ? std::min(kPatience, budget) : budget) - (clock.now() - start);
    if (left <= Duration::zero()) return found ? best : SIZE_MAX;
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    (void)::poll(open.data(), open.size(), static_cast<int>(ms));
    for (size_t i = 0; i < fds.size(); ++i) {
      if (!fds[i] || open[i].revents == 0) continue;
      listens[i] = connected(fds[i].get());
      fds[i].reset();
    }
  }
}

}  // namespace mc::rpc
