// A shorter channel for control messages between processes of one host and user: two rings in
// memory that both have mapped, one in each direction, and a unix socket over which they wake each
// other and learn that the other has gone. A client looks for it beside ZeroMQ and does without
// where it is not there; the frames are the same. Source: docs/wire.md, "On one host".
//
// Neither side trusts the other with more than its own messages: positions and lengths are looked
// at once, checked, and what they say is copied before it is read. The memory cannot be shortened.
// A peer that breaks a rule loses the connection, no more.
//
// Thread: an end, or a handshake, belongs to one thread at a time.
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

namespace mc::rpc {

inline constexpr size_t kShmRingBytes = 64 * 1024;  // of one direction; longer messages flow

struct ShmRings;  // what both have mapped

// The names, in the abstract space of unix sockets, under which the server of "host:port" is found.
std::vector<std::string> shm_names(const std::string& address);

class ShmChannel {
 public:
  struct Message {
    std::string_view envelope, body;  // until the next receive()
  };
  // Memory for a new connection, which its server hands out.
  static Result<io::Fd> make_memory();
  static Result<ShmChannel> map(io::Fd socket, int memory, bool server);
  ShmChannel(ShmChannel&& other) noexcept;
  ShmChannel& operator=(ShmChannel&& other) noexcept;
  ~ShmChannel();

  int fd() const { return socket_.get(); }  // readable when there may be something
  // Takes over what finds no room now. False: it has gone, or does not read what is sent.
  bool send(std::string_view envelope, std::string_view body);
  // The next message. Nothing: there is none now, or broken().
  std::optional<Message> receive();
  bool broken() const { return broken_; }  // for good
  // A look that costs nothing: whether receive() may find something.
  bool has_input() const;
  // Before waiting for fd(): from now on the other side wakes this one. False: do not wait, there
  // is something to do.
  bool arm();
  void woken();  // after waiting, or instead of it

 private:
  struct Out;
  ShmChannel(io::Fd socket, ShmRings* memory, bool server);
  void release();
  void ring() const;
  size_t write_some(const char* from, size_t n);
  void put(std::string_view bytes);
  void flush();
  void wake_reader() const;
  bool take(uint64_t there);

  io::Fd socket_;
  ShmRings* memory_ = nullptr;
  bool server_ = false, broken_ = false;
  uint64_t written_ = 0, taken_ = 0;  // ours; what is in the memory is for the other side
  std::string waiting_;               // to be written
  size_t waiting_at_ = 0;
  std::string head_, message_;  // what is being read
  size_t envelope_bytes_ = 0, message_bytes_ = 0;
};

// How both find out that the other is of the same user and knows the same cluster key, if any.
//
//   server -> client  magic, nonce       client -> server  nonce, proof
//   server -> client  proof, memory
class ShmHandshake {
 public:
  // As a client. Errors: kUnavailable: nobody is there under that address, or somebody else.
  static Result<ShmHandshake> to(const std::string& address);
  // As the server that accepted it. Errors: kDenied: another user.
  static Result<ShmHandshake> from(io::Fd socket, const std::string& address);

  int fd() const { return socket_.get(); }
  // When fd() is readable: the connection, or nothing until it is readable again.
  Result<std::optional<ShmChannel>> step();

 private:
  ShmHandshake(io::Fd socket, bool server) : socket_(std::move(socket)), server_(server) {}
  Result<std::optional<ShmChannel>> step_server();
  Result<std::optional<ShmChannel>> step_client();
  std::string proof(const char* who) const;

  io::Fd socket_;
  bool server_ = false, greeted_ = false;
  std::string nonces_;  // the server's, then the client's
};

// Greets and waits. Errors: kUnavailable; kTimeout.
Result<ShmChannel> connect_shm(const std::string& address, Duration budget, const Clock& clock);

}  // namespace mc::rpc
