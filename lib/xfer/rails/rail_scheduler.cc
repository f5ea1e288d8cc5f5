#include "xfer/rails/rail_scheduler.h"

#include <algorithm>
#include <utility>

namespace mc::xfer {
namespace {

constexpr double kUnknownRate = 1e9;  // until anything is known of any rail: they count as equals
constexpr Duration kSample = std::chrono::milliseconds(8);  // shorter: what a stall dammed up
constexpr uint64_t kSampleBytes = 64 * 1024;  // less says more of the latency than of the rate
constexpr double kRateWeight = .5, kLatencyWeight = .25;
constexpr double kRateGrowth = 2;  // at most, of one sample: a burst is no rate
constexpr double kCollapse = .25;  // of its rate: a stall perhaps, to be looked at again soon
constexpr double kAgrees = 1.25;   // a sample above that says that it was one
constexpr double kLatenessWeight = .125, kLatenesses = 4;  // as a round trip's variance in TCP
constexpr double kQueuedWeight = .05;  // of a round trip that may have stood in a queue

Duration seconds(double s) { return Duration(static_cast<int64_t>(s * 1e9)); }
double seconds(Duration d) { return static_cast<double>(d.count()) / 1e9; }

}  // namespace

RailScheduler::RailScheduler(SprayConfig config) : config_(config) {}

RailIndex RailScheduler::add(RailInfo info) {
  Rail& rail = rails_.emplace_back();
  rail.info = std::move(info);
  rail.health = RailHealth(config_.health);
  return static_cast<RailIndex>(rails_.size() - 1);
}

double RailScheduler::rate(const Rail& r) const {
  if (r.bandwidth > 0) return r.bandwidth;
  double best = 0;
  for (const Rail& other : rails_) best = std::max(best, other.bandwidth);
  return best > 0 ? best : kUnknownRate;
}

uint64_t RailScheduler::window(const Rail& r) const {
  double bytes = r.bandwidth * (r.latency + seconds(config_.window_time));
  bytes = std::min(bytes, static_cast<double>(config_.window_max));
  return std::max(static_cast<uint64_t>(bytes * r.share), config_.window_min);
}

double RailScheduler::predicted(const Rail& r, uint64_t bytes, Time now,
                                const MemoryEnds& memory) const {
  double s = r.latency + static_cast<double>(r.inflight + bytes) / rate(r);
  // The age of an overdue attempt says more than the averages.
  if (!r.attempts.empty()) {
    const Attempt& oldest = r.attempts.front();
    s += std::max(0., seconds(now - oldest.sent - oldest.predicted));
  }
  return s * config_.tier_penalty[tier(r.info, memory) - 1];
}

double RailScheduler::predicted_seconds(RailIndex r, uint64_t bytes, Time now,
                                        const MemoryEnds& memory) const {
  return predicted(rails_[r], bytes, now, memory);
}

// Usable for a slice that failed on the rails of `avoid`. Rails outside the map, and those that are
// being probed, serve only where no other does.
RailScheduler::Fitness RailScheduler::fitness(RailIndex i, uint64_t avoid, Time now,
                                              const MemoryEnds& memory, uint32_t near) {
  Rail& r = rails_[i];
  const RailState state = r.health.state(now);
  if (rails_.size() == 1) return Fitness::kFull;  // there is no other: let it be tried
  if (i < 64 && (avoid >> i & 1) != 0) return Fitness::kNone;
  if (state == RailState::kResting) return Fitness::kNone;
  if (state == RailState::kProbing)
    return r.attempts.empty() && !r.pinging ? Fitness::kLastResort : Fitness::kNone;
  return r.info.mapped || tier(r.info, memory) < near ? Fitness::kFull : Fitness::kSpare;
}

// The map is made without regard to memory. Where each of its rails is far from the bytes at one
// end, others may be near them at both.
uint32_t RailScheduler::nearest_mapped(const MemoryEnds& memory) const {
  if (!memory.known()) return 1;
  uint32_t least = 3;
  for (const Rail& r : rails_)
    if (r.info.mapped) least = std::min(least, tier(r.info, memory));
  return least;
}

// Whether no other rail that is as fit would be through with the backlog before this one.
bool RailScheduler::first_through(RailIndex i, uint64_t backlog, uint64_t avoid, Time now,
                                  const MemoryEnds& memory, uint32_t near) {
  const Fitness mine = fitness(i, avoid, now, memory, near);
  const double p = predicted(rails_[i], backlog, now, memory);
  for (RailIndex k = 0; k < rails_.size(); ++k)
    if (k != i && fitness(k, avoid, now, memory, near) == mine &&
        predicted(rails_[k], backlog, now, memory) < p)
      return false;
  return true;
}

bool RailScheduler::takes(RailIndex i, uint64_t bytes, uint64_t backlog, uint64_t avoid, Time now,
                          const MemoryEnds& memory) {
  Rail& r = rails_[i];
  if (probe_ && probe_->rail == i) probe_.reset();
  const uint32_t near = nearest_mapped(memory);
  const Fitness mine = fitness(i, avoid, now, memory, near);
  if (mine == Fitness::kNone) return false;
  if (rails_.size() == 1) return r.inflight == 0 || r.inflight + bytes <= window(r);
  double best_other = -1, rates = rate(r);
  bool idle_longest = r.attempts.empty(), guess_idle = idle_longest && r.guessed();
  for (RailIndex k = 0; k < rails_.size(); ++k) {
    if (k == i) continue;
    const Fitness theirs = fitness(k, avoid, now, memory, near);
    if (theirs > mine) return false;
    if (theirs < mine) continue;
    const double p = predicted(rails_[k], bytes, now, memory);
    if (best_other < 0 || p < best_other) best_other = p;
    rates += rate(rails_[k]);
    if (rails_[k].last_used >= r.last_used) continue;
    idle_longest = false;
    if (rails_[k].guessed()) guess_idle = false;
  }
  if (r.inflight > 0 && r.inflight + bytes > window(r)) return false;
  if (best_other < 0) return true;
  const double p = predicted(r, bytes, now, memory);
  if (p <= best_other || p <= static_cast<double>(backlog) / rates) return true;
  if (bytes < backlog && first_through(i, backlog, avoid, now, memory, near)) return true;
  const bool ordinary = idle_longest && slices_ - last_probe_ >= config_.probe_every;
  if (!ordinary && !(guess_idle && slices_ - last_guess_ >= config_.probe_guessed_every))
    return false;
  probe_ = {i, ordinary};
  return true;
}

uint64_t RailScheduler::max_slice_bytes(RailIndex i) const {
  const Rail& r = rails_[i];
  if (rails_.size() == 1) return UINT64_MAX;
  if (r.bandwidth == 0) return config_.portion_unknown;
  return std::max(config_.portion_min,
                  static_cast<uint64_t>(r.bandwidth * seconds(config_.portion_time)));
}

void RailScheduler::limit(RailIndex r, double share) {
  rails_[r].share = std::clamp(share, 0.01, 1.);
}

void RailScheduler::sent(RailIndex i, AttemptId id, uint64_t bytes, Time now) {
  Rail& r = rails_[i];
  ++slices_;
  if (probe_ && probe_->rail == i) {
    last_guess_ = slices_;
    if (probe_->ordinary) last_probe_ = slices_;
    if (r.guessed() && bytes < kSampleBytes) ++r.samples;  // too few to tell: it is left so
    probe_.reset();
  }
  const double s = r.latency + static_cast<double>(r.inflight + bytes) / rate(r);
  if (r.attempts.empty()) {
    r.alone = id;
    r.sample_start = now + seconds(r.latency);
    r.sample_bytes = 0;
    r.sample_whole = true;
  }
  r.attempts.push_back({id, bytes, now, seconds(s)});
  r.inflight += bytes;
  r.last_used = now;
}

std::optional<RailScheduler::Attempt> RailScheduler::take(Rail& r, AttemptId id) {
  const auto it = std::find_if(r.attempts.begin(), r.attempts.end(),
                               [&](const Attempt& a) { return a.id == id; });
  if (it == r.attempts.end()) return std::nullopt;
  Attempt a = *it;
  r.attempts.erase(it);
  r.inflight -= a.bytes;
  return a;
}

void RailScheduler::learn(Rail& r, Time now) {
  const uint64_t answered = std::exchange(r.together, 0);
  const std::optional<Time> alone = std::exchange(r.alone_sent, std::nullopt);
  r.sample_bytes += answered;
  const double span = seconds(now - r.sample_start);
  const bool conclusive = r.sample_bytes >= kSampleBytes && span > 0;
  if (conclusive && (span >= seconds(kSample) || (r.attempts.empty() && r.sample_whole))) {
    double rate = static_cast<double>(r.sample_bytes) / span;
    if (r.bandwidth > 0 && !r.guessed()) rate = std::min(rate, kRateGrowth * r.bandwidth);
    if (rate < kCollapse * r.bandwidth)
      r.samples = 1;
    else if (!r.guessed() || rate < kAgrees * r.bandwidth)
      ++r.samples;
    r.bandwidth = r.bandwidth == 0 ? rate : r.bandwidth + kRateWeight * (rate - r.bandwidth);
    r.sample_start = now;
    r.sample_bytes = 0;
    r.sample_whole = false;
    judge_speed(now);
  }
  // An answer to an attempt that met an empty rail tells the latency: a short one what it is, a
  // long one, whose time is mostly the rate's, what it is not.
  if (!alone) return;
  if (answered < kSampleBytes) {
    learn_from_few(r, answered, now - *alone);
  } else if (r.knows_latency) {
    r.latency = std::min(r.latency, seconds(now - *alone));
  }
}

void RailScheduler::learn_from_few(Rail& r, uint64_t bytes, Duration took) {
  const double wire = r.bandwidth > 0 ? static_cast<double>(bytes) / r.bandwidth : 0;
  learn_latency(r, std::max(0., seconds(took) - wire), kLatencyWeight);
}

void RailScheduler::learn_latency(Rail& r, double latency, double weight) {
  r.latency = r.knows_latency ? r.latency + weight * (latency - r.latency) : latency;
  r.knows_latency = true;
}

void RailScheduler::round_trip(RailIndex i, Duration took) {
  Rail& r = rails_[i];
  const double latency = seconds(took);
  learn_latency(r, latency, latency < r.latency ? 1 : kQueuedWeight);
}

void RailScheduler::carried(RailIndex i, uint64_t bytes, Duration took, Time now) {
  Rail& r = rails_[i];
  ++slices_;
  ++r.slices;
  r.bytes += bytes;
  r.last_used = now;
  learn_from_few(r, bytes, took);
  r.health.succeeded(now);
}

void RailScheduler::judge_speed(Time now) {
  std::vector<double> known;
  for (const Rail& r : rails_)
    if (r.bandwidth > 0 && r.info.mapped) known.push_back(r.bandwidth);
  if (known.size() < 2) return;
  const auto middle = known.begin() + static_cast<ptrdiff_t>(known.size() / 2);
  std::nth_element(known.begin(), middle, known.end());
  for (Rail& r : rails_)
    if (r.bandwidth > 0) r.health.compare(r.bandwidth / *middle, now);
}

void RailScheduler::done(RailIndex i, AttemptId id, Time now, bool more) {
  Rail& r = rails_[i];
  const auto a = take(r, id);
  if (!a) return;
  ++r.slices;
  r.bytes += a->bytes;
  r.together += a->bytes;
  if (id == r.alone) r.alone_sent = a->sent;
  if (!more) learn(r, now);
  const double late = std::max(0., seconds(now - a->sent - a->predicted));
  r.lateness += kLatenessWeight * (late - r.lateness);
  if (!a->named_lost) r.health.succeeded(now);
}

void RailScheduler::failed(RailIndex i, AttemptId id, Time now) {
  Rail& r = rails_[i];
  const auto a = take(r, id);
  if (!a || a->named_lost) return;
  ++r.errors;
  r.health.failed(now);
}

void RailScheduler::recalled(RailIndex i, AttemptId id, Time now) {
  Rail& r = rails_[i];
  if (r.together > 0) learn(r, now);  // it was to be the last of an answer
  // The rail was slower than predicted: learn at least how slow.
  if (const auto a = take(r, id); a && a->named_overdue && now > a->sent) {
    const double at_most = static_cast<double>(a->bytes + r.inflight) / seconds(now - a->sent);
    if (r.bandwidth > at_most) {
      if (at_most < kCollapse * r.bandwidth) r.samples = 1;
      r.bandwidth += kRateWeight * (at_most - r.bandwidth);
      judge_speed(now);
    }
  }
}

// It is not called lost any more.
void RailScheduler::unwanted(RailIndex i, AttemptId id) {
  for (Attempt& a : rails_[i].attempts)
    if (a.id == id) a.named_lost = true;
}

void RailScheduler::pinged(RailIndex i, Result<Duration> answer, Time now) {
  Rail& r = rails_[i];
  r.pinging = false;
  if (answer) {
    r.health.succeeded(now);
    round_trip(i, *answer);
  } else {
    r.health.failed(now);
  }
}

void RailScheduler::down(RailIndex r, Time now) { rails_[r].health.down(now); }
void RailScheduler::up(RailIndex r, Time now) { rails_[r].health.up(now); }

// A busy machine delays all its rails now and then: the usual lateness is not overdue.
Duration RailScheduler::overdue_after(const Rail& r, const Attempt& a) const {
  const double usual = std::min(kLatenesses * r.lateness, seconds(config_.lost_floor));
  return std::max<Duration>(config_.overdue_floor,
                            seconds(seconds(a.predicted) * config_.overdue_factor + usual));
}
Duration RailScheduler::lost_after(const Rail& r, const Attempt& a) const {
  return std::max<Duration>({config_.lost_floor, 2 * overdue_after(r, a),
                             seconds(seconds(a.predicted) * config_.lost_factor)});
}

std::vector<RailScheduler::LateAttempt> RailScheduler::late(Time now) {
  std::vector<LateAttempt> out;
  for (RailIndex i = 0; i < rails_.size(); ++i)
    for (Attempt& a : rails_[i].attempts) {
      const Duration age = now - a.sent;
      if (!a.named_overdue && age >= overdue_after(rails_[i], a)) {
        a.named_overdue = true;
        ++rails_[i].hedged;
        out.push_back({i, a.id, Late::kOverdue});
      }
      if (!a.named_lost && age >= lost_after(rails_[i], a)) {
        a.named_lost = true;
        ++rails_[i].errors;
        rails_[i].health.failed(now);
        out.push_back({i, a.id, Late::kLost});
      }
    }
  return out;
}

Time RailScheduler::next_check(Time now) const {
  Time soonest = Time::max();
  for (const Rail& r : rails_) {
    for (const Attempt& a : r.attempts) {
      if (!a.named_overdue) soonest = std::min(soonest, a.sent + overdue_after(r, a));
      if (!a.named_lost) soonest = std::min(soonest, a.sent + lost_after(r, a));
    }
    if (!r.pinging) soonest = std::min(soonest, r.health.wakes());
  }
  return std::max(soonest, now);
}

std::vector<RailIndex> RailScheduler::to_ping(Time now) {
  std::vector<RailIndex> out;
  for (RailIndex i = 0; i < rails_.size(); ++i) {
    Rail& r = rails_[i];
    if (r.pinging || !r.attempts.empty() || r.health.state(now) != RailState::kProbing) continue;
    r.pinging = true;
    out.push_back(i);
  }
  return out;
}

RailView RailScheduler::view(RailIndex i, Time now, const MemoryEnds& memory) {
  Rail& r = rails_[i];
  return {r.info,
          r.health.state(now),
          tier(r.info, memory),
          r.bandwidth,
          seconds(r.latency),
          r.inflight,
          window(r),
          r.slices,
          r.bytes,
          r.errors,
          r.hedged};
}

}  // namespace mc::xfer
