#include "store/evict.h"

#include <algorithm>

namespace mc::store {

void Lru::touch(Evictable& object) {
  if (object.in_lru) {
    list_.splice(list_.end(), list_, object.evict_at);
    return;
  }
  object.evict_at = list_.insert(list_.end(), &object);
  object.in_lru = true;
}

void Lru::drop(Evictable& object) {
  if (object.in_lru) list_.erase(object.evict_at);
  object.in_lru = false;
}

uint64_t bytes_to_evict(uint64_t used, uint64_t capacity, double high_watermark,
                        double eviction_ratio) {
  const auto total = static_cast<double>(capacity);
  if (static_cast<double>(used) <= high_watermark * total) return 0;
  const double target = std::max(0.0, high_watermark - eviction_ratio) * total;
  return used - std::min(used, static_cast<uint64_t>(target + 0.5));
}

}  // namespace mc::store
