// Timers of RailQueue: deadlines, cancellation, hedges, lost attempts, and close(); and the views
// for status output.
#include <algorithm>

#include "xfer/rails/rail_part.h"

namespace mc::xfer {
namespace {

// A look at thousands of queued slices takes no more than this part of the time: connections wait
// for the mutex meanwhile. Who pulls a slice looks at it anyway. A look that took long because its
// thread did not run puts the next one off no further than this.
constexpr int kLookShare = 100;
constexpr Duration kLookPauseMax = std::chrono::milliseconds(250);

}  // namespace

// Returns: an error if the part need not move any more.
Result<> RailQueue::cancelled_or_expired(const Attempt::Part& part, Time now) const {
  if (!part.final) return part.final;
  if (!part.whole->error.what.empty()) return fail(part.whole->error);
  const Slice& slice = part.slice();
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && now >= slice.deadline) return fail(expired_error(slice));
  if (peer_->state.load() == PeerState::kClosed) return still_open(*peer_);
  return {};
}

bool RailQueue::any_usable(Time now, uint64_t avoid) {
  for (RailIndex r = 0; r < scheduler_.rails(); ++r)
    if ((avoid & bit(r)) == 0 && scheduler_.view(r, now).state < RailState::kResting) return true;
  return scheduler_.rails() == 1;
}

// Ends queued parts that are cancelled or expired.
void RailQueue::expire_queued(Time now, Outbox& out) {
  // A sole rail is used even at rest, but what waits for it does not wait longer than for several.
  const bool sole_rests =
      scheduler_.rails() == 1 && scheduler_.view(0, now).state >= RailState::kResting;
  const bool stuck =
      (sole_rests || !any_usable(now, 0)) && now - times_.heard > config_.peer_timeout;
  const auto ended = queue_.remove_if([&](const PartPtr& part) {
    return !cancelled_or_expired(*part, now) ||
           (stuck && now - part->queued_since > config_.peer_timeout);
  });
  for (const PartPtr& part : ended) {
    part->queued = false;
    auto why = cancelled_or_expired(*part, now);
    if (why) {
      std::string rails;
      for (RailIndex r = 0; r < scheduler_.rails(); ++r) {
        const RailView v = scheduler_.view(r, now);
        rails +=
            (rails.empty() ? "" : ", ") + v.info.local + "-" + v.info.remote + " " + name(v.state);
      }
      why = fail(Code::kUnavailable, "%s: no rail has worked for %s (%s)%s%s",
                 peer_->descriptor.node.c_str(), to_text(config_.peer_timeout).c_str(),
                 rails.c_str(), part->last.what.empty() ? "" : ": ", part->last.what.c_str());
    }
    end(part, why, out);
  }
}

// Starts a second attempt for overdue ones, and ends lost ones.
void RailQueue::hedge_overdue(Time now, Outbox& out) {
  if (scheduler_.rails() < 2) return;  // its connection notices a peer that is silent
  for (const auto& late : scheduler_.late(now)) {
    const auto it = std::find_if(in_flight_.begin(), in_flight_.end(),
                                 [&](const AttemptPtr& a) { return a->id == late.attempt; });
    if (it == in_flight_.end()) continue;
    const PartPtr part = (*it)->part;
    if (part->won) continue;
    if (late.late == RailScheduler::Late::kOverdue) {
      if (static_binding_.binds() || part->out.size() != 1 || part->hedging || part->alone)
        continue;
      part->hedging = true;
      hedges_.push_back(part);
    } else {
      part->avoid |= bit(late.rail);
      part->last = {Code::kTimeout, "a slice did not come back in time"};
      cancel_attempt(*it, out);
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
    hedge_overdue(now, out);
    for (const AttemptPtr& a : in_flight_)
      if (!cancelled_or_expired(*a->part, now)) cancel_attempt(a, out);
    if (now >= times_.look_at) {
      const Time began = clock_.now();
      expire_queued(now, out);
      const Time ended = clock_.now();  // later than it should be if the thread had to wait
      times_.look_at = ended + std::min(kLookShare * (ended - began), kLookPauseMax);
    }
    if (!closed_) ping = scheduler_.to_ping(now);
    wake = waiting() || closed_;
  }
  if (wake) changed_->notify_all();
  out.send(sink_);
  return ping;
}

Time RailQueue::next_check() const {
  Lock lock(mutex_);
  const Time now = clock_.now();
  const Time spray = scheduler_.rails() < 2 ? Time::max() : scheduler_.next_check(now);
  return queue_.empty() && in_flight_.empty() ? spray : std::min(spray, now + kRailTick);
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
    for (const AttemptPtr& a : in_flight_) {
      if (!recall_all) continue;
      if (a->part->final) a->part->final = fail(why);
      cancel_attempt(a, out);
    }
  }
  changed_->notify_all();
  out.send(sink_);
}

bool RailQueue::idle() const {
  Lock lock(mutex_);
  return queue_.empty() && in_flight_.empty();
}

std::vector<RailView> RailQueue::view() const {
  Lock lock(mutex_);
  std::vector<RailView> out;
  const Time now = clock_.now();
  for (RailIndex r = 0; r < scheduler_.rails(); ++r) out.push_back(scheduler_.view(r, now));
  return out;
}

double RailQueue::predicted_seconds(RailIndex rail, uint64_t bytes) const {
  Lock lock(mutex_);
  return scheduler_.predicted_seconds(rail, bytes, clock_.now());
}

void RailQueue::describe(uint64_t bytes, Path& path) const {
  Lock lock(mutex_);
  const Time now = clock_.now();
  for (RailIndex r = 0; r < scheduler_.rails(); ++r) {
    const RailView& v = path.rails.emplace_back(scheduler_.view(r, now, path.memory));
    path.predicted_s.push_back(
        v.bandwidth > 0 ? scheduler_.predicted_seconds(r, bytes, now, path.memory) : 0.);
  }
}

}  // namespace mc::xfer
