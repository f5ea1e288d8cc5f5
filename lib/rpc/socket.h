// Wraps ZeroMQ for lib/rpc: the process's context, the cluster key, sockets and multipart messages.
// Nothing throws.
//
// Thread: a Socket belongs to one thread at a time; use_cluster_key before the first socket.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rpc/connection_guard.h"

namespace mc::rpc {

// Sets the secret that all processes of a cluster share. With it every control connection is
// encrypted and authenticated (CURVE). The server's key pair is derived from the secret, so a
// client that knows the server's public key has proved that it knows the secret. Without a key a
// server may listen on loopback only. Errors: kInvalid for a key of fewer than 16 bytes.
Result<> use_cluster_key(const std::string& secret);
// The same from a file; an empty path: none. Errors: kDenied when others may read the file.
Result<> load_cluster_key(const std::string& path);
const std::string& cluster_key();  // empty: none

class Socket {
 public:
  enum class Kind { kRouter, kDealer, kPub, kSub };
  // A kPub receives subscriptions: a byte, 1 for a topic's first subscriber or 0 after its last one
  // left, and the topic.

  // Binds to "host:port" (port 0: a free one). Errors: kInvalid when the host is beyond loopback
  // and there is no cluster key; kUnavailable when the port is in use.
  static Result<Socket> listen(Kind kind, const std::string& address);
  static Result<Socket> connect(Kind kind, const std::string& address);
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  ~Socket();

  void* handle() const { return handle_; }  // for io::Loop::watch_socket
  std::shared_ptr<const uint64_t> uses() const { return uses_; }
  const std::string& address() const { return address_; }  // "host:port", the port resolved

  // Never blocks: kBusy when the peer's queue is full or there is no such peer.
  Result<> send(const std::vector<std::string_view>& frames);
  // The next message, or an empty vector when there is none. Messages over the limits are dropped,
  // and who sent one to a listening socket is disconnected.
  std::vector<std::string> receive();
  bool wait_readable(int ms);
  // Of a listening socket: the connections that rpc/connection_guard.h ended.
  void count_ended(Metrics& metrics) { guard_->count(metrics); }
  void on_doubt(std::function<bool()> ask) { guard_->growth().on_doubt(std::move(ask)); }

 private:
  Socket(void* handle, std::string address) : handle_(handle), address_(std::move(address)) {}
  void* handle_ = nullptr;
  std::string address_;
  std::shared_ptr<uint64_t> uses_ = std::make_shared<uint64_t>(0);
  std::unique_ptr<ConnectionGuard> guard_;  // of a listening socket
};

}  // namespace mc::rpc
