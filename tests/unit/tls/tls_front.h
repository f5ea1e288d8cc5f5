// A TLS server in front of a plain one: what a client sends it goes to the other, and back. It
// keeps what was decrypted. Each connection has a thread.
#pragma once
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "certificates.h"
#include "io/address.h"
#include "io/fd.h"

namespace mc::tls::test {

class TlsFront {
 public:
  // `behind`: "127.0.0.1:port".
  TlsFront(const Certified& me, const std::string& behind, int versions_max = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_server_method())), behind_(io::parse_address(behind)->port) {
    SSL_CTX_set_max_proto_version(context_, versions_max);
    if (versions_max < TLS1_2_VERSION) SSL_CTX_set_cipher_list(context_, "ALL:@SECLEVEL=0");
    REQUIRE(SSL_CTX_use_certificate(context_, me.certificate.get()) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey(context_, me.key.get()) == 1);
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = loopback(0);
    socklen_t size = sizeof at;
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(listener_.get(), 16) == 0);
    REQUIRE(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    port_ = ntohs(at.sin_port);
    accepting_ = std::thread([this] { accept(); });
  }
  ~TlsFront() {
    ending_ = true;
    accepting_.join();
    for (std::thread& t : serving_) t.join();
    SSL_CTX_free(context_);
  }
  TlsFront(const TlsFront&) = delete;
  TlsFront& operator=(const TlsFront&) = delete;
  std::string url(const char* host = "127.0.0.1") const {
    return std::string("https://") + host + ":" + std::to_string(port_);
  }
  std::string decrypted() const {
    const std::lock_guard lock(mutex_);
    return decrypted_;
  }
  int connections() const { return connections_; }

 private:
  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    return at;
  }
  static bool readable(int fd, int ms) {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, ms) > 0;
  }
  void accept() {
    while (!ending_) {
      if (!readable(listener_.get(), 20)) continue;
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      ++connections_;
      serving_.emplace_back([this, fd] { serve(io::Fd(fd)); });
    }
  }
  void serve(io::Fd fd) {
    const timeval limit{5, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    SSL* const session = SSL_new(context_);
    SSL_set_fd(session, fd.get());
    if (SSL_accept(session) == 1) relay(session, fd.get());
    SSL_shutdown(session);
    SSL_free(session);
    ERR_clear_error();
  }
  void relay(SSL* session, int client) {
    const io::Fd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in to = loopback(behind_);
    if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return;
    char buffer[16384];
    while (!ending_) {
      if (SSL_pending(session) > 0 || readable(client, 2)) {
        const int n = SSL_read(session, buffer, sizeof buffer);
        if (n <= 0) return;
        {
          const std::lock_guard lock(mutex_);
          decrypted_.append(buffer, static_cast<size_t>(n));
        }
        if (::send(server.get(), buffer, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return;
      }
      if (readable(server.get(), 2)) {
        const auto n = ::recv(server.get(), buffer, sizeof buffer, 0);
        if (n <= 0 || SSL_write(session, buffer, static_cast<int>(n)) != n) return;
      }
    }
  }

  SSL_CTX* const context_;
  const uint16_t behind_;
  io::Fd listener_;
  uint16_t port_ = 0;
  std::atomic<bool> ending_{false};
  std::atomic<int> connections_{0};
  mutable std::mutex mutex_;
  std::string decrypted_;
  std::thread accepting_;
  std::vector<std::thread> serving_;
};

}  // namespace mc::tls::test
