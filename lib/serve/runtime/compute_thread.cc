#include "serve/runtime/compute_thread.h"

#include <chrono>
#include <deque>
#include <utility>

#include "base/mutex.h"

namespace mc::serve {

struct ComputeThread::State {
  struct Job {
    Work work, done;
  };
  explicit State(io::Loop& l) : loop(l) {}

  io::Loop& loop;
  bool closed = false;  // set on the loop's thread: posted completions do nothing
  Mutex mutex;
  Condition changed;
  std::deque<Job> jobs MC_GUARDED_BY(mutex);
  bool stopping MC_GUARDED_BY(mutex) = false;

  static void run(const std::shared_ptr<State>& state);
  static bool post(const std::shared_ptr<State>& state, Work done);
};

// An overloaded loop refuses posts. A completion must not be lost, so this waits.
bool ComputeThread::State::post(const std::shared_ptr<State>& state, Work done) {
  const auto shared = std::make_shared<Work>(std::move(done));
  while (!state->loop.post([state, shared] {
    const Work on_loop = std::move(*shared);  // its captures are destroyed on this thread too
    if (!state->closed) on_loop();
  })) {
    Lock lock(state->mutex);
    if (state->stopping) return false;
    state->changed.wait_for(state->mutex, std::chrono::milliseconds(1));
  }
  return true;
}

void ComputeThread::State::run(const std::shared_ptr<State>& state) {
  while (true) {
    Job job;
    {
      Lock lock(state->mutex);
      while (state->jobs.empty() && !state->stopping) state->changed.wait(state->mutex);
      if (state->stopping) return;
      job = std::move(state->jobs.front());
      state->jobs.pop_front();
    }
    job.work();
    if (!post(state, std::move(job.done))) return;
  }
}

ComputeThread::ComputeThread(io::Loop& loop) : state_(std::make_shared<State>(loop)) {
  thread_ = std::thread([state = state_] { State::run(state); });
}

ComputeThread::~ComputeThread() {
  state_->closed = true;
  {
    Lock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  thread_.join();
  Lock lock(state_->mutex);
  state_->jobs.clear();
}

bool ComputeThread::submit(Work work, Work done) {
  {
    Lock lock(state_->mutex);
    if (state_->jobs.size() >= kQueuedMax) return false;
    state_->jobs.push_back({std::move(work), std::move(done)});
  }
  state_->changed.notify_one();
  return true;
}

size_t ComputeThread::room() const {
  Lock lock(state_->mutex);
  return kQueuedMax - state_->jobs.size();
}

}  // namespace mc::serve
