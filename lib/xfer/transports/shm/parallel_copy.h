// One copy, of the kind that suits it, and one shared by several threads. The owner and its helpers
// each take the next piece when they finish one, so a thread that starts late or is slow does less.
//
// Thread: work() on any; the owner calls finish() before it releases the memory.
#pragma once
#include <atomic>

#include "base/mutex.h"
#include "xfer/memory/copy.h"
#include "xfer/memory/machine_copies.h"
#include "xfer/transports/shm/cache_residency.h"

namespace mc::xfer {

// How to copy: whether a cache holds the destination, and what is the fastest then.
struct CopyRule {
  // Rows of less than this are not worth the look: they are copied as if to a cache, unless they
  // are among `together` bytes on their way, which no cache holds.
  static constexpr uint64_t kLookBytes = 64 * 1024;
  CacheResidency residency{CacheResidency::window_of_this_cpu()};
  MachineCopies copies;

  void copy(const Rows& rows, uint64_t together = 0, const Ahead& next = {}) {
    const bool looked = rows.total() >= kLookBytes;
    const bool hot = looked ? residency.hot(rows.to, rows.total()) : true;
    const bool cold = residency.outgrown_by(together) || !hot;
    copy_rows(rows, looked || cold ? copies.kind(rows, cold) : CopyKind::kPlain, next);
  }
};

class ParallelCopy {
 public:
  ParallelCopy(const Rows& rows, uint64_t piece_bytes, CopyRule& rule)
      : pieces_(rows, piece_bytes), rule_(rule) {}

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
  CopyRule& rule_;
  std::atomic<uint64_t> next_{0};  // the thread that takes the last piece has seen the others enter
  std::atomic<uint32_t> working_{0};
  Mutex mutex_;
  Condition left_;
};

}  // namespace mc::xfer
