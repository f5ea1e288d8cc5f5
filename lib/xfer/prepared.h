// Requests that are checked and merged once, and carried out many times.
// The blocks of a cache that go to the same places again and again need no more than this.
//
//   MC_TRY(auto layer, PreparedTransfers::make(*engine, std::move(reads)));
//   MC_TRY_(layer->run(1s));  // as often as wanted
//
// What was prepared is prepared anew when a peer tells another descriptor (it was restarted, or
// registered memory): a run never reaches memory that a new submit() would not reach.
//
// Local memory that the engine allocated stays mapped as long as the object is there: freed during
// a run, by any thread, it takes the rest of the run, and no one else gets it. A run that begins
// after that is kInvalid. Memory of the application has to stay until no run touches it.
//
// Thread: any member from any thread, several at once. The engine outlives the object.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "xfer/engine.h"

namespace mc::xfer {

class PreparedTransfers {
 public:
  // Errors: as Engine::submit(); kInvalid also when a request has a deadline: each run has its own.
  static Result<std::unique_ptr<PreparedTransfers>> make(Engine& engine,
                                                         std::vector<Request> requests);
  ~PreparedTransfers();
  PreparedTransfers(const PreparedTransfers&) = delete;
  PreparedTransfers& operator=(const PreparedTransfers&) = delete;

  // Carries all of them out and waits. When it returns, no transport touches their local memory.
  // Up to 8 MiB that this host's memory has is copied on the caller's thread, without a batch.
  // Errors: the first of a request; kTimeout when `budget` passed.
  Result<> run(Duration budget);
  // Adds them to a batch, as Engine::submit() does. `budget`: of each request; max(): none.
  Result<> submit(BatchId batch, Duration budget, std::function<void()> all_done = {});
  size_t count() const;  // of requests

 private:
  struct Impl;
  explicit PreparedTransfers(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mc::xfer
