#include "store/master/due_objects.h"

#include <algorithm>

namespace mc::store {
namespace {
// Of one step, in which calls wait: slots of the table; objects that are due.
constexpr size_t kDueSlots = 2048, kDueTried = 64;
constexpr Duration kDueRest = std::chrono::seconds(1);  // between two walks, at the least
constexpr int kDueRestTimes = 4;                        // and so many times as long as one took
constexpr Duration kDueFailed = std::chrono::seconds(10);
}  // namespace

void DueObjects::set(Object& object, bool due) {
  if (object.due == due) return;
  object.due = due;
  if (due)
    ++marked_;
  else
    --marked_;
}

void DueObjects::open(Time now) {
  if (marked_ > 0) next_ = std::min(next_, now);
}

void DueObjects::failed(Time now) { next_ = std::min(next_, now + kDueFailed); }

void DueObjects::step(Time now) {
  if (now < deadline()) return;
  if (left_ == 0) {
    next_ = Time::max();
    behind_.clear();
    began_ = now;
    left_ = objects_.ids();
  }
  size_t slots = kDueSlots, tried = kDueTried;
  for (; left_ > 0 && slots > 0 && tried > 0; --left_, --slots) {
    if (at_ >= objects_.ids()) at_ = 0;
    Object& object = objects_[at_++];
    if (!object.due) continue;
    --tried;
    order_(object, now);
  }
  if (marked_ == 0) left_ = 0;
  if (left_ == 0) rested_ = now + std::max(kDueRest, kDueRestTimes * (now - began_));
}

Time DueObjects::deadline() const {
  if (left_ > 0) return began_;
  return marked_ == 0 || next_ == Time::max() ? Time::max() : std::max(next_, rested_);
}

}  // namespace mc::store
