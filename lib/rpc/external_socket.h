// ZeroMQ sockets to servers that are not of this cluster: they do not know its key, and are trusted
// less. A message over kExternalBytesMax ends the connection, kExternalQueueMax may wait.
//
// Thread: one at a time.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace mc::rpc {

inline constexpr size_t kExternalBytesMax = 4 * kMiB;
inline constexpr int kExternalQueueMax = 4096;

class ExternalSocket {
 public:
  enum class Kind { kDealer, kSub };
  // "host:port"; a server that is not there yet is waited for. Errors: kInvalid.
  static Result<ExternalSocket> connect(Kind kind, const std::string& address);
  ExternalSocket(ExternalSocket&& other) noexcept;
  ExternalSocket& operator=(ExternalSocket&& other) noexcept;
  ~ExternalSocket();

  void* handle() const { return handle_; }  // for io::Loop::watch_socket
  // False when the queue is full.
  bool send(const std::vector<std::string_view>& frames);
  // The next message, at most 16 frames of it; empty when there is none.
  std::vector<std::string> receive();

 private:
  explicit ExternalSocket(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace mc::rpc
