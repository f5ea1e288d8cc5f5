// Threads for what takes long with a client's text: parsing and tokenizing it. The loop goes on
// meanwhile. Each tenant has a queue (fair_queue.h); of several threads only the first takes large
// texts, so that others do not wait for them.
//
// Errors: kBusy: the tenant's queue is full; kNoSpace: the queue of all is.
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "io/loop.h"
#include "serve/frontend/fair_queue.h"

namespace mc::serve {

class TextPool {
 public:
  explicit TextPool(io::Loop& loop, FairQueueLimits limits = {}, size_t threads = 2);
  ~TextPool();  // waits for what runs, and forgets the rest; calls nothing
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  using Id = uint64_t;
  // Runs `work` on a thread, then `done` on a later turn of the loop. Both are destroyed on the
  // loop's thread. `bytes` of text are kept until then.
  Result<Id> submit(size_t tenant, size_t bytes, std::function<void()> work,
                    std::function<void()> done);
  // Neither `work`, if it did not begin, nor `done` are called.
  void cancel(Id id);
  size_t waiting() const;

 private:
  struct Job {
    std::function<void()> work, done;
    bool cancelled = false;
  };
  struct Shared;  // with the threads
  void finished();

  const std::shared_ptr<Shared> shared_;
  std::unordered_map<Id, std::unique_ptr<Job>> jobs_;
  Id next_id_ = 1;
  std::vector<std::thread> threads_;
};

}  // namespace mc::serve
