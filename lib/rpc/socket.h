// Wraps ZeroMQ for lib/rpc: the process's context, sockets and multipart messages.
// Nothing throws.
//
// Thread: a Socket belongs to one thread at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rpc/access/cluster_key.h"
#include "rpc/access/connection_guard.h"

namespace mc::rpc {

class Socket {
 public:
  enum class Kind { kRouter, kDealer, kPub, kSub };
  // A kPub receives subscriptions: a byte, 1 for a topic's first subscriber or 0 after its last one
  // left, and the topic.

  // Binds to "host:port" (port 0: a free one). Errors: kInvalid when the host is beyond loopback
  // and there is no cluster key; kUnavailable when the port is in use.
  static Result<Socket> listen(Kind kind, const std::string& address);
  // One more for the address of a listening socket, by another key. New connections go to the one
  // that was chosen last, by take_connections(); connections that exist stay with theirs.
  static Result<Socket> listen_beside(const Socket& other, const ClusterKey* key);
  // `at`: how many sockets of the same address were made before this one and still listen.
  Result<> take_connections(size_t at);
  // By the first key, or the one given. One that tells what became of it tries once only, and does
  // not connect again after its end: a kDealer while two keys stand, or as given.
  static Result<Socket> connect(Kind kind, const std::string& address);
  static Result<Socket> connect(Kind kind, const std::string& address, const ClusterKey* key);
  static Result<Socket> connect(Kind kind, const std::string& address, const ClusterKey* key,
                                bool tells);
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  ~Socket();

  void* handle() const { return handle_; }  // for io::Loop::watch_socket
  std::shared_ptr<const uint64_t> uses() const { return uses_; }
  const std::string& address() const { return address_; }  // "host:port", the port resolved
  const ClusterKey* key() const { return key_; }           // null: none

  // Of a connecting socket that tells it: nothing is known yet; the server knows the key; it does
  // not, or was not there (in both cases nothing that was sent has left); the connection ended.
  enum class Fate { kOpen, kProven, kRefused, kEnded };
  Fate fate();
  Fate known_fate() const { return fate_; }  // as of the last fate()
  bool tells() const { return monitor_ != nullptr; }
  // As of the last fate(): it has begun to connect. One whose name has no address never does, and
  // says nothing.
  bool begun() const { return begun_; }
  void* monitor() const { return monitor_; }  // readable when fate() may have changed
  std::shared_ptr<const uint64_t> monitor_uses() const { return monitor_uses_; }

  // Never blocks: kBusy when the peer's queue is full or there is no such peer. A kPub leaves those
  // subscribers out that have 8,192 messages unread; kBusy when these and what all other peers have
  // not read are over a bound of bytes (rpc/access/unread_answers.h).
  Result<> send(const std::vector<std::string_view>& frames);
  // The next message, or an empty vector when there is none. Messages over the limits are dropped,
  // and who sent one to a listening socket is disconnected.
  std::vector<std::string> receive();
  bool wait_readable(int ms);  // or until fate() may have changed
  // Of a listening socket: the connections that rpc/access/connection_guard.h ended.
  void count_ended(Metrics& metrics) { guard_->count(metrics); }
  size_t connections() const { return guard_->facts.connections; }
  void on_doubt(std::function<bool()> ask) { guard_->growth().on_doubt(std::move(ask)); }

 private:
  Socket(void* handle, std::string address, Kind kind, const ClusterKey* key)
      : handle_(handle), address_(std::move(address)), kind_(kind), key_(key) {}
  Result<> prepare_to_listen();
  Result<> watch_fate();
  void* handle_ = nullptr;
  void* monitor_ = nullptr;
  std::string address_;
  Kind kind_;
  const ClusterKey* key_;
  Fate fate_ = Fate::kOpen;
  bool begun_ = false;
  std::shared_ptr<uint64_t> uses_ = std::make_shared<uint64_t>(0);
  std::shared_ptr<uint64_t> monitor_uses_;  // of one that tells
  std::unique_ptr<ConnectionGuard> guard_;  // of a listening socket
};

}  // namespace mc::rpc
