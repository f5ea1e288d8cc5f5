// Lets a prompt compute while the layers of its prefix still come from the pool: the compute thread
// waits for each layer, as vLLM's wait_for_layer_load() does.
//
// What the pool loses on the way is computed instead, all layers of the prefix: the same bytes.
//
// Thread: arrived(), over() and cancel() the loop's; await() the compute thread's.
// Source: global-prefix-cache chapter 7.4.10.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/mutex.h"
#include "serve/runtime/worker_core.h"

namespace mc::serve {

class LayerLoad {
 public:
  // Of blocks [first, last) of a prompt. The pool's reads are bounded; then over() is called.
  LayerLoad(size_t first, size_t last) : first_(first), last_(last) {}
  size_t blocks() const { return last_; }  // of the prompt, that are there when it is over

  void arrived(uint32_t layers);  // the first so many, of all blocks
  void over(bool whole);          // no more arrive
  void cancel();                  // nobody wants the KV any more

  // Waits until the layer's KV is there, or computes the prefix, some blocks at a time.
  void await(const Engine& engine, const SequenceView& sequence, uint32_t layer);

 private:
  enum class State : uint8_t { kLoading, kWhole, kLost, kCancelled };
  void end(State state);
  bool cancelled() const;

  const size_t first_, last_;
  mutable Mutex mutex_;
  Condition changed_;
  uint32_t layers_ MC_GUARDED_BY(mutex_) = 0;
  State state_ MC_GUARDED_BY(mutex_) = State::kLoading;
};

}  // namespace mc::serve
