// What a test speaks when it must be rude: a blocking-free TCP client without any idea of HTTP, and
// a wait that turns the loop.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <string_view>

#include "http/server.h"
#include "io/address.h"
#include "io/fd.h"
#include "tests/slow.h"

namespace mc::http::testing {

// Turns the loop until `done`; false after `limit`.
inline bool wait_until(io::Loop& loop, const std::function<bool()>& done,
                       Duration limit = std::chrono::seconds(20) * kSlow) {
  const Time end = loop.clock().now() + limit;
  while (!done()) {
    if (loop.clock().now() > end) return false;
    if (!loop.turn(std::chrono::milliseconds(5))) return false;
  }
  return true;
}

class RawClient {
 public:
  struct Later {};
  static constexpr Later kLater{};
  RawClient(io::Loop& loop, const std::string& address) : RawClient(loop, kLater) {
    connect(address);
  }
  RawClient(io::Loop& loop, Later)
      : loop_(loop), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  // "host:port", or the path of a unix socket.
  void connect(const std::string& address) {
    if (address.starts_with('/')) return connect_path(address);
    const auto where = io::parse_address(address);
    REQUIRE(where);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(where->port);
    REQUIRE(inet_pton(AF_INET, where->host.c_str(), &to.sin_addr) == 1);
    REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  }
  void connect_path(const std::string& path) {
    fd_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof to.sun_path);
    path.copy(to.sun_path, path.size());
    REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
      if (n < 0 && errno != EAGAIN) return false;
      if (n < 0 && !loop_.turn(std::chrono::milliseconds(1))) return false;
    }
    return true;
  }
  // Reads what is there; true once `text` has come.
  bool got(std::string_view text) {
    char buffer[4096];
    for (;;) {
      const auto n = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (n == 0) closed_ = true;
      if (n <= 0) break;
      received_.append(buffer, static_cast<size_t>(n));
    }
    return received_.find(text) != std::string::npos;
  }
  void small_buffer() {  // of what came and is not read
    const int bytes = 16 * 1024;
    REQUIRE(::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0);
  }
  // Reads so much of what is there, and keeps nothing of it. Returns: how much it was.
  size_t take(size_t most) {
    std::string buffer(most, 0);
    const auto n = ::recv(fd_.get(), buffer.data(), most, MSG_DONTWAIT);
    return n > 0 ? static_cast<size_t>(n) : 0;
  }
  bool wait_for(std::string_view text) {
    return wait_until(loop_, [&] { return got(text); });
  }
  bool wait_closed() {
    return wait_until(loop_, [&] { return got("\x01 never") || closed_; });
  }
  bool closed() const { return closed_; }  // seen by got()
  bool ended() const {                     // the server sends no more; reads nothing
    pollfd fd{.fd = fd_.get(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&fd, 1, 0) == 1 && (fd.revents & POLLRDHUP) != 0;
  }
  void end_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  const std::string& received() const { return received_; }

 private:
  io::Loop& loop_;
  io::Fd fd_;
  std::string received_;
  bool closed_ = false;
};

struct RawAnswer {
  int status = 0;
  std::string body;
};

// Asks on a connection of its own, and waits for the whole answer. Without a body it is a GET.
inline RawAnswer ask_at(io::Loop& loop, const std::string& address, const std::string& path,
                        const std::string& body, const std::string& headers = {}) {
  RawClient client(loop, address);
  client.send((body.empty() ? "GET " : "POST ") + path +
              " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers +
              "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  REQUIRE(client.wait_closed());
  const std::string& text = client.received();
  const size_t blank = text.find("\r\n\r\n");
  REQUIRE(text.starts_with("HTTP/1.1 "));
  REQUIRE(blank != std::string::npos);
  return {std::stoi(text.substr(9, 3)), text.substr(blank + 4)};
}

}  // namespace mc::http::testing
