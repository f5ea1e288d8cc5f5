// Maps engine-owned memory of other processes once, until the peer is forgotten.
//
// Thread: any; map() may wait for the owner (seconds), known() never waits.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "xfer/core/transport.h"
#include "xfer/memory/write_slots.h"
#include "xfer/transports/shm/truncation_guard.h"

namespace mc::xfer {

struct Mapping {
  PeerPtr peer;  // as long as it lives, its address is no other peer's
  std::byte* data = nullptr;
  uint64_t bytes = 0, mapped = 0;
  bool writable = false;
  const std::byte* alive = nullptr;  // the owner's word: 1 while the buffer is offered
  WriteSlot* slots = nullptr;        // where writes under way are said; null: not writable
  TruncationGuard guard;             // of what no seal keeps from shrinking
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
};
using MappingPtr = std::shared_ptr<const Mapping>;

class Mappings {
 public:
  MappingPtr known(const PeerPtr& peer, const BufferInfo& buffer) const;  // null: not mapped yet
  // Errors: kStale (withdrawn, or the peer was replaced), kUnavailable (not handed out: it is not
  // asked for again; or no answer: not for a while, unless the wait for it was given up).
  Result<MappingPtr> map(const PeerPtr& peer, const BufferInfo& buffer, Time now,
                         const std::function<bool()>& given_up);
  void forget(const PeerPtr& peer);

 private:
  using Key = std::pair<const Peer*, uint32_t>;  // and the memfd's id
  mutable Mutex mutex_;
  std::map<Key, MappingPtr> mappings_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer
