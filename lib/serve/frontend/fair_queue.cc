#include "serve/frontend/fair_queue.h"

#include <algorithm>

namespace mc::serve {

FairQueue::Verdict FairQueue::push(Owner owner, uint64_t id, size_t bytes) {
  const auto it = owners_.find(owner);
  if (it != owners_.end() && (it->second.items.size() >= limits_.owner_count ||
                              it->second.bytes + bytes > limits_.owner_bytes))
    return Verdict::kOwnerFull;
  if (count_ >= limits_.count || (count_ > 0 && bytes_ + bytes > limits_.bytes))
    return Verdict::kFull;
  Waiting& w = owners_[owner];
  w.items.push_back({id, bytes, bytes > limits_.large});
  w.bytes += bytes;
  bytes_ += bytes;
  ++count_;
  return Verdict::kTaken;
}

FairQueue::Item FairQueue::take(std::map<Owner, Waiting>::iterator owner,
                                std::deque<Item>::iterator item) {
  const Item taken = *item;
  owner->second.items.erase(item);
  owner->second.bytes -= taken.bytes;
  bytes_ -= taken.bytes;
  --count_;
  if (owner->second.items.empty()) owners_.erase(owner);
  return taken;
}

std::optional<FairQueue::Item> FairQueue::pop(bool large_too) {
  auto owner = owners_.upper_bound(last_);
  for (size_t i = 0; i < owners_.size(); ++i, ++owner) {
    if (owner == owners_.end()) owner = owners_.begin();
    auto& items = owner->second.items;
    const auto item = std::find_if(items.begin(), items.end(),
                                   [&](const Item& w) { return large_too || !w.large; });
    if (item == items.end()) continue;
    last_ = owner->first;
    return take(owner, item);
  }
  return std::nullopt;
}

bool FairQueue::erase(uint64_t id) {
  for (auto owner = owners_.begin(); owner != owners_.end(); ++owner) {
    auto& items = owner->second.items;
    const auto item =
        std::find_if(items.begin(), items.end(), [id](const Item& w) { return w.id == id; });
    if (item == items.end()) continue;
    take(owner, item);
    return true;
  }
  return false;
}

}  // namespace mc::serve
