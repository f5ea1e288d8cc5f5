// Control messages through shared memory between processes of one host and user. Both map two
// rings, one for each direction. Over a unix socket they wake each other and learn that the other
// has gone. A client tries this channel beside ZeroMQ and does without it if there is none. The
// frames are the same.
//
// Neither side trusts the other with more than its own messages. Positions and lengths are read
// once and checked, and bytes are copied before they are parsed. The memory cannot be shortened. A
// peer that breaks a rule loses the connection.
//
// Thread: a channel, or a handshake, belongs to one thread at a time.
// Source: docs/wire.md, "On one host".
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "base/time.h"
#include "io/fd.h"
#include "rpc/access/cluster_key.h"

namespace mc::rpc {

inline constexpr size_t kShmRingBytes = 64 * 1024;  // of one direction; longer messages go in parts

struct ShmRings;  // what both have mapped

// The abstract unix socket names of the server at "host:port"; it listens on the first.
std::vector<std::string> shm_names(const std::string& address);

class ShmChannel {
 public:
  struct Message {
    std::string_view envelope, body;  // valid until the next receive()
  };
  // Creates the memory of a new connection, which the server passes to the client.
  static Result<io::Fd> make_memory();
  // `key`: what its handshake proved.
  static Result<ShmChannel> map(io::Fd socket, int memory, bool server, const ClusterKey* key);
  ShmChannel(ShmChannel&& other) noexcept;
  ShmChannel& operator=(ShmChannel&& other) noexcept;
  ~ShmChannel();

  int fd() const { return socket_.get(); }  // readable when there may be a message
  const ClusterKey* key() const { return key_; }
  // Keeps what finds no room in the ring now. False: the peer has gone, or does not read.
  bool send(std::string_view envelope, std::string_view body);
  // Returns: the next message; nothing when there is none now, or broken().
  std::optional<Message> receive();
  bool broken() const { return broken_; }  // permanently
  // Ends the connection, and gives its memory back: the peer sees that, and who waits for fd().
  void end();
  // Memory of a message that is not whole, and of what found no room in the ring.
  size_t held() const { return in_parts_ ? message_.capacity() : 0; }
  size_t waiting() const { return waiting_.size(); }
  // Call it when the last message is done with: one that was large gives its memory back.
  void forget_message();
  // Whether receive() may find a message; one load, no system call.
  bool has_input() const;
  // Call it before waiting for fd(): from now on the peer wakes this side. False: do not wait,
  // there is input or the channel is broken.
  bool arm();
  void woken();  // call it after waiting, or instead of it
  // Takes arm() back without a system call: this side polls has_input() from now on. A byte that
  // the peer sent before stays in fd(), for woken().
  void disarm();
  // Blocks until there may be input, at most so long. It takes the place of arm() and woken().
  void await_input(Duration most);

 private:
  struct Out;
  ShmChannel(io::Fd socket, ShmRings* memory, bool server, const ClusterKey* key);
  void release();
  void wake_peer() const;
  void check_socket();
  size_t write_some(const char* from, size_t n);
  void put(std::string_view bytes);
  void flush();
  void wake_reader() const;
  bool take(uint64_t there);

  io::Fd socket_;
  ShmRings* memory_ = nullptr;
  const ClusterKey* key_ = nullptr;
  bool server_ = false, broken_ = false, in_parts_ = false;
  uint64_t written_ = 0, taken_ = 0;  // trusted; their copies in the memory are for the peer
  std::string waiting_;               // not yet in the ring
  size_t waiting_at_ = 0;
  std::string head_, message_;  // the message being read
  size_t envelope_bytes_ = 0, message_bytes_ = 0;
};

// Proves to each side that the other is of the same user and knows the same cluster key, if any:
// the client's first, which may be the server's second.
//
//   server -> client  magic, nonce       client -> server  nonce, proof
//   server -> client  proof, memory
class ShmHandshake {
 public:
  // As a client. Errors: kUnavailable: no server, or another user's, listens at that address.
  static Result<ShmHandshake> to(const std::string& address);
  // As the server that accepted `socket`. Errors: kDenied: another user.
  static Result<ShmHandshake> from(io::Fd socket, const std::string& address);

  int fd() const { return socket_.get(); }
  // Call it when fd() is readable. Returns: the channel, or nothing until fd() is readable again.
  Result<std::optional<ShmChannel>> step();

 private:
  ShmHandshake(io::Fd socket, bool server) : socket_(std::move(socket)), server_(server) {}
  Result<std::optional<ShmChannel>> step_server();
  Result<std::optional<ShmChannel>> step_client();
  std::string proof(const char* who, const ClusterKey* key) const;

  io::Fd socket_;
  const ClusterKey* key_ = nullptr;  // the client's
  bool server_ = false, greeted_ = false;
  std::string nonces_;  // the server's, then the client's
};

// Connects and blocks for the handshake. Errors: kUnavailable; kTimeout.
Result<ShmChannel> connect_shm(const std::string& address, Duration budget, const Clock& clock);

}  // namespace mc::rpc
