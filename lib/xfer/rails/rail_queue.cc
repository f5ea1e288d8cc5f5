#include "xfer/rails/rail_queue.h"

#include <algorithm>

#include "xfer/rails/rail_part.h"

namespace mc::xfer {

namespace {

bool fault_of_rail(Code code) {
  return code == Code::kUnavailable || code == Code::kTimeout || code == Code::kCorrupt;
}

// Splits off the first `bytes` or so: whole rows of many, or a run of one. What is left stays in
// `rest`. False when it is not worth it.
bool split(Piece& rest, uint64_t bytes, Piece& first) {
  first = rest;
  if (rest.rows > 1) {
    const uint64_t rows = std::max<uint64_t>(1, bytes / rest.bytes);
    if (rows >= rest.rows) return false;
    first.rows = rows;
    rest.rows -= rows;
    rest.remote += rows * rest.remote_stride;
    rest.local += rows * rest.local_stride;
    return true;
  }
  const uint64_t run = bytes / 64 * 64;
  if (run == 0 || run >= rest.bytes) return false;
  first.bytes = run;
  rest.bytes -= run;
  rest.remote += run;
  rest.local += run;
  return true;
}

std::shared_ptr<Attempt::Part> whole(SlicePtr slice, Time now) {
  auto part = std::make_shared<Attempt::Part>();
  part->whole = std::make_shared<Attempt::Part::Whole>();
  part->local = slice->local;
  part->piece = slice->piece;
  part->piece.local = 0;
  part->queued_since = now;
  part->memory.here = slice->memory;
  if (slice->peer != nullptr) part->memory.there = slice->peer->memory_at(slice->piece.remote);
  part->whole->slice = std::move(slice);
  return part;
}

}  // namespace

RailQueue::RailQueue(Sink& sink, const Clock& clock, Config config, PeerPtr peer)
    : sink_(sink),
      clock_(clock),
      config_(config),
      peer_(std::move(peer)),
      scheduler_(config.spray),
      static_binding_(config.spray.scheduler, 1),
      queue_(config.qos) {}

RailQueue::~RailQueue() = default;

RailIndex RailQueue::add_rail(RailInfo info, Recall cancel_attempt) {
  std::optional<NicIndex> nic;
  if (config_.nic_inflight != nullptr) {
    nic = config_.nic_inflight->nic(info.local);
    // A wake-up just before the wait is lost; the next check, kRailTick later, makes up for it.
    config_.nic_inflight->on_room(*nic, changed_, [c = changed_.get()] { c->notify_all(); });
  }
  Lock lock(mutex_);
  if (nic) nics_.push_back(*nic);
  recalls_.push_back(std::move(cancel_attempt));
  return scheduler_.add(std::move(info));
}

void RailQueue::Outbox::send(Sink& sink) {
  for (auto& [cancel_attempt, attempt] : recalls) cancel_attempt(attempt);
  for (auto& [slice, outcome] : finished) sink.finished(std::move(slice), std::move(outcome));
}

bool RailQueue::free_for(RailIndex rail, uint64_t bytes, Priority priority,
                         const MemoryEnds& memory) {
  Lock lock(mutex_);
  if (closed_ || waiting() || !in_flight_.empty() || static_binding_.binds()) return false;
  if (config_.nic_inflight == nullptr && scheduler_.rails() == 1) return true;
  const Time now = clock_.now();
  if (config_.nic_inflight != nullptr &&
      (config_.nic_inflight->room(nics_[rail], now) & mask_of(priority)) == 0)
    return false;
  return scheduler_.rails() == 1 || scheduler_.takes(rail, bytes, bytes, 0, now, memory);
}

void RailQueue::carried(RailIndex rail, uint64_t bytes, Priority priority, Duration took,
                        Time now) {
  NicIndex nic = 0;
  {
    Lock lock(mutex_);
    scheduler_.carried(rail, bytes, took, now);
    times_.heard = now;
    if (config_.nic_inflight != nullptr) nic = nics_[rail];
  }
  if (config_.nic_inflight != nullptr) config_.nic_inflight->carried(nic, priority, bytes, now);
}

AttemptPtr RailQueue::adopt(SlicePtr slice, RailIndex rail) {
  Lock lock(mutex_);
  const Time now = clock_.now();
  return start(rail, whole(std::move(slice), now), now);
}

void RailQueue::push(std::span<SlicePtr> slices) {
  const Time now = clock_.now();
  std::vector<PartPtr> parts;
  parts.reserve(slices.size());
  for (SlicePtr& slice : slices) parts.push_back(whole(std::move(slice), now));
  bool closed = false, sole = false;
  {
    Lock lock(mutex_);
    closed = closed_;
    sole = scheduler_.rails() == 1;
    for (size_t i = 0; i < parts.size() && !closed; ++i) {
      parts[i]->queued = true;
      bind(*parts[i]);
      queue_.push(parts[i], parts[i]->slice().priority, parts[i]->bytes(), now);
    }
  }
  if (closed) {
    auto open = still_open(*peer_);
    if (open) open = fail(Code::kUnavailable, "shutting down");
    for (const PartPtr& part : parts) sink_.finished(std::move(part->whole->slice), open);
  } else if (sole && parts.size() == 1 &&
             config_.nic_inflight == nullptr) {  // else one that may not take it wakes
    changed_->notify_one();
  } else {
    changed_->notify_all();
  }
}

AttemptPtr RailQueue::push_or_carry(SlicePtr slice, RailIndex rail) {
  Outbox out;
  AttemptPtr attempt;
  {
    Lock lock(mutex_);
    // A short high one may pass what other classes have waiting: they have their windows.
    const bool high = slice->priority == Priority::kHigh;
    if (!closed_ && hedges_.empty() &&
        (high ? queue_.size(Priority::kHigh) == 0 : queue_.empty())) {
      const Time now = clock_.now();
      const ClassMask own = mask_of(slice->priority);
      const Priority priority = slice->priority;
      const PartPtr part = whole(std::move(slice), now);
      part->queued = true;
      bind(*part);
      queue_.push(part, priority, part->bytes(), now);
      attempt = try_pull(rail, {.only = own}, now, out);
      if (attempt != nullptr) attempt->part->whole->slice->carried = true;
    }
  }
  if (slice != nullptr)
    push(std::move(slice));
  else if (attempt == nullptr)
    changed_->notify_all();
  out.send(sink_);
  return attempt;
}

AttemptPtr RailQueue::start(RailIndex rail, PartPtr part, Time now) {
  auto attempt = std::make_shared<Attempt>();
  attempt->id = next_id_++;
  attempt->rail = rail;
  attempt->slice = part->whole->slice.get();
  attempt->local = part->local;
  attempt->piece = part->piece;
  ++part->begun;
  scheduler_.sent(rail, attempt->id, part->bytes(), now);
  if (config_.nic_inflight != nullptr) {
    attempt->nic = nics_[rail];
    config_.nic_inflight->sent(attempt->nic, part->slice().priority, part->bytes(), now);
  }
  part->out.push_back(attempt);
  attempt->part = std::move(part);
  in_flight_.push_back(attempt);
  return attempt;
}

// A part that is overdue on another rail, and that this rail would finish sooner.
AttemptPtr RailQueue::try_hedge(RailIndex rail, Limits limits, ClassMask may, Time now) {
  for (auto it = hedges_.begin(); it != hedges_.end();) {
    const PartPtr part = *it;
    if (part->won || part->alone || part->out.size() != 1 || !cancelled_or_expired(*part, now)) {
      part->hedging = false;
      it = hedges_.erase(it);
      continue;
    }
    const uint64_t avoid = part->avoid | bit(part->out.front()->rail);
    const bool allowed = (part->slice().op == Op::kRead ? limits.reads : limits.writes) &&
                         (may & mask_of(part->slice().priority)) != 0;
    if (allowed && scheduler_.takes(rail, part->bytes(), part->bytes(), avoid, now, part->memory)) {
      part->hedging = false;
      hedges_.erase(it);
      return start(rail, part, now);
    }
    ++it;
  }
  return nullptr;
}

// The head of the queue, or as much of it as suits the rail.
RailQueue::PartPtr RailQueue::take_head(uint64_t max_slice_bytes, ClassMask may, Time now) {
  const PartPtr head = *queue_.head(now, may);
  Piece first;
  if (head->slice().advances_guard || head->bytes() <= max_slice_bytes + max_slice_bytes / 2 ||
      head->avoid != 0 || !split(head->piece, max_slice_bytes, first)) {
    queue_.pop(now, may);
    head->queued = false;
    return head;
  }
  auto part = std::make_shared<Attempt::Part>();
  part->whole = head->whole;
  ++part->whole->parts;
  part->local = head->local;
  part->piece = first;
  part->piece.local = 0;
  part->memory = head->memory;
  part->queued_since = head->queued_since;
  head->local += head->piece.local;
  head->piece.local = 0;
  queue_.shorten_head(first.total(), now, may);
  return part;
}

ClassMask RailQueue::room(RailIndex rail, Limits limits, Time now) {
  if (config_.nic_inflight == nullptr || !waiting()) return limits.only;
  const ClassMask may = config_.nic_inflight->room(nics_[rail], now) & limits.only;
  if (!limits.reserved || !config_.nic_inflight->guarded(nics_[rail], now)) return may;
  return may & mask_of(Priority::kHigh);
}

uint64_t RailQueue::max_slice_bytes(RailIndex rail, Priority p, Time now) {
  const uint64_t suits = scheduler_.max_slice_bytes(rail);
  if (config_.nic_inflight == nullptr) return suits;
  return std::min(suits, config_.nic_inflight->slice_max(nics_[rail], p, now));
}

void RailQueue::bind(Attempt::Part& part) {
  if (static_binding_.binds())
    part.bound = static_binding_.bind(part.piece.remote, part.bytes(),
                                      static_cast<uint32_t>(scheduler_.rails()), part.avoid);
}

AttemptPtr RailQueue::pull_bound(RailIndex rail, Limits limits, Time now, Outbox& out) {
  const auto mine = [&](const PartPtr& part) {
    return part->bound == rail && (part->slice().op == Op::kRead ? limits.reads : limits.writes);
  };
  while (const auto part = queue_.pop_if(mine)) {
    (*part)->queued = false;
    auto pointless = cancelled_or_expired(**part, now);
    if (pointless) pointless = still_open(*peer_);
    if (pointless) return start(rail, *part, now);
    end(*part, pointless, out);
  }
  return nullptr;
}

AttemptPtr RailQueue::try_pull(RailIndex rail, Limits limits, Time now, Outbox& out) {
  if (static_binding_.binds()) return pull_bound(rail, limits, now, out);
  const ClassMask may = room(rail, limits, now);
  if (AttemptPtr hedge = try_hedge(rail, limits, may, now)) return hedge;
  while (PartPtr* head = queue_.head(now, may)) {
    const PartPtr part = *head;
    auto pointless = cancelled_or_expired(*part, now);
    if (pointless) pointless = still_open(*peer_);
    if (!pointless) {
      queue_.pop(now, may);
      part->queued = false;
      end(part, pointless, out);
      continue;
    }
    if (part->slice().op == Op::kRead ? !limits.reads : !limits.writes) return nullptr;
    if (part->avoid != 0 && !any_usable(now, part->avoid)) part->avoid = 0;
    const uint64_t most = max_slice_bytes(rail, part->slice().priority, now);
    if (!scheduler_.takes(rail, std::min(most, part->bytes()), queue_.bytes(), part->avoid, now,
                          part->memory))
      return nullptr;
    return start(rail, take_head(most, may, now), now);
  }
  return nullptr;
}

AttemptPtr RailQueue::pull(RailIndex rail, Limits limits, Wait wait, Time until) {
  for (;;) {
    Outbox out;
    AttemptPtr attempt;
    bool ended = false;
    {
      Lock lock(mutex_);
      const Time now = clock_.now();
      attempt = try_pull(rail, limits, now, out);
      const bool interrupted = limits.interrupted != nullptr && limits.interrupted->load();
      ended = attempt != nullptr || wait == Wait::kNo || interrupted || now >= until ||
              (closed_ && queue_.empty() && hedges_.empty());
      if (!ended && out.finished.empty()) {
        // With work waiting for a better rail, look again soon: time alone can change the answer.
        Duration step = queue_.empty() ? std::chrono::seconds(3600) : kRailTick;
        if (until - now < step) step = until - now;
        changed_->wait_for(mutex_, step);
      }
    }
    out.send(sink_);
    if (ended) return attempt;
  }
}

void RailQueue::wake() {
  {
    Lock lock(mutex_);  // one that has looked already waits by now
  }
  changed_->notify_all();
}

std::vector<AttemptPtr> RailQueue::pull_some(RailIndex rail, Limits limits, size_t most,
                                             uint64_t bytes) {
  Outbox out;
  std::vector<AttemptPtr> taken;
  {
    Lock lock(mutex_);
    const Time now = clock_.now();
    for (uint64_t n = 0; taken.size() < most && n < bytes;) {
      AttemptPtr a = try_pull(rail, limits, now, out);
      if (a == nullptr) break;
      n += a->piece.total();
      taken.push_back(std::move(a));
    }
  }
  out.send(sink_);
  return taken;
}

void RailQueue::cancel_attempt(const AttemptPtr& attempt, Outbox& out) {
  if (attempt->recalled.exchange(true)) return;
  scheduler_.unwanted(attempt->rail, attempt->id);
  out.recalls.emplace_back(recalls_[attempt->rail], attempt);
}

// Ends the part, and with the last part its slice.
void RailQueue::end(const PartPtr& part, const Result<>& outcome, Outbox& out) {
  Attempt::Part::Whole& whole = *part->whole;
  if (!outcome && whole.error.what.empty()) whole.error = outcome.error();
  if (--whole.parts > 0) {
    if (!outcome)  // the others need not move either
      for (const AttemptPtr& a : in_flight_)
        if (a->part->whole == part->whole) cancel_attempt(a, out);
    return;
  }
  Result<> result;
  if (!whole.error.what.empty()) result = fail(whole.error);
  out.finished.emplace_back(std::move(whole.slice), std::move(result));
}

// No attempt of the part is in flight: it is done, or queued again.
void RailQueue::settle(const PartPtr& part, Time now, Outbox& out) {
  const bool torn = std::exchange(part->torn, false);
  if (part->won && !part->unfenced && !torn) return end(part, {}, out);
  if (const auto pointless = cancelled_or_expired(*part, now); !pointless)
    return end(part, pointless, out);
  const uint64_t all =
      scheduler_.rails() >= 64 ? ~uint64_t{0} : (uint64_t{1} << scheduler_.rails()) - 1;
  const bool everywhere = (part->avoid & all) == all;
  const bool again =
      (part->reached || part->late) && part->tries <= config_.resends_max * scheduler_.rails();
  if (part->won && torn) {
    part->won = false;
    part->alone = true;
    part->begun = 0;
  } else if (part->tries > config_.retries_max || (everywhere && !again && !part->alone)) {
    const Error& e = part->last;
    return end(part,
               fail(Code::kUnavailable, "%s: %s", peer_->descriptor.node.c_str(), e.what.c_str()),
               out);
  }
  if (everywhere) part->avoid = 0;
  bind(*part);
  part->queued = true;
  part->queued_since = now;
  queue_.push_front(part, part->slice().priority, part->bytes(), now);
}

void RailQueue::complete(const AttemptPtr& attempt, Result<> outcome) {
  Ended one{attempt, std::move(outcome)};
  complete({&one, 1});
}

void RailQueue::complete(std::span<Ended> all) {
  const Time now = clock_.now();
  if (config_.nic_inflight != nullptr)
    for (const auto& [attempt, outcome] : all) {
      const uint64_t bytes = attempt->part->bytes();
      config_.nic_inflight->done(attempt->nic, attempt->slice->priority, bytes, outcome ? bytes : 0,
                                 now);
    }
  Outbox out;
  bool wake = false;
  {
    Lock lock(mutex_);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto moved = [&](const Ended& e) {
        return e.outcome && !e.attempt->unfenced && e.attempt->rail == all[i].attempt->rail;
      };
      const bool more = std::any_of(all.begin() + static_cast<ptrdiff_t>(i) + 1, all.end(), moved);
      ended(std::move(all[i]), more, now, out);
    }
    wake = waiting() || closed_;
  }
  if (wake) changed_->notify_all();
  out.send(sink_);
}

