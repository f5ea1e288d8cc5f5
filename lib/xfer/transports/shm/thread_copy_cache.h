// What a thread copied with last, at a desk of its own: its next small transfer to or from the same
// memory finds the way there without a locked instruction, a reference or a counter that other
// threads use too. (Those cost as much as a tenth of the copy of 64 KiB.)
//
// A desk keeps its peers and mappings until they give way to others, or the peer is forgotten.
//
// Thread: mine() gives each thread another desk, the same one all its life; there are few, and who
// gets none goes the ordinary way. Their lock is taken from outside by who is not at the desk.
#pragma once
#include <array>
#include <atomic>

#include "base/metrics.h"
#include "xfer/core/transport.h"
#include "xfer/transports/shm/biased_lock.h"
#include "xfer/transports/shm/mapping.h"

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
  OwnerLock mutex;
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
  static constexpr size_t kDesks = 16;
  // Null when the desks are all taken.
  Desk* mine() {
    thread_local const Seat seat;
    return seat.number < kDesks ? &desks_[seat.number] : nullptr;
  }
  // Call it once the peer's fate is sealed: then nobody learns it anew.
  void forget(const PeerPtr& peer) {
    for (Desk& desk : desks_) {
      desk.mutex.lock_from_outside();
      for (Desk::Known& known : desk.known)
        if (known.peer == peer) known = {};
      desk.mutex.unlock_from_outside();
    }
  }
  void count(Counter& slices, Counter& bytes, Counter& requests) {
    for (Desk& desk : desks_) {
      desk.mutex.lock_from_outside();
      desk.slices = &slices.cell();
      desk.bytes = &bytes.cell();
      desk.requests = &requests.cell();
      desk.mutex.unlock_from_outside();
    }
  }

 private:
  // Which desk is this thread's, of every engine of the process: free for another when it ends.
  struct Seat {
    size_t number;
    Seat();
    ~Seat();
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;
  };
  std::array<Desk, kDesks> desks_;
};

}  // namespace mc::xfer
