// One thread that runs the engine's work off the event loop: jobs in order, one at a time, and the
// completion of each on the loop's thread, in the same order.
//
//   thread.submit([this] { engine.prefill_layer(chunk, l, x); }, [this] { layer_done(l); });
//
// What the work reads must stay unchanged until its completion ran. The destructor waits for the
// job that runs now; jobs that wait are dropped, and no completion runs after it.
//
// Thread: construct, submit and destroy on the loop's thread; work runs on this object's.
// Errors: submit says false when kQueuedMax jobs wait: the caller should say busy.
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

 private:
  struct State;
  std::shared_ptr<State> state_;  // outlives this in completions that were posted
  std::thread thread_;
};

}  // namespace mc::serve