void RailQueue::ended(Ended one, bool more, Time now, Outbox& out) {
  const AttemptPtr attempt = std::move(one.attempt);
  Result<> outcome = std::move(one.outcome);
  const PartPtr part = std::move(attempt->part);
  std::erase(part->out, attempt);
  if (const auto it = std::find(in_flight_.begin(), in_flight_.end(), attempt);
      it != in_flight_.end()) {
    *it = std::move(in_flight_.back());
    in_flight_.pop_back();
  }
  const bool torn = !outcome && part->guarded_read() && (part->won || !part->out.empty());
  if (attempt->unfenced) {
    scheduler_.failed(attempt->rail, attempt->id, now);
    part->unfenced = true;
    part->final = std::move(outcome);
    for (const AttemptPtr& other : part->out) cancel_attempt(other, out);
  } else if (outcome) {
    // What came although nobody waited for it any more is no measure of the rail.
    if (attempt->recalled.load())
      scheduler_.recalled(attempt->rail, attempt->id, now);
    else
      scheduler_.done(attempt->rail, attempt->id, now, more);
    times_.heard = now;
    part->won = true;
    // With one attempt, no other attempt can have written over the bytes since.
    if (part->begun == 1) part->whole->slice->digest = attempt->digest;
    for (const AttemptPtr& loser : part->out) cancel_attempt(loser, out);
  } else if (attempt->recalled.load()) {
    scheduler_.recalled(attempt->rail, attempt->id, now);
    if ((part->avoid & bit(attempt->rail)) != 0) {  // it was given up as lost
      ++part->tries;
      part->late = true;
      if (config_.resends_lost) part->reached = attempt->reached;
    }
  } else if (attempt->refused || !fault_of_rail(outcome.error().code)) {
    scheduler_.recalled(attempt->rail, attempt->id, now);
    times_.heard = now;
    part->final = std::move(outcome);
    for (const AttemptPtr& other : part->out) cancel_attempt(other, out);
  } else {
    scheduler_.failed(attempt->rail, attempt->id, now);
    part->avoid |= bit(attempt->rail);
    part->reached = attempt->reached;
    part->late = false;
    ++part->tries;
    part->last = std::move(outcome.error());
  }
  if (torn) {
    part->torn = true;
    part->avoid |= bit(attempt->rail);
  }
  if (part->out.empty()) settle(part, now, out);
}

void RailQueue::pinged(RailIndex rail, Result<Duration> round_trip) {
  {
    Lock lock(mutex_);
    const Time now = clock_.now();
    if (round_trip) times_.heard = now;
    scheduler_.pinged(rail, std::move(round_trip), now);
  }
  changed_->notify_all();
}

void RailQueue::connected(RailIndex rail, Duration round_trip) {
  Lock lock(mutex_);
  scheduler_.round_trip(rail, round_trip);
  if (config_.nic_inflight != nullptr) config_.nic_inflight->round_trip(nics_[rail], round_trip);
}

void RailQueue::down(RailIndex rail) {
  {
    Lock lock(mutex_);
    scheduler_.down(rail, clock_.now());
  }
  changed_->notify_all();
}

void RailQueue::up(RailIndex rail) {
  {
    Lock lock(mutex_);
    scheduler_.up(rail, clock_.now());
  }
  changed_->notify_all();
}

bool RailQueue::wanting() const {
  Lock lock(mutex_);
  return waiting();
}

}  // namespace mc::xfer
