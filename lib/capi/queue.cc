#include "capi/queue.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "base/mutex.h"
#include "base/text.h"
#include "capi/common.h"
#include "io/fd.h"

namespace mc::capi {
namespace {

constexpr uint32_t kThreads = 2, kThreadsMax = 64, kDepth = 4096, kDepthMax = 1 << 20;

Error cancelled() { return {Code::kUnavailable, "cancelled"}; }

}  // namespace

struct Queue::State {
  struct Flight {  // a batch that moves
    uint64_t number = 0, tag = 0;
    xfer::Engine* engine = nullptr;
    xfer::BatchId batch = 0;
  };
  State(const Clock& c, uint32_t d, int event) : clock(c), depth(d), fd(event) {}

  Result<> begin() MC_REQUIRES(mutex) {
    if (open >= depth)
      return fail(Code::kBusy, "%zu calls wait or are not taken: take them, or retry", open);
    ++open;
    return {};
  }
  void finish(const mc_done& one) {
    {
      const Lock lock(mutex);
      done.push_back(one);
      if (done.size() == 1) (void)::eventfd_write(fd.get(), 1);
    }
    done_or_not.notify_all();
  }
  void landed(const Flight& flight, size_t requests) {
    const xfer::BatchSummary sum = flight.engine->summary(flight.batch);
    mc_done one{flight.tag, static_cast<uint32_t>(sum.error.code),
                static_cast<uint32_t>(sum.failed), sum.bytes_done};
    if (sum.requests == 0)  // freed meanwhile
      one = {flight.tag, MC_UNAVAILABLE, static_cast<uint32_t>(requests), 0};
    else if (sum.failed == 0)
      one.code = MC_OK;
    {
      const Lock lock(mutex);
      std::erase_if(flying, [&](const Flight& f) { return f.number == flight.number; });
    }
    finish(one);
  }

  const Clock& clock;
  const size_t depth;
  const io::Fd fd;
  Mutex mutex;
  Condition to_do, done_or_not;
  std::deque<Call> waiting MC_GUARDED_BY(mutex);
  std::vector<const Call*> running MC_GUARDED_BY(mutex);
  std::vector<Flight> flying MC_GUARDED_BY(mutex);
  std::deque<mc_done> done MC_GUARDED_BY(mutex);
  size_t open MC_GUARDED_BY(mutex) = 0;  // calls that are not taken
  uint64_t next_flight MC_GUARDED_BY(mutex) = 0;
  bool stopping MC_GUARDED_BY(mutex) = false;
};

Result<std::unique_ptr<Queue>> Queue::open(const Clock& clock, uint32_t threads, uint32_t depth) {
  if (threads > kThreadsMax || depth > kDepthMax)
    return fail(Code::kInvalid, "a queue of %u threads and %u calls: want at most %u and %u",
                threads, depth, kThreadsMax, kDepthMax);
  const int event = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event < 0) return fail_errno("new eventfd");
  auto queue = std::unique_ptr<Queue>(
      new Queue(std::make_shared<State>(clock, depth == 0 ? kDepth : depth, event)));
  for (uint32_t i = 0; i < (threads == 0 ? kThreads : threads); ++i)
    queue->threads_.emplace_back([state = queue->state_.get()] { work(*state); });
  return queue;
}

Queue::~Queue() {
  std::deque<Call> waiting;
  std::vector<State::Flight> flying;
  {
    const Lock lock(state_->mutex);
    state_->stopping = true;
    waiting.swap(state_->waiting);
    flying = state_->flying;
    for (const Call* call : state_->running) call->stop();
  }
  state_->to_do.notify_all();
  for (const Call& call : waiting) (void)call.give_up(cancelled());
  for (const State::Flight& flight : flying) flight.engine->cancel(flight.batch);
  for (std::thread& thread : threads_) thread.join();
}

void Queue::work(State& state) {
  for (;;) {
    Call call;
    {
      const Lock lock(state.mutex);
      while (state.waiting.empty() && !state.stopping) state.to_do.wait(state.mutex);
      if (state.stopping) return;
      call = std::move(state.waiting.front());
      state.waiting.pop_front();
      state.running.push_back(&call);
    }
    mc_done one{};
    const mc_code code = guarded([&]() -> Result<> {
      one = call.run();
      return {};
    });
    if (code != MC_OK) one.code = code;
    one.tag = call.tag;
    {
      const Lock lock(state.mutex);
      std::erase(state.running, &call);
    }
    call = {};  // before its caller may go on
    state.finish(one);
  }
}

Result<> Queue::submit(Call call) {
  {
    const Lock lock(state_->mutex);
    MC_TRY_(state_->begin());
    state_->waiting.push_back(std::move(call));
  }
  state_->to_do.notify_one();
  return {};
}

