// Computes a sequence's KV on the worker that decodes it, a piece at a time, so that batch steps
// run in between. For KV that did not arrive, and for sequences that were preempted.
//
// Thread: the loop's; pieces run on the core's compute thread.
#pragma once
#include <functional>
#include <memory>

#include "io/loop.h"
#include "serve/runtime/sequence.h"
#include "serve/runtime/worker_core.h"

namespace mc::serve {

class KvRecompute {
 public:
  KvRecompute(io::Loop& loop, WorkerCore& core, const Engine& engine, double time_scale)
      : loop_(loop), core_(core), engine_(engine), timing_{engine.spec(), time_scale} {}

  // Writes the KV of tokens [begin, end); `done` runs on a later turn, also when the sequence ends
  // meanwhile. Until then the sequence is `busy`. Errors: kBusy: too much is queued.
  using Done = std::function<void(const Result<>&)>;
  void run(const SequencePtr& s, size_t begin, size_t end, Done done);

  // Predicted, from what was computed so far.
  double seconds(size_t begin, size_t end) const;

 private:
  void computed(const SequencePtr& s, size_t begin, size_t upto, size_t end, Time start, Done done);

  io::Loop& loop_;
  WorkerCore& core_;
  const Engine& engine_;
  const Timing timing_;
  double correction_ = 1;                                       // measured by predicted
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers check it
};

}  // namespace mc::serve
