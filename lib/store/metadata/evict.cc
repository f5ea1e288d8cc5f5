#include "store/metadata/evict.h"

#include <algorithm>

namespace mc::store {

void EvictQueue::insert(Object& object) {
  object.queued = true;
  object.visited = false;
  list_.push_back(object.self);
}

void EvictQueue::use(Object& object) {
  if (policy_ == EvictPolicy::kSieve) {
    object.visited = true;
    return;
  }
  if (hand_ == object.self) hand_ = list_.next(hand_);
  list_.erase(object.self);
  list_.push_back(object.self);
}

void EvictQueue::drop(Object& object) {
  if (hand_ == object.self) hand_ = list_.next(hand_);
  list_.erase(object.self);
  object.queued = false;
}

uint64_t bytes_to_evict(uint64_t used, uint64_t capacity, double high_watermark,
                        double eviction_ratio) {
  const auto total = static_cast<double>(capacity);
  if (static_cast<double>(used) <= high_watermark * total) return 0;
  const double target = std::max(0.0, high_watermark - eviction_ratio) * total;
  return used - std::min(used, static_cast<uint64_t>(target + 0.5));
}

}  // namespace mc::store
