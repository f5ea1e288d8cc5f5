// A per-thread cache of recent peers and mappings, for small copies. A repeated small transfer
// takes no lock, no reference and no shared counter. (Those cost up to a tenth of a copy of 64
// KiB.) A slot keeps its peers and mappings until others replace them, or the peer is forgotten.
//
// Thread: for_this_thread() gives each thread its own slot, the same one all its life. There are
// kSlots; a thread without one takes the normal path. Other threads take a slot's lock with
// lock_slow().
#pragma once
#include <array>
#include <atomic>

#include "base/metrics.h"
#include "xfer/core/transport.h"
#include "xfer/transports/shm/biased_lock.h"
#include "xfer/transports/shm/mapping.h"

namespace mc::xfer {

struct alignas(64) CopyCacheSlot {
  struct Known {  // a peer's buffer, mapped here
    SegmentHandle segment = 0;
    const BufferInfo* buffer = nullptr;  // of the peer's descriptor
    PeerPtr peer;
    MappingPtr mapping;
    bool holds(const Request& r, uint64_t span) const {
      return mapping != nullptr && segment == r.segment && r.offset >= buffer->offset &&
             span <= buffer->bytes && r.offset - buffer->offset <= buffer->bytes - span;
    }
  };
  BiasedLock mutex;
  std::array<Known, 4> known MC_GUARDED_BY(mutex);
  size_t next MC_GUARDED_BY(mutex) = 0;  // to be replaced
  // Null until count().
  Counter::Cell* slices MC_GUARDED_BY(mutex) = nullptr;
  Counter::Cell* bytes MC_GUARDED_BY(mutex) = nullptr;
  Counter::Cell* requests MC_GUARDED_BY(mutex) = nullptr;

  void learn(Known what) MC_REQUIRES(mutex) { known[next++ % known.size()] = std::move(what); }
};

class ThreadCopyCache {
 public:
  static constexpr size_t kSlots = 16;
  // Null when all slots are taken.
  CopyCacheSlot* for_this_thread() {
    thread_local const Seat seat;
    return seat.number < kSlots ? &copy_cache_[seat.number] : nullptr;
  }
  // Requires: the peer is closed or replaced, so that no thread adds it again.
  void forget(const PeerPtr& peer) {
    for (CopyCacheSlot& slot : copy_cache_) {
      slot.mutex.lock_slow();
      for (CopyCacheSlot::Known& known : slot.known)
        if (known.peer == peer) known = {};
      slot.mutex.unlock_slow();
    }
  }
  void count(Counter& slices, Counter& bytes, Counter& requests) {
    for (CopyCacheSlot& slot : copy_cache_) {
      slot.mutex.lock_slow();
      slot.slices = &slices.cell();
      slot.bytes = &bytes.cell();
      slot.requests = &requests.cell();
      slot.mutex.unlock_slow();
    }
  }

 private:
  // This thread's slot number, in every engine of the process; freed when the thread ends.
  struct Seat {
    size_t number;
    Seat();
    ~Seat();
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;
  };
  std::array<CopyCacheSlot, kSlots> copy_cache_;
};

}  // namespace mc::xfer
