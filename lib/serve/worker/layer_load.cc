#include "serve/worker/layer_load.h"

namespace mc::serve {

void LayerLoad::arrived(uint32_t layers) {
  {
    Lock lock(mutex_);
    layers_ = layers;
  }
  changed_.notify_all();
}

void LayerLoad::end(State state) {
  {
    Lock lock(mutex_);
    if (state_ == State::kLoading) state_ = state;
  }
  changed_.notify_all();
}

void LayerLoad::over(bool whole) { end(whole ? State::kWhole : State::kLost); }
void LayerLoad::cancel() { end(State::kCancelled); }

void LayerLoad::await(const Engine& engine, const SequenceView& sequence, uint32_t layer) {
  {
    Lock lock(mutex_);
    while (state_ == State::kLoading && layers_ <= layer)
      if (!changed_.wait_for(mutex_, patience_)) state_ = State::kLost;
    if (state_ != State::kLost) return;
    state_ = State::kWhole;  // from here on
  }
  const uint32_t tokens = engine.block_tokens();
  engine.write({sequence, first_ * tokens, last_ * tokens});
}

}  // namespace mc::serve
