// Keeps aborts until workers confirm them, for those that are away.
//
// A worker that stood still comes back with what it had, and would keep blocks for requests that
// ended meanwhile. When a process of the same epoch joins again, it gets the aborts that it did not
// confirm. A process of a later epoch has nothing of its predecessor, and is owed nothing.
//
// Thread: one owner. Pure. Size: kMax aborts; over it, the worker that has been owed the longest
// without a new one loses its own, and its deadlines end what it keeps.
#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sched/request/roster.h"

namespace mc::serve {

class OwedAborts {
 public:
  static constexpr size_t kMax = 16384;

  void owe(const sched::WorkerRef& worker, const std::string& request) {
    Owed& owed = nodes_[worker.node];
    if (worker.epoch < owed.epoch) return;
    if (worker.epoch > owed.epoch) clear(owed);
    owed.epoch = worker.epoch;
    owed.last = ++turn_;
    if (owed.requests.insert(request).second) ++size_;
    if (size_ > kMax) forget_oldest();
  }

  void confirmed(const sched::WorkerRef& worker, const std::string& request) {
    const auto it = nodes_.find(worker.node);
    if (it == nodes_.end() || it->second.epoch != worker.epoch) return;
    size_ -= it->second.requests.erase(request);
    if (it->second.requests.empty()) nodes_.erase(it);
  }

  // What the worker, which has just joined, did not confirm. Forgets what older processes were
  // owed.
  std::vector<std::string> owed_to(const sched::WorkerRef& worker) {
    const auto it = nodes_.find(worker.node);
    if (it == nodes_.end() || it->second.epoch > worker.epoch) return {};
    if (it->second.epoch == worker.epoch)
      return {it->second.requests.begin(), it->second.requests.end()};
    clear(it->second);
    nodes_.erase(it);
    return {};
  }

  size_t size() const { return size_; }

 private:
  struct Owed {
    uint64_t epoch = 0, last = 0;  // last: the turn of the newest
    std::set<std::string> requests;
  };
  void clear(Owed& owed) {
    size_ -= owed.requests.size();
    owed.requests.clear();
  }
  void forget_oldest() {
    const auto oldest = std::min_element(
        nodes_.begin(), nodes_.end(),
        [](const auto& a, const auto& b) { return a.second.last < b.second.last; });
    clear(oldest->second);
    nodes_.erase(oldest);
  }

  std::map<std::string, Owed> nodes_;
  size_t size_ = 0;
  uint64_t turn_ = 0;
};

}  // namespace mc::serve
