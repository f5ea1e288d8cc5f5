// An engine that computes when a test lets it.
#pragma once
#include <vector>

#include "base/mutex.h"
#include "pair.h"

namespace mc::serve {

// The dummy engine, which computes while its gate is open, and notes the chunks.
class GatedEngine final : public Engine {
 public:
  struct Chunk {
    int32_t token = 0;  // the prompt's first
    size_t begin = 0, end = 0;
    bool operator==(const Chunk&) const = default;
  };
  const cost::ModelSpec& spec() const override { return dummy_.spec(); }
  uint32_t block_tokens() const override { return kBlock; }
  bool ends_answer(int32_t token) const override { return dummy_.ends_answer(token); }
  bool modelled_time() const override { return false; }
  uint64_t verify(const SequenceView& s) const override { return dummy_.verify(s); }
  std::vector<int32_t> decode(std::span<const DecodeItem> batch) const override {
    return dummy_.decode(batch);
  }
  void prefill_layer(const ChunkView& chunk, uint32_t layer,
                     Activations& activations) const override {
    {
      Lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      while (!open_ || held_ == chunk.sequence.tokens[0]) changed_.wait(mutex_);
      --waiting_;
      if (layer == 0) chunks_.push_back({chunk.sequence.tokens[0], chunk.begin, chunk.end});
    }
    dummy_.prefill_layer(chunk, layer, activations);
  }
  void open(bool on = true) {
    Lock lock(mutex_);
    open_ = on;
    changed_.notify_all();
  }
  void hold(int32_t token) {  // prompts that begin with it wait; 0: none
    Lock lock(mutex_);
    held_ = token;
    changed_.notify_all();
  }
  void await_call() {  // until it waits at the gate
    Lock lock(mutex_);
    while (waiting_ == 0) changed_.wait(mutex_);
  }
  bool called() const {
    Lock lock(mutex_);
    return waiting_ > 0;
  }
  std::vector<Chunk> chunks() const {
    Lock lock(mutex_);
    return chunks_;
  }

 private:
  const DummyEngine dummy_{cost::tiny(), kBlock};
  mutable Mutex mutex_;
  mutable Condition changed_;
  bool open_ MC_GUARDED_BY(mutex_) = false;
  int32_t held_ MC_GUARDED_BY(mutex_) = 0;
  mutable int waiting_ MC_GUARDED_BY(mutex_) = 0;
  mutable std::vector<Chunk> chunks_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::serve
