#include "store/metadata/events.h"

#include <algorithm>

namespace mc::store {

Event& EventLog::add() {
  if (limit_ == 0) {
    none_.seq = next_++;
    return none_;
  }
  const size_t place = (next_ - 1) % limit_;
  if (place == log_.size()) log_.emplace_back();
  log_[place].seq = next_++;
  // The ring is larger than the caches: prefetch the next entries.
  const auto fetch = [&](size_t at) {
    for (size_t b = 0; b < sizeof(Event); b += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(&log_[at]) + b);
  };
  fetch((place + 2) % log_.size());
  __builtin_prefetch(log_[(place + 1) % log_.size()].key.data());
  return log_[place];
}

void EventLog::joined(const NodeId& node, uint64_t at_ms) {
  Event& event = add();
  event.kind = static_cast<uint8_t>(EventKind::kJoined);
  event.key.clear();
  event.tenant.clear();
  event.bytes = event.checksum = 0;
  event.nodes = node;
  event.reason = "the node brought objects";
  event.at_ms = at_ms;
  event.tier = static_cast<uint8_t>(EventTier::kUntold);
}

std::vector<Event> EventLog::since(uint64_t from, size_t limit, bool* gap) const {
  *gap = from < first();
  const uint64_t start = std::clamp(from, first(), next_);
  const size_t n = std::min<uint64_t>(next_ - start, limit);
  std::vector<Event> out;
  out.reserve(n);
  for (uint64_t seq = start; seq < start + n; ++seq) out.push_back(at(seq));
  return out;
}

std::vector<Event> EventLog::about(const std::string& tenant, const std::string& key,
                                   size_t limit) const {
  std::vector<Event> out;
  for (uint64_t seq = next_; seq-- > first() && out.size() < limit;)
    if (const Event& e = at(seq); e.key == key && e.tenant == tenant) out.push_back(e);
  return out;
}

}  // namespace mc::store
