// Prepares a node on a thread of its own. To find the masters, to allocate the memory and to check
// what files hold takes seconds, in which the loop answers /ready and signals.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "store/node/node.h"

namespace mc::store {

class NodeOpening {
 public:
  using Done = std::function<void(Result<PreparedNode>)>;
  // Calls `done` once, on the loop, which may destroy this. Requires: the engine outlives it.
  NodeOpening(io::Loop& loop, xfer::Engine& engine, NodeId name, NodeOptions options, Done done);
  ~NodeOpening();  // waits for the thread; `done` is not called any more
  NodeOpening(const NodeOpening&) = delete;
  NodeOpening& operator=(const NodeOpening&) = delete;

  bool running() const { return static_cast<bool>(done_); }
  const std::string& what() const { return what_; }  // it does, for /ready

 private:
  void finish();

  io::Loop& loop_;
  const std::string what_;
  Done done_;
  std::optional<Result<PreparedNode>> prepared_;  // the thread's until it has ended
  io::Fd ended_;                                  // eventfd
  io::Loop::Handle watch_ = 0;
  std::thread thread_;
};

}  // namespace mc::store
