// What time does to the slices of a rail queue, whoever pulls: deadlines, cancels, hedges, attempts
// that are lost, the end of it all; and what people are shown.
#include <algorithm>

#include "xfer/rails/rail_part.h"

namespace mc::xfer {

// An error when the part need not move any more.
Result<> RailQueue::over(const Attempt::Part& part, Time now) const {
  if (!part.final) return part.final;
  if (!part.whole->error.what.empty()) return fail(part.whole->error);
  const Slice& slice = part.slice();
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && now >= slice.deadline) return fail(expired_error(slice));
  if (peer_->fate.load() == Peer::Fate::kClosed) return still_open(*peer_);
  return {};
}

bool RailQueue::any_usable(Time now, uint64_t avoid) {
  for (RailIndex r = 0; r < spray_.rails(); ++r)
    if ((avoid & bit(r)) == 0 && spray_.view(r, now).state < RailState::kResting) return true;
  return spray_.rails() == 1;
}

// What is queued or in flight and over.
void RailQueue::sweep(Time now, Outbox& out) {
  // A sole rail is used even at rest, but what waits for it does not wait longer than for several.
  const bool sole_rests = spray_.rails() == 1 && spray_.view(0, now).state >= RailState::kResting;
  const bool stuck = (sole_rests || !any_usable(now, 0)) && now - heard_ > config_.peer_timeout;
  const auto ended = queue_.remove_if([&](const PartPtr& part) {
    return !over(*part, now) || (stuck && now - part->queued_since > config_.peer_timeout);
  });
  for (const PartPtr& part : ended) {
    part->queued = false;
    auto why = over(*part, now);
    if (why) {
      std::string rails;
      for (RailIndex r = 0; r < spray_.rails(); ++r) {
        const RailView v = spray_.view(r, now);
        rails +=
            (rails.empty() ? "" : ", ") + v.info.local + "-" + v.info.remote + " " + name(v.state);
      }
      why = fail(Code::kUnavailable, "%s: no rail has worked for %s (%s)%s%s",
                 peer_->descriptor.node.c_str(), to_text(config_.peer_timeout).c_str(),
                 rails.c_str(), part->last.what.empty() ? "" : ": ", part->last.what.c_str());
    }
    end(part, why, out);
  }
  for (const AttemptPtr& a : flying_)
    if (!over(*a->part, now)) recall(a, out);
}

// Attempts that take too long: a second one elsewhere, or an end to the first.
void RailQueue::chase(Time now, Outbox& out) {
  if (spray_.rails() < 2) return;  // its connection notices a peer that is silent
  for (const auto& late : spray_.late(now)) {
    const auto it = std::find_if(flying_.begin(), flying_.end(),
                                 [&](const AttemptPtr& a) { return a->id == late.attempt; });
    if (it == flying_.end()) continue;
    const PartPtr part = (*it)->part;
    if (part->won) continue;
    if (late.late == Sprayer::Late::kOverdue) {
      if (binder_.binds() || part->out.size() != 1 || part->hedging) continue;
      part->hedging = true;
      hedges_.push_back(part);
    } else {
      part->avoid |= bit(late.rail);
      part->last = {Code::kTimeout, "a slice did not come back in time"};
      recall(*it, out);
    }
  }
}

std::vector<RailIndex> RailQueue::tick() {
  Outbox out;
  bool wake = false;
  std::vector<RailIndex> ping;
  {
    Lock lock(mutex_);
    const Time now = clock_.now();
    chase(now, out);
    sweep(now, out);
    if (!closed_) ping = spray_.to_ping(now);
    wake = waiting() || closed_;
  }
  if (wake) changed_->notify_all();
  send(out);
  return ping;
}

Time RailQueue::next_check() const {
  Lock lock(mutex_);
  const Time now = clock_.now();
  const Time spray = spray_.rails() < 2 ? Time::max() : spray_.next_check(now);
  return queue_.empty() && flying_.empty() ? spray : std::min(spray, now + kRailTick);
}

void RailQueue::close(const Error& why, bool recall_all) {
  Outbox out;
  {
    Lock lock(mutex_);
    closed_ = true;
    for (const PartPtr& part : queue_.remove_if([](const PartPtr&) { return true; })) {
      part->queued = false;
      end(part, fail(why), out);
    }
    hedges_.clear();
    for (const AttemptPtr& a : flying_) {
      if (!recall_all) continue;
      if (a->part->final) a->part->final = fail(why);
      recall(a, out);
    }
  }
  changed_->notify_all();
  send(out);
}

bool RailQueue::idle() const {
  Lock lock(mutex_);
  return queue_.empty() && flying_.empty();
}

std::vector<RailView> RailQueue::view() const {
  Lock lock(mutex_);
  std::vector<RailView> out;
  const Time now = clock_.now();
  for (RailIndex r = 0; r < spray_.rails(); ++r) out.push_back(spray_.view(r, now));
  return out;
}

double RailQueue::predicted_seconds(RailIndex rail, uint64_t bytes) const {
  Lock lock(mutex_);
  return spray_.predicted_seconds(rail, bytes, clock_.now());
}

void RailQueue::describe(uint64_t bytes, Path& path) const {
  Lock lock(mutex_);
  const Time now = clock_.now();
  for (RailIndex r = 0; r < spray_.rails(); ++r) {
    const RailView& v = path.rails.emplace_back(spray_.view(r, now, path.memory));
    path.predicted_s.push_back(
        v.bandwidth > 0 ? spray_.predicted_seconds(r, bytes, now, path.memory) : 0.);
  }
}

}  // namespace mc::xfer
