// Sends a decode worker's tokens to the conductors that asked for them, until they take them
// (token_outbox.h).
//
// Thread: the loop's.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/loop.h"
#include "rpc/client.h"
#include "serve/worker/token_outbox.h"

namespace mc::serve {

class TokenSender {
 public:
  // `node`: the worker's name. A message without an answer within `retry` is sent again; a
  // conductor that takes nothing for `patience` is gone.
  TokenSender(io::Loop& loop, NodeId node, Duration retry, Duration patience)
      : loop_(loop), node_(std::move(node)), retry_(retry), patience_(patience) {}

  void send(const std::string& conductor, std::vector<TokenUpdate> updates);
  void drop(const std::string& conductor, const std::string& request);  // it was aborted
  // Returns: the conductors that are gone. What they did not take is forgotten. Call it often.
  std::vector<std::string> tick();
  // Every answer is at its conductor, but for conductors that took nothing for ten seconds.
  bool settled() const;

 private:
  struct Conductor {
    std::unique_ptr<rpc::Client> client;
    TokenOutbox outbox;
  };
  void flush(const std::string& name, Conductor& to);

  io::Loop& loop_;
  const NodeId node_;
  const Duration retry_, patience_;
  std::map<std::string, Conductor> conductors_;
};

}  // namespace mc::serve
