// Limits how many connections (or queue pairs) a transport keeps open. Connections that are idle
// and were not used lately are evicted in SIEVE order, and made again when they are needed. FIFO
// order exists for comparison.
//
//   pool.add(close) -> id, in use;  release(id): idle;  claim(id): in use again, or false: evicted
//
// A caller that keeps an endpoint claimed between uses reports the uses with release(id, true).
//
// Errors: kUnavailable when all are in use for too long.
// Thread: any; `close` is called without the pool's lock, on the thread that needs the room, and
// only while its endpoint is idle.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "base/sieve.h"
#include "base/time.h"
#include "xfer/core/policies.h"

namespace mc::xfer {

class EndpointPool {
 public:
  using Id = uint64_t;  // 0: none
  explicit EndpointPool(size_t most, Eviction eviction = Eviction::kSieve)
      : most_(most == 0 ? 1 : most), eviction_(eviction) {}
  // Room for one more; waits up to `budget` for one to become idle.
  Result<Id> add(std::function<void()> close, const Clock& clock, Duration budget);
  bool claim(Id id);
  void release(Id id, bool used_again = false);
  void remove(Id id);  // it is gone; harmless for 0 and for what was evicted
  size_t size() const;
  bool full() const { return size() >= most_; }
  uint64_t evicted() const;

 private:
  struct Endpoint {
    std::function<void()> close;
    bool busy = true, closing = false;
  };
  const size_t most_;
  const Eviction eviction_;
  mutable Mutex mutex_;
  Condition changed_;
  Id next_ MC_GUARDED_BY(mutex_) = 1;
  std::unordered_map<Id, Endpoint> endpoints_ MC_GUARDED_BY(mutex_);
  Sieve<Id> order_ MC_GUARDED_BY(mutex_);
  uint64_t evicted_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mc::xfer
