// One copy shared by several threads. The owner and its helpers each take the next piece when they
// finish one, so a thread that starts late or is slow does less.
//
// Thread: work() on any; the owner calls finish() before it releases the memory.
#pragma once
#include <atomic>

#include "base/mutex.h"
#include "xfer/memory/copy.h"
#include "xfer/transports/shm/cache_residency.h"

namespace mc::xfer {

class ParallelCopy {
 public:
  ParallelCopy(const Rows& rows, uint64_t piece_bytes, CacheResidency& residency)
      : pieces_(rows, piece_bytes), residency_(residency) {}

  // Copies pieces while there are any and `go_on()`, which is called before each.
  template <class GoOn>
  void work(GoOn go_on) {
    enter();
    while (go_on() && copy_next()) {
    }
    leave();
  }
  // Stops handing out pieces and waits for those in progress. True if all was copied.
  bool finish();

 private:
  void enter() { working_.fetch_add(1, std::memory_order_acq_rel); }
  bool copy_next();
  void leave();

  const Pieces pieces_;
  CacheResidency& residency_;
  std::atomic<uint64_t> next_{0};  // the thread that takes the last piece has seen the others enter
  std::atomic<uint32_t> working_{0};
  Mutex mutex_;
  Condition left_;
};

// Rows of less than this are not worth the look: they are copied as if to a cache, unless they are
// among `together` bytes on their way, which no cache holds.
inline constexpr uint64_t kStreamingBytes = 64 * 1024;
inline void copy_once(const Rows& rows, CacheResidency& residency, uint64_t together = 0,
                      const Ahead& next = {}) {
  const bool looked = rows.total() >= kStreamingBytes;
  const bool hot = looked ? residency.hot(rows.to, rows.total()) : true;
  copy_rows(rows, residency.outgrown_by(together) || !hot, next);
}

}  // namespace mc::xfer
