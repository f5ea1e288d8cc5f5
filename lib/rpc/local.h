// Serves calls in raw frames between processes of one machine and user. The peers are ZeroMQ REQ
// sockets over a unix socket. It is for other systems' protocols that are not MessagePack. Our own
// messages go through rpc/server.h.
//
// The server creates the socket's file for its owner alone (mode 0600), replaces a stale socket,
// and removes the file when it ends.
//
// Errors: kInvalid for a path that is too long or holds anything but a socket; kUnavailable when
// the server cannot bind it.
// Thread: the loop's; ask_local(): any.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/loop.h"

namespace mc::rpc {

class LocalServer {
 public:
  using Frames = std::vector<std::string>;
  // Answers once, now or later, on the loop's thread; the peer waits for it. It may outlive the
  // server.
  using Answer = std::function<void(const std::string& frame)>;
  using Handler = std::function<void(const Frames& question, const Answer& answer)>;

  // A question of more than `frames_max` frames, or of more bytes than a control message may have,
  // gets an empty frame as its answer and never reaches the handler. A single frame that is too
  // large ends the peer's connection.
  static Result<std::unique_ptr<LocalServer>> open(io::Loop& loop, const std::string& path,
                                                   size_t frames_max, Handler handler);
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

 private:
  LocalServer(io::Loop& loop, std::string path, size_t frames_max, Handler handler, void* socket);
  void receive();
  bool next();

  io::Loop& loop_;
  const std::string path_;
  const size_t frames_max_;
  const Handler handler_;
  void* socket_;
  io::Loop::Handle watch_ = 0;
  std::shared_ptr<void*> self_;  // the socket, for answers
};

// Sends a question and blocks until its answer comes: for tools and tests. Errors: kTimeout.
Result<std::string> ask_local(const std::string& path, const std::vector<std::string>& question,
                              Duration budget);

}  // namespace mc::rpc
