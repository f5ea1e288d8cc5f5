#include "model/threads.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace mc::model {

struct Threads::State {
  Mutex turn;  // of callers
  Mutex mutex;
  Condition changed;
  uint64_t round MC_GUARDED_BY(mutex) = 0;  // one for each run()
  size_t busy MC_GUARDED_BY(mutex) = 0;     // threads that have not finished the round
  bool stopping MC_GUARDED_BY(mutex) = false;
  // Of the round: written before it begins, read until it ends.
  const std::function<void(size_t)>* part = nullptr;
  size_t parts = 0;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;

  void work() {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < parts;) (*part)(i);
  }
  void serve() {
    uint64_t seen = 0;
    while (true) {
      {
        Lock lock(mutex);
        while (round == seen && !stopping) changed.wait(mutex);
        if (stopping) return;
        seen = round;
      }
      work();
      Lock lock(mutex);
      if (--busy == 0) changed.notify_all();
    }
  }
};

Threads::Threads(unsigned count) : state_(std::make_unique<State>()) {
  if (count == 0) count = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 1; i < count; ++i)
    state_->threads.emplace_back([s = state_.get()] { s->serve(); });
}

Threads::~Threads() {
  {
    Lock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

unsigned Threads::count() const { return static_cast<unsigned>(state_->threads.size()) + 1; }

void Threads::run(size_t parts, const std::function<void(size_t)>& part) {
  if (parts <= 1 || state_->threads.empty()) {
    for (size_t i = 0; i < parts; ++i) part(i);
    return;
  }
  Lock turn(state_->turn);
  {
    Lock lock(state_->mutex);
    state_->part = &part;
    state_->parts = parts;
    state_->next.store(0, std::memory_order_relaxed);
    state_->busy = state_->threads.size();
    ++state_->round;
  }
  state_->changed.notify_all();
  state_->work();
  Lock lock(state_->mutex);
  while (state_->busy > 0) state_->changed.wait(state_->mutex);
}

}  // namespace mc::model