Result<> Queue::submit(uint64_t tag, xfer::Engine& engine, xfer::BatchId batch, size_t count,
                       const Begin& begin) {
  State::Flight flight{0, tag, &engine, batch};
  {
    const Lock lock(state_->mutex);
    MC_TRY_(state_->begin());
    flight.number = state_->next_flight++;
    state_->flying.push_back(flight);
  }
  auto submitted = begin([state = state_, flight, count] { state->landed(flight, count); });
  if (submitted) return {};
  const Lock lock(state_->mutex);
  --state_->open;
  std::erase_if(state_->flying, [&](const State::Flight& f) { return f.number == flight.number; });
  return submitted;
}

int Queue::fd() const { return state_->fd.get(); }

size_t Queue::take(std::span<mc_done> out) {
  const Lock lock(state_->mutex);
  const size_t n = std::min(out.size(), state_->done.size());
  if (n == 0) return 0;
  std::copy_n(state_->done.begin(), n, out.begin());
  state_->done.erase(state_->done.begin(), state_->done.begin() + static_cast<ptrdiff_t>(n));
  state_->open -= n;
  eventfd_t count = 0;
  if (state_->done.empty()) (void)::eventfd_read(state_->fd.get(), &count);
  return n;
}

Result<> Queue::wait(Duration budget) {
  const Time deadline = state_->clock.now() + budget;
  const Lock lock(state_->mutex);
  while (state_->done.empty()) {
    const Duration left = deadline - state_->clock.now();
    if (left <= Duration::zero())
      return fail(Code::kTimeout, "nothing was done within %s", rounded_text(budget).c_str());
    state_->done_or_not.wait_for(state_->mutex, left);
  }
  return {};
}

Result<> Queue::cancel(uint64_t tag) {
  std::vector<Call> calls;
  std::vector<State::Flight> flying;
  bool runs = false;
  {
    State& s = *state_;
    const Lock lock(s.mutex);
    for (auto it = s.waiting.begin(); it != s.waiting.end();) {
      if (it->tag != tag) {
        ++it;
        continue;
      }
      calls.push_back(std::move(*it));
      it = s.waiting.erase(it);
    }
    for (const State::Flight& f : s.flying)
      if (f.tag == tag) flying.push_back(f);
    for (const Call* call : s.running)
      if (call->tag == tag) {
        call->stop();
        runs = true;
      }
  }
  for (const Call& call : calls) {
    mc_done one = call.give_up(cancelled());
    one.tag = tag;
    one.code = MC_UNAVAILABLE;
    state_->finish(one);
  }
  for (const State::Flight& flight : flying) flight.engine->cancel(flight.batch);
  if (calls.empty() && flying.empty() && !runs)
    return fail(Code::kNotFound, "no call with tag %llu waits or runs",
                static_cast<unsigned long long>(tag));
  return {};
}

}  // namespace mc::capi

extern "C" {

mc_code mc_queue_open(mc_engine* engine, uint32_t threads, uint32_t depth, mc_queue** out) {
  using namespace mc;
  return capi::guarded(engine, [&]() -> Result<> {
    MC_TRY_(capi::need(out, "out"));
    auto queue = std::make_unique<mc_queue>();
    MC_TRY(queue->calls, capi::Queue::open(engine->clock, threads, depth));
    *out = queue.release();
    return {};
  });
}

int mc_queue_fd(const mc_queue* queue) { return queue == nullptr ? -1 : queue->calls->fd(); }

size_t mc_queue_take(mc_queue* queue, mc_done* out, size_t capacity) {
  return mc::capi::usable(queue) && out != nullptr ? queue->calls->take({out, capacity}) : 0;
}

mc_code mc_queue_wait(mc_queue* queue, unsigned timeout_ms) {
  return mc::capi::guarded(
      queue, [&] { return queue->calls->wait(std::chrono::milliseconds(timeout_ms)); });
}

mc_code mc_queue_cancel(mc_queue* queue, uint64_t tag) {
  return mc::capi::guarded(queue, [&] { return queue->calls->cancel(tag); });
}

size_t mc_queue_drive(mc_queue* queue, unsigned timeout_ms, mc_each_done each, void* user) {
  if (each == nullptr || mc_queue_wait(queue, timeout_ms) != MC_OK) return 0;
  std::array<mc_done, 64> some{};
  size_t all = 0;
  for (size_t n = some.size(); n == some.size(); all += n) {
    n = mc_queue_take(queue, some.data(), some.size());
    for (size_t i = 0; i < n; ++i) each(user, &some[i]);
  }
  return all;
}

void mc_queue_close(mc_queue* queue) { mc::capi::destroy(queue); }

}  // extern "C"
