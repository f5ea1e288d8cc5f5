// What a test speaks when it must be rude: a blocking-free TCP client without any idea of HTTP, and
// a wait that turns the loop.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <string_view>

#include "http/server.h"
#include "io/address.h"
#include "io/fd.h"

namespace mc::http::testing {

// Turns the loop until `done`; false after `limit`.
inline bool wait_until(io::Loop& loop, const std::function<bool()>& done,
                       Duration limit = std::chrono::seconds(20)) {
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
  void connect(const std::string& address) {
    const auto where = io::parse_address(address);
    REQUIRE(where);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(where->port);
    REQUIRE(inet_pton(AF_INET, where->host.c_str(), &to.sin_addr) == 1);
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
  bool wait_for(std::string_view text) {
    return wait_until(loop_, [&] { return got(text); });
  }
  bool wait_closed() {
    return wait_until(loop_, [&] { return got("\x01 never") || closed_; });
  }
  void close() { fd_.reset(); }
  const std::string& received() const { return received_; }

 private:
  io::Loop& loop_;
  io::Fd fd_;
  std::string received_;
  bool closed_ = false;
};

}  // namespace mc::http::testing
