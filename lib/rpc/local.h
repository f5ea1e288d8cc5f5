// Questions between processes of one machine and user: ZeroMQ REQ peers over a unix socket, raw
// frames both ways. For protocols of others that are not MessagePack; ours go through rpc/server.h.
//
// The socket's file is made for its owner alone (mode 0600), replaces a socket that was left there,
// and goes with the server.
//
// Thread: the loop's; LocalClient: one thread. Errors: kInvalid for a path that is too long or
// holds something else than a socket; kUnavailable when it cannot be bound.
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
  // May be used later, on the loop's thread, also when the server is gone; the peer waits for it.
  using Answer = std::function<void(const std::string& frame)>;
  using Handler = std::function<void(const Frames& question, const Answer& answer)>;

  // Questions of more frames than `frames_max`, or bytes than a control message may have, are
  // answered with an empty frame and never reach the handler; a single frame that is too large
  // costs the peer its connection.
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

// Asks, and blocks for the answer: for tools and tests. Errors: kTimeout.
Result<std::string> ask_local(const std::string& path, const std::vector<std::string>& question,
                              Duration budget);

}  // namespace mc::rpc
