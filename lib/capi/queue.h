// Calls that return at once. Threads of the queue carry out those of the store, the engine moves
// batches, and what is done waits until the caller takes it. An eventfd is readable meanwhile.
//
// A call that waits for a value has its first turn on one of these threads, and its further ones on
// threads for such calls, which they share in short turns: it keeps no other call waiting. A call
// that finds no free thread in its time is ended as late.
//
// Thread: any. The destructor waits for the calls in progress, which end within their timeouts.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/result.h"
#include "base/time.h"
#include "capi/mc/transfer.h"
#include "xfer/engine.h"

namespace mc::capi {

class Queue {
 public:
  struct Call {
    uint64_t tag = 0;
    // Carries it out. Nothing: what it waits for is not there yet, and it wants another turn. It
    // waits for as long as `hold` in this one.
    std::function<std::optional<mc_done>(Duration hold)> turn;
    std::function<mc_done(const Error&)> give_up;  // instead of a turn
    std::function<mc_done(const Error&)> late;     // the same, because its time was over
    std::function<void()> stop;                    // while it has a turn, from another thread
    Time until = Time::max();                      // when its time is over
  };
  // Errors: kInvalid.
  static Result<std::unique_ptr<Queue>> open(const Clock& clock, uint32_t threads, uint32_t depth);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Errors: kBusy.
  Result<> submit(Call call);
  // Done when all requests of the batch so far have finished. `begin` submits `count` of them.
  using Begin = std::function<Result<>(std::function<void()> all_done)>;
  Result<> submit(uint64_t tag, xfer::Engine& engine, xfer::BatchId batch, size_t count,
                  const Begin& begin);
  int fd() const;
  size_t take(std::span<mc_done> out);
  Result<> wait(Duration budget);
  Result<> cancel(uint64_t tag);

 private:
  struct State;
  explicit Queue(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void work(State& state, bool waits);
  static void carry_out(State& state, Call& call, Duration hold);
  static void end_late(State& state);

  const std::shared_ptr<State>
      state_;  // callbacks of the engine may come later than the destructor
  std::vector<std::thread> threads_;
};

}  // namespace mc::capi

struct mc_queue {
  mc::ProcessMark mark;
  std::unique_ptr<mc::capi::Queue> calls;
};
