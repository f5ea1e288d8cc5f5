#include "model/kernels/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace mc::model {
namespace {

constexpr int kSpins = 4000;  // some tens of microseconds

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::State {
  Mutex turn;  // of callers
  Mutex mutex;
  Condition changed;
  // Written under the mutex, looked at without it for a while before a thread sleeps.
  std::atomic<uint64_t> round{0};  // one for each run()
  std::atomic<size_t> busy{0};     // threads that have not finished the round
  std::atomic<bool> stopping{false};
  // Of the round: written before it begins, read until it ends.
  const std::function<void(size_t)>* part = nullptr;
  size_t parts = 0;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;

  void work() {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < parts;) (*part)(i);
  }
  // Until `ready`: a wake-up from sleep costs more than most parts do.
  template <class Ready>
  void wait(const Ready& ready) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return;
      pause();
    }
    Lock lock(mutex);
    while (!ready()) changed.wait(mutex);
  }
  void serve() {
    uint64_t seen = 0;
    while (true) {
      wait([&] { return round.load() != seen || stopping.load(); });
      if (stopping.load()) return;
      seen = round.load();
      work();
      if (busy.fetch_sub(1) > 1) continue;
      Lock lock(mutex);
      changed.notify_all();
    }
  }
};

ThreadPool::ThreadPool(unsigned count) : state_(std::make_unique<State>()) {
  if (count == 0) count = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 1; i < count; ++i)
    state_->threads.emplace_back([s = state_.get()] { s->serve(); });
}

ThreadPool::~ThreadPool() {
  {
    Lock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

unsigned ThreadPool::count() const { return static_cast<unsigned>(state_->threads.size()) + 1; }

void ThreadPool::run(size_t parts, const std::function<void(size_t)>& part) {
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
    state_->round.fetch_add(1);
  }
  state_->changed.notify_all();
  state_->work();
  state_->wait([this] { return state_->busy.load() == 0; });
}

}  // namespace mc::model
