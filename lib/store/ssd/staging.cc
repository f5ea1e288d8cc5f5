#include "store/ssd/staging.h"

#include <algorithm>
#include <utility>

namespace mc::store::ssd {
namespace {
constexpr uint64_t kPage = 4096;
}

Staging::Staging(uint64_t capacity, Duration ttl, uint64_t floor)
    : capacity_(capacity / kPage * kPage), ttl_(ttl), space_(capacity_), generation_(floor) {}

Result<Staging::Batch> Staging::take(const std::vector<uint64_t>& bytes) {
  Batch batch{next_batch_, {}};
  for (const uint64_t n : bytes) {
    const uint64_t pages = std::max<uint64_t>((n + kPage - 1) / kPage * kPage, kPage);
    const auto at = space_.take(pages);
    if (!at) {
      for (const StagingSlot& s : batch.slots) space_.give(s.at, s.bytes);
      if (pages > capacity_)
        return fail(Code::kNoSpace, "a value of %s: the staging memory has %s",
                    rounded_bytes_text(n).c_str(), rounded_bytes_text(capacity_).c_str());
      return fail(Code::kBusy, "all %s of staging memory is leased: retry",
                  rounded_bytes_text(capacity_).c_str());
    }
    batch.slots.push_back({*at, pages, Generation{++generation_}});
  }
  ++next_batch_;
  Held& held = batches_[batch.id];
  held.slots = batch.slots;
  return batch;
}

void Staging::start_lease(uint64_t batch, Time now) {
  const auto it = batches_.find(batch);
  if (it == batches_.end() || it->second.leased) return;
  it->second.leased = true;
  it->second.end = by_end_.emplace(now + ttl_, batch);
  ++it->second.users;
}

void Staging::hold(uint64_t batch) {
  if (const auto it = batches_.find(batch); it != batches_.end()) ++it->second.users;
}

void Staging::leave(Batches::iterator it) {
  if (--it->second.users > 0) return;
  for (const StagingSlot& s : it->second.slots) space_.give(s.at, s.bytes);
  batches_.erase(it);
}

void Staging::drop(uint64_t batch) {
  if (const auto it = batches_.find(batch); it != batches_.end()) leave(it);
}

std::vector<StagingSlot> Staging::end_lease(Batches::iterator it) {
  std::vector<StagingSlot> slots = it->second.slots;
  for (StagingSlot& s : slots) s.generation = Generation{++generation_};
  by_end_.erase(it->second.end);
  it->second.leased = false;
  return slots;
}

std::vector<StagingSlot> Staging::release(uint64_t batch) {
  const auto it = batches_.find(batch);
  if (it == batches_.end() || !it->second.leased) return {};
  auto slots = end_lease(it);
  leave(it);
  return slots;
}

std::vector<StagingSlot> Staging::expire(Time now) {
  std::vector<StagingSlot> out;
  while (!by_end_.empty() && by_end_.begin()->first <= now) {
    ++expired_;
    const auto slots = release(by_end_.begin()->second);
    out.insert(out.end(), slots.begin(), slots.end());
  }
  return out;
}

Time Staging::deadline() const { return by_end_.empty() ? Time::max() : by_end_.begin()->first; }

}  // namespace mc::store::ssd
