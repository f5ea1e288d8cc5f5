#include "serve/prefill/layer_load.h"

#include <algorithm>

namespace mc::serve {
namespace {

constexpr uint32_t kTokensAtOnce = 256;  // as many numbers between the steps as a small chunk has

}  // namespace

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
    if (state_ == State::kCancelled) return;
    state_ = state;
  }
  changed_.notify_all();
}

void LayerLoad::over(bool whole) { end(whole ? State::kWhole : State::kLost); }
void LayerLoad::cancel() { end(State::kCancelled); }

bool LayerLoad::cancelled() const {
  Lock lock(mutex_);
  return state_ == State::kCancelled;
}

bool LayerLoad::settled() const {
  Lock lock(mutex_);
  return state_ == State::kWhole || state_ == State::kComputed;
}

bool LayerLoad::await(const Engine& engine, const ChunkView& chunk, uint32_t layer,
                      Activations& activations) {
  {
    Lock lock(mutex_);
    while (state_ == State::kLoading && layers_ <= layer) changed_.wait(mutex_);
    if (state_ != State::kLost) return state_ != State::kCancelled;
    state_ = State::kComputing;
  }
  const uint32_t tokens = engine.block_tokens();
  const size_t step = std::max(kTokensAtOnce / tokens, 1u);
  for (size_t at = first_; at < last_ && !cancelled(); at += step)
    engine.write({chunk.sequence, at * tokens, std::min(at + step, last_) * tokens});
  activations = {};
  for (uint32_t before = 0; before < layer && !cancelled(); ++before)
    engine.prefill_layer(chunk, before, activations);
  end(State::kComputed);
  return !cancelled();
}

}  // namespace mc::serve
