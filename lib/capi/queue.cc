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
#include "io/thread.h"

namespace mc::capi {
namespace {

constexpr uint32_t kThreads = 2, kThreadsMax = 64, kDepth = 4096, kDepthMax = 1 << 20;

// How long a call that waits for a value may keep its thread: as long as there are threads for all
// of them, the first; with more, their turns together take about the second.
constexpr Duration kTurn = std::chrono::milliseconds(200), kRound = std::chrono::milliseconds(20),
                   kTurnLeast = std::chrono::milliseconds(1);

Error cancelled() { return {Code::kUnavailable, "cancelled"}; }

}  // namespace

struct Queue::State {
  struct Flight {  // a batch that moves
    uint64_t number = 0, tag = 0;
    xfer::Engine* engine = nullptr;
    xfer::BatchId batch = 0;
  };
  State(const Clock& c, uint32_t t, uint32_t d, int event)
      : clock(c), threads(t), depth(d), fd(event) {}

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

  // Before a call is put where it waits for a thread. Most find one at once, and their times end in
  // turn: the thread for late calls is woken by the first, and then about once a timeout.
  void expect(const Call& call) MC_REQUIRES(mutex) {
    if (call.until >= next_late) return;
    next_late = call.until;
    over.notify_all();
  }
  Duration turn_of_a_waiting_call() const MC_REQUIRES(mutex) {
    if (parked.empty()) return kTurn;
    const auto each =
        kRound * static_cast<int64_t>(waiters.size()) / static_cast<int64_t>(parked.size());
    return std::clamp<Duration>(each, kTurnLeast, kTurn);
  }

  // Behind the others that wait for a value. Their threads are started when there are such calls.
  Result<> park(Call& call) MC_REQUIRES(mutex) {
    if (stopping) return fail(cancelled());
    if (waiters.size() < threads) {
      auto thread = io::start_thread([this] { work(*this, true); });
      if (!thread && waiters.empty()) return fail(thread.error());
      if (thread) waiters.push_back(std::move(*thread));
    }
    expect(call);
    parked.push_back(std::move(call));
    to_wait.notify_one();
    return {};
  }

  const Clock& clock;
  const size_t threads;  // of each kind
  const size_t depth;
  const io::Fd fd;
  Mutex mutex;
  Condition to_do, to_wait, over, done_or_not;
  std::deque<Call> waiting MC_GUARDED_BY(mutex);  // for a thread
  std::deque<Call> parked MC_GUARDED_BY(mutex);   // the same, and for a value
  std::vector<std::thread> waiters MC_GUARDED_BY(mutex);
  Time next_late MC_GUARDED_BY(mutex) = Time::max();  // when to look; none is late before
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
  const uint32_t count = threads == 0 ? kThreads : threads;
  auto queue = std::unique_ptr<Queue>(
      new Queue(std::make_shared<State>(clock, count, depth == 0 ? kDepth : depth, event)));
  State* const state = queue->state_.get();
  for (uint32_t i = 0; i < count; ++i) {
    MC_TRY(std::thread thread, io::start_thread([state] { work(*state, false); }));
    queue->threads_.push_back(std::move(thread));
  }
  MC_TRY(std::thread late, io::start_thread([state] { end_late(*state); }));
  queue->threads_.push_back(std::move(late));
  return queue;
}

Queue::~Queue() {
  std::deque<Call> waiting, parked;
  std::vector<State::Flight> flying;
  std::vector<std::thread> waiters;
  {
    const Lock lock(state_->mutex);
    state_->stopping = true;
    waiting.swap(state_->waiting);
    parked.swap(state_->parked);
    waiters.swap(state_->waiters);
    flying = state_->flying;
    for (const Call* call : state_->running) call->stop();
  }
  for (Condition* all : {&state_->to_do, &state_->to_wait, &state_->over}) all->notify_all();
  for (const Call& call : waiting) (void)call.give_up(cancelled());
  for (const Call& call : parked) (void)call.give_up(cancelled());
  for (const State::Flight& flight : flying) flight.engine->cancel(flight.batch);
  for (std::thread& thread : threads_) thread.join();
  for (std::thread& thread : waiters) thread.join();
}

void Queue::work(State& state, bool waits) {
  for (;;) {
    Call call;
    Duration hold{};
    {
      const Lock lock(state.mutex);
      std::deque<Call>& calls = waits ? state.parked : state.waiting;
      Condition& some = waits ? state.to_wait : state.to_do;
      while (calls.empty() && !state.stopping) some.wait(state.mutex);
      if (state.stopping) return;
      call = std::move(calls.front());
      calls.pop_front();
      state.running.push_back(&call);
      if (waits) hold = state.turn_of_a_waiting_call();
    }
    carry_out(state, call, hold);
  }
}

void Queue::carry_out(State& state, Call& call, Duration hold) {
  std::optional<mc_done> one;
  const mc_code code = guarded([&]() -> Result<> {
    one = call.turn(hold);
    return {};
  });
  if (code != MC_OK) one = mc_done{0, static_cast<uint32_t>(code), 0, 0};
  Error why;
  {
    const Lock lock(state.mutex);
    std::erase(state.running, &call);
    if (!one) {
      const auto parked = state.park(call);
      if (parked) return;
      why = parked.error();
    }
  }
  if (!one) one = call.give_up(why);
  one->tag = call.tag;
  call = {};  // before its caller may go on
  state.finish(*one);
}

// Ends calls whose time is over while they wait for a thread.
void Queue::end_late(State& state) {
  for (;;) {
    std::vector<Call> late;
    {
      const Lock lock(state.mutex);
      if (state.stopping) return;
      const Time now = state.clock.now();
      if (now < state.next_late) {
        if (state.next_late == Time::max())
          state.over.wait(state.mutex);
        else
          state.over.wait_for(state.mutex, state.next_late - now);
        continue;
      }
      state.next_late = Time::max();
      for (std::deque<Call>* calls : {&state.waiting, &state.parked}) {
        const auto in_time = [&](const Call& call) { return call.until > now; };
        const auto over = std::stable_partition(calls->begin(), calls->end(), in_time);
        late.insert(late.end(), std::move_iterator(over), std::move_iterator(calls->end()));
        calls->erase(over, calls->end());
        for (const Call& call : *calls) state.next_late = std::min(state.next_late, call.until);
      }
    }
    for (Call& call : late) {
      mc_done one =
          call.late({Code::kTimeout, "no thread of the queue was free within the call's timeout"});
      one.tag = call.tag;
      call = {};
      state.finish(one);
    }
  }
}

Result<> Queue::submit(Call call) {
  {
    const Lock lock(state_->mutex);
    MC_TRY_(state_->begin());
    state_->expect(call);
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
    for (std::deque<Call>* waiting : {&s.waiting, &s.parked})
      for (auto it = waiting->begin(); it != waiting->end();) {
        if (it->tag != tag) {
          ++it;
          continue;
        }
        calls.push_back(std::move(*it));
        it = waiting->erase(it);
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
    static const SteadyClock clock;  // a queue may be closed after its engine
    MC_TRY(queue->calls, capi::Queue::open(clock, threads, depth));
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
