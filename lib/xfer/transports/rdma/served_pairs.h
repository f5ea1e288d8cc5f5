// The queue pairs that peers have on this process's NICs, and their end when memory gets another
// owner: a NIC goes on writing after a guard was raised, so all that existed by then are closed.
//
// Each is held as a pointer that closes it when it goes. A NIC says nothing of a peer that is gone:
// peers tell from time to time which they still hold (KeptPairs).
//
// Thread: the control thread, but for ask_fence() and fenced().
#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/metrics.h"

namespace mc::xfer::rdma {

class ServedPairs {
 public:
  static constexpr size_t kMost = 8192;
  explicit ServedPairs(Gauge& serving) : serving_(serving) {}
  // Beyond kMost the one goes that nothing was heard of for the longest time: its peer is gone,
  // most likely.
  void add(size_t nic, uint32_t number, std::shared_ptr<void> pair);
  void heard(size_t nic, uint32_t number);  // its peer holds it
  // A pair's end waits for what lands just now.
  void close(size_t nic, uint32_t number);
  void close_nic(size_t nic);
  void close_all();

  uint64_t ask_fence() { return ++asked_; }  // to be answered by close_all_for()
  void close_all_for(uint64_t fence);
  bool fenced(uint64_t fence) const { return ended_.load(std::memory_order_acquire) >= fence; }

 private:
  struct Served {
    size_t nic = 0;
    std::shared_ptr<void> pair;
    std::list<uint64_t>::iterator place;
  };
  void erase(std::unordered_map<uint64_t, Served>::iterator it);
  Gauge& serving_;
  std::unordered_map<uint64_t, Served> pairs_;  // by NIC and the number of its queue pair
  std::list<uint64_t> heard_;                   // their keys; what was heard of last is at the end
  std::atomic<uint64_t> asked_{0}, ended_{0};
};

}  // namespace mc::xfer::rdma
