// ZeroMQ sockets to servers that are not of this cluster: they do not know its key, and are trusted
// less. A message over kOutsideBytesMax ends the connection, kOutsideQueueMax may wait.
//
// Thread: one at a time.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace mc::rpc {

inline constexpr size_t kOutsideBytesMax = 4 * kMiB;
inline constexpr int kOutsideQueueMax = 4096;

class OutsideSocket {
 public:
  enum class Kind { kDealer, kSub };
  // "host:port"; a server that is not there yet is waited for. Errors: kInvalid.
  static Result<OutsideSocket> connect(Kind kind, const std::string& address);
  OutsideSocket(OutsideSocket&& other) noexcept;
  OutsideSocket& operator=(OutsideSocket&& other) noexcept;
  ~OutsideSocket();

  void* handle() const { return handle_; }  // for io::Loop::watch_socket
  // False when the queue is full.
  bool send(const std::vector<std::string_view>& frames);
  // The next message, at most 16 frames of it; empty when there is none.
  std::vector<std::string> receive();

 private:
  explicit OutsideSocket(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace mc::rpc
