#include "store/events.h"

#include <algorithm>

namespace mc::store {

void EventLog::add(Event event) {
  event.seq = next_++;
  log_.push_back(std::move(event));
  if (log_.size() > limit_) log_.pop_front();
}

std::vector<Event> EventLog::since(uint64_t from, size_t limit, bool* gap) const {
  *gap = from < first();
  const uint64_t start = std::clamp(from, first(), next_);
  const size_t n = std::min<uint64_t>(next_ - start, limit);
  const auto begin = log_.begin() + static_cast<std::ptrdiff_t>(start - first());
  return {begin, begin + static_cast<std::ptrdiff_t>(n)};
}

std::vector<Event> EventLog::about(const std::string& tenant, const std::string& key,
                                   size_t limit) const {
  std::vector<Event> out;
  for (auto it = log_.rbegin(); it != log_.rend() && out.size() < limit; ++it)
    if (it->key == key && it->tenant == tenant) out.push_back(*it);
  return out;
}

}  // namespace mc::store
