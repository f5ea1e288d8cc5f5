// Room in a device's completion queue, and who waits for some. Private to rdma/*.cc. A request
// takes an entry before it is posted; more than the queue holds would break it.
//
// Thread: any.
#pragma once
#include <atomic>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace mc::xfer::rdma {

class CompletionRoom {
 public:
  void set_entries(uint32_t entries) { entries_.store(entries); }
  uint32_t entries() const { return entries_.load(std::memory_order_relaxed); }
  bool take(uint32_t requests) {
    if (taken_.fetch_add(requests) + requests <= entries_.load()) return true;
    taken_.fetch_sub(requests);
    return false;
  }
  // Of what was posted and is known to be over. Then take_waiting() is due.
  void give(uint32_t requests) { taken_.fetch_sub(requests); }
  uint32_t taken() const { return taken_.load(); }

  // Notes a connection for which take() found nothing. It must try once more after this: room that
  // was given before is not told to it.
  void wait(uint32_t connection) {
    Lock lock(mutex_);
    if (known_.insert(connection).second) waiting_.push_back(connection);
    waits_.store(true);
  }
  // Returns: who waits, in the order in which they came, and forgets them.
  std::vector<uint32_t> take_waiting() {
    if (!waits_.load()) return {};
    Lock lock(mutex_);
    waits_.store(false);
    known_.clear();
    return std::exchange(waiting_, {});
  }

 private:
  std::atomic<uint32_t> entries_{0}, taken_{0};
  std::atomic<bool> waits_{false};
  Mutex mutex_;
  std::vector<uint32_t> waiting_ MC_GUARDED_BY(mutex_);
  std::unordered_set<uint32_t> known_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer::rdma
