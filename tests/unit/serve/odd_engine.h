// An engine that answers requests for completions with bytes as they stand: a head that lies, half
// an answer, one byte at a time, as many as its client takes, nothing. Health checks and models are
// answered well.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "io/fd.h"
#include "io/loop.h"

namespace mc::serve::test {

struct OddEngine {
  explicit OddEngine(io::Loop& l)
      : loop(l), listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(::listen(listener.get(), 64) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    port = ntohs(at.sin_port);
    watch = loop.watch_fd(listener.get(), [this] { accept(); });
    dripping = loop.every(std::chrono::milliseconds(5), [this] { drip_on(); });
  }
  ~OddEngine() {
    loop.cancel(dripping);
    loop.unwatch(watch);
    for (auto& [fd, c] : open) loop.unwatch(c.watch);
  }
  std::string registration(const std::string& name) const {
    return "{\"instance_id\":\"" + name + "\",\"url\":\"http://127.0.0.1:" + std::to_string(port) +
           "\",\"modelname\":\"tiny\"}";
  }
  static std::string whole(std::string_view type, std::string_view body) {
    return strf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                std::string(type).c_str(), body.size()) +
           std::string(body);
  }

  struct Conn {
    io::Fd fd;
    io::Loop::Handle watch = 0;
    std::string in, rest;  // rest: not yet dripped
    size_t flooded = 0;    // of the answer
    bool floods = false;
  };
  void accept() {
    io::Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    const int n = fd.get();
    Conn& c = open[n];
    c.fd = std::move(fd);
    c.watch = loop.watch_fd(n, [this, n] { read(n); });
  }
  void drop(int n) {
    loop.unwatch(open.at(n).watch);
    open.erase(n);
  }
  void read(int n) {
    Conn& c = open.at(n);
    char buffer[65536];
    const auto got = ::recv(n, buffer, sizeof buffer, 0);
    if (got <= 0) return drop(n);
    c.in.append(buffer, static_cast<size_t>(got));
    const size_t blank = c.in.find("\r\n\r\n");
    if (blank == std::string::npos) return;
    size_t body = 0;
    if (const size_t at = c.in.find("Content-Length: "); at < blank)
      body = std::stoul(c.in.substr(at + 16));
    if (c.in.size() < blank + 4 + body) return;
    const bool check = c.in.starts_with("GET ");
    const bool models = c.in.starts_with("GET /v1/models");
    c.in.clear();
    if (check)
      return send(
          n, whole("application/json", models ? R"({"data":[{"id":"tiny"}]})" : std::string("{}")));
    ++asked;
    if (floods) {
      c.floods = true;
      c.flooded = 0;
      return;
    }
    if (drips) {
      const size_t head = drips_head ? 0 : answer.find("\r\n\r\n") + 4;
      send(n, answer.substr(0, head));
      c.rest = answer.substr(head);
      return;
    }
    send(n, answer);
    if (closes) drop(n);
  }
  void drip_on() {
    for (auto& [n, c] : open) {
      if (c.rest.empty()) continue;
      send(n, c.rest.substr(0, 1));
      c.rest.erase(0, 1);
      if (c.rest.empty() && again) c.rest = ":";  // for ever
    }
  }
  // Sends what the sockets take, `flood_most` bytes on each at most.
  void flood() {
    for (auto& [n, c] : open)
      for (size_t more = flood_most; c.floods && more > 0;) {
        const auto sent =
            ::send(n, answer.data() + c.flooded, std::min(more, answer.size() - c.flooded),
                   MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) break;
        more -= static_cast<size_t>(sent);
        c.flooded += static_cast<size_t>(sent);
        c.floods = c.flooded < answer.size();
        if (c.floods || !floods_to_end) continue;
        ++left;
        ::shutdown(n, SHUT_WR);
      }
  }
  static void send(int n, const std::string& bytes) {  // who left gets nothing
    [[maybe_unused]] const auto sent =
        ::send(n, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  io::Loop& loop;
  io::Fd listener;
  uint16_t port = 0;
  io::Loop::Handle watch = 0, dripping = 0;
  std::map<int, Conn> open;
  std::string answer;
  bool closes = false, drips = false, drips_head = false, again = false, floods = false;
  bool floods_to_end = false;  // and ends the connection then
  size_t flood_most = SIZE_MAX;
  int asked = 0, left = 0;
};

}  // namespace mc::serve::test
