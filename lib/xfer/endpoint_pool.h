// How many connections (or queue pairs) a transport keeps at a time: idle ones that were not used
// lately give way to new ones, in SIEVE order, and are made again when they are needed.
//
//   pool.add(close) -> id, in use;  release(id): idle;  claim(id): in use again, or false: evicted
//
// Thread: any; `close` is called without the pool's lock, on the thread that needs the room, and
// only while its endpoint is idle. Errors: kUnavailable when all are in use for too long.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "base/sieve.h"
#include "base/time.h"

namespace mc::xfer {

class EndpointPool {
 public:
  using Id = uint64_t;  // 0: none
  explicit EndpointPool(size_t most) : most_(most == 0 ? 1 : most) {}
  // Room for one more; waits up to `budget` for one to become idle.
  Result<Id> add(std::function<void()> close, const Clock& clock, Duration budget);
  bool claim(Id id);
  void release(Id id);
  void remove(Id id);  // it is gone; harmless for 0 and for what was evicted
  size_t size() const;
  uint64_t evicted() const;

 private:
  struct Endpoint {
    std::function<void()> close;
    bool busy = true, closing = false;
  };
  const size_t most_;
  mutable Mutex mutex_;
  Condition changed_;
  Id next_ MC_GUARDED_BY(mutex_) = 1;
  std::unordered_map<Id, Endpoint> endpoints_ MC_GUARDED_BY(mutex_);
  Sieve<Id> order_ MC_GUARDED_BY(mutex_);
  uint64_t evicted_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mc::xfer
