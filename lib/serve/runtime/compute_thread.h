// Runs the engine's work on one thread, off the event loop.
// Jobs run in order, one at a time. Their completions run on the loop's thread, in the same order.
//
//   thread.submit([this] { engine.prefill_layer(chunk, l, x); }, [this] { layer_done(l); });
//
// The destructor waits for the running job and drops the waiting ones. No completion runs after it.
//
// Requires: what the work reads stays unchanged until its completion ran.
// Errors: submit returns false when kQueuedMax jobs wait: the caller should answer kBusy.
// Thread: construct, submit and destroy on the loop's thread; work runs on this object's.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

#include "io/loop.h"

namespace mc::serve {

class ComputeThread {
 public:
  using Work = std::function<void()>;
  static constexpr size_t kQueuedMax = 4096;

  explicit ComputeThread(io::Loop& loop);
  ~ComputeThread();
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;

  [[nodiscard]] bool submit(Work work, Work done);
  size_t room() const;  // jobs that submit() takes now

 private:
  struct State;
  std::shared_ptr<State> state_;  // outlives this in completions that were posted
  std::thread thread_;
};

}  // namespace mc::serve
