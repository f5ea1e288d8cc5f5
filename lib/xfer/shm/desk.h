// What a thread copied with last, at a desk that it shares with few others: its next small transfer
// to or from the same memory finds the way there without a lock, a reference or a counter that
// other threads use too. (Those cost as much as a tenth of the copy of 64 KiB.)
//
// A desk keeps its peers and mappings until they give way to others, or the peer is forgotten.
//
// Thread: a desk belongs to its mutex. A thread that finds it taken goes the ordinary way.
#pragma once
#include <array>
#include <atomic>

#include "base/metrics.h"
#include "base/mutex.h"
#include "xfer/shm/mapping.h"
#include "xfer/transport.h"

namespace mc::xfer {

struct alignas(64) Desk {
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
  Mutex mutex;
  std::array<Known, 4> known MC_GUARDED_BY(mutex);
  size_t next MC_GUARDED_BY(mutex) = 0;  // to give way
  // Null until somebody counts.
  Counter::Cell* slices MC_GUARDED_BY(mutex) = nullptr;
  Counter::Cell* bytes MC_GUARDED_BY(mutex) = nullptr;
  Counter::Cell* requests MC_GUARDED_BY(mutex) = nullptr;

  void learn(Known what) MC_REQUIRES(mutex) { known[next++ % known.size()] = std::move(what); }
};

class Desks {
 public:
  Desk& mine() {
    static std::atomic<size_t> threads{0};
    thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed);
    return desks_[number % desks_.size()];
  }
  // Call it once the peer's fate is sealed: then nobody learns it anew.
  void forget(const PeerPtr& peer) {
    for (Desk& desk : desks_) {
      Lock lock(desk.mutex);
      for (Desk::Known& known : desk.known)
        if (known.peer == peer) known = {};
    }
  }
  void count(Counter& slices, Counter& bytes, Counter& requests) {
    for (Desk& desk : desks_) {
      Lock lock(desk.mutex);
      desk.slices = &slices.cell();
      desk.bytes = &bytes.cell();
      desk.requests = &requests.cell();
    }
  }

 private:
  std::array<Desk, 16> desks_;
};

}  // namespace mc::xfer
