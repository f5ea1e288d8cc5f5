#include "serve/external/event_order.h"

#include <utility>

#include "base/hash.h"

namespace mc::serve {
namespace {
// A batch may come twice, in a replay and as it is published; not this far apart.
constexpr size_t kAppliedMax = 4096;
}  // namespace

EventOrder::EventOrder(EventOrderOptions options, Time now) : options_(options), heard_(now) {
  if (options_.can_ask) ask_from_next(now);
}

std::optional<uint64_t> EventOrder::ask() { return std::exchange(ask_, std::nullopt); }

void EventOrder::ask_from_next(Time now) {
  replaying_ = true;
  progress_ = same_ = false;
  ask_ = next_ > 0 ? next_ - 1 : 0;
  deadline_ = now + options_.replay_timeout;
}

void EventOrder::apply(Steps& steps, uint64_t seq, std::string payload) {
  applied_[seq] = xxh3(payload);
  if (applied_.size() > kAppliedMax) applied_.erase(applied_.begin());
  steps.push_back({false, std::move(payload)});
  next_ = seq + 1;
  anything_ = progress_ = true;
}

void EventOrder::clear(Steps& steps) {
  if (!anything_) return;
  steps.push_back({true, {}});
  anything_ = false;
  ++clears_;
}

EventOrder::Steps EventOrder::reset(Time now) {
  Steps steps;
  clear(steps);
  next_ = 0;
  applied_.clear();
  waiting_.clear();
  waiting_bytes_ = 0;
  replaying_ = false;
  heard_ = now;
  if (options_.can_ask) ask_from_next(now);
  return steps;
}

EventOrder::Steps EventOrder::live(uint64_t seq, std::string payload, Time now) {
  Steps steps;
  heard_ = now;
  if (seq == kEnd) return steps;
  if (seq < next_) {
    const auto known = applied_.find(seq);
    if (known != applied_.end() && known->second == xxh3(payload)) return steps;
    steps = reset(now);  // another publisher, which counts from 0 again
  }
  if (!replaying_ && seq == next_) {
    apply(steps, seq, std::move(payload));
    return steps;
  }
  if (!replaying_) ++gaps_;
  const size_t bytes = payload.size();
  if (waiting_.try_emplace(seq, std::move(payload)).second) waiting_bytes_ += bytes;
  if (!options_.can_ask || waiting_.size() > kWaitingMax || waiting_bytes_ > kWaitingBytes)
    give_up_gap(steps, now);
  else if (!replaying_)
    ask_from_next(now);
  return steps;
}

EventOrder::Steps EventOrder::replayed(uint64_t seq, std::string payload, Time now) {
  Steps steps;
  if (!replaying_) return steps;
  if (seq == kEnd) return replay_ends(now);
  deadline_ = now + options_.replay_timeout;
  if (seq < next_) {
    const auto known = applied_.find(seq);
    if (known == applied_.end()) return steps;
    same_ = known->second == xxh3(payload);
    return same_ ? steps : reset(now);
  }
  if (seq > next_) {  // the publisher no longer has what was before
    ++gaps_;
    clear(steps);
  }
  apply(steps, seq, std::move(payload));
  return steps;
}

EventOrder::Steps EventOrder::replay_ends(Time now) {
  Steps steps;
  if (next_ > 0 && !same_ && !progress_) return reset(now);
  replaying_ = false;
  tries_ = 0;
  heard_ = now;
  drain(steps, now);
  return steps;
}

void EventOrder::drain(Steps& steps, Time now) {
  while (!waiting_.empty() && waiting_.begin()->first <= next_) {
    auto node = waiting_.extract(waiting_.begin());
    waiting_bytes_ -= node.mapped().size();
    if (node.key() == next_) apply(steps, node.key(), std::move(node.mapped()));
  }
  if (waiting_.empty()) return;
  ++gaps_;
  if (progress_ && options_.can_ask)
    ask_from_next(now);  // another one is missing
  else
    give_up_gap(steps, now);
}

// The missing batches do not come: clears the cache and continues with those that wait.
void EventOrder::give_up_gap(Steps& steps, Time now) {
  replaying_ = false;
  tries_ = 0;
  ask_.reset();
  if (waiting_.empty()) return;
  if (waiting_.begin()->first > next_) {
    clear(steps);
    next_ = waiting_.begin()->first;
  }
  progress_ = true;
  drain(steps, now);
}

EventOrder::Steps EventOrder::tick(Time now) {
  Steps steps;
  const bool late = replaying_ && now >= deadline_;
  const bool probe = !replaying_ && options_.can_ask && now - heard_ >= options_.probe_after;
  const bool again = late && ++tries_ < kTries;
  if (again || probe) {
    ask_from_next(now);
  } else if (late) {
    heard_ = now;
    give_up_gap(steps, now);
  }
  return steps;
}

}  // namespace mc::serve
