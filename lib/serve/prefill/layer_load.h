// Lets a prompt compute while the layers of its prefix still come from the pool: the compute thread
// waits for each layer, as vLLM's wait_for_layer_load() does.
//
// Layers are verified when the last ones are here. What the pool lost, or gave wrong, is computed
// instead: all layers of the prefix, and again the layers computed with it.
//
// Thread: arrived(), over(), settled() and cancel() the loop's; await() the compute thread's.
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
  void over(bool whole);          // no more arrive; all that did are as they were put
  void cancel();                  // nobody wants the KV any more
  // What was computed with the prefix so far will not be computed again.
  bool settled() const;

  // Waits until the prefix's KV of this layer is there. Or computes the prefix, some blocks at a
  // time, and the chunk's layers before this one. False: it was cancelled, and the layer must not
  // be computed: what the ones before it left may be gone.
  bool await(const Engine& engine, const ChunkView& chunk, uint32_t layer,
             Activations& activations);

 private:
  enum class State : uint8_t { kLoading, kWhole, kLost, kComputing, kComputed, kCancelled };
  void end(State state);
  bool cancelled() const;

  const size_t first_, last_;
  mutable Mutex mutex_;
  Condition changed_;
  uint32_t layers_ MC_GUARDED_BY(mutex_) = 0;
  State state_ MC_GUARDED_BY(mutex_) = State::kLoading;
};

}  // namespace mc::serve
