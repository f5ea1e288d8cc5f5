// Simulated rails for tests of the scheduler: each moves one attempt after another at its rate,
// after its latency; rates change and rails die at given times. Time is virtual; the deciding
// classes are those that run live.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <vector>

#include "base/random.h"
#include "xfer/rails/rail_scheduler.h"

namespace mc::xfer::sim {

inline Time at(double seconds) { return Time{} + Duration(static_cast<int64_t>(seconds * 1e9)); }

struct Rail {
  double rate = 125e6, latency = 100e-6;
  double loss = 0;  // chance that an attempt fails
  double dead_from = 1e9, dead_until = 1e9;
  std::map<double, double> rates = {};  // from when on another rate
  double rate_at(double t) const {
    auto it = rates.upper_bound(t);
    return it == rates.begin() ? rate : std::prev(it)->second;
  }
  bool dead(double t) const { return t >= dead_from && t < dead_until; }
};

struct Slice {
  uint64_t bytes = 0;
  double pushed = 0, done = -1;
  uint64_t avoid = 0;
  int attempts_out = 0, retries = 0;
  bool queued = true;
};

class World {
 public:
  World(std::vector<Rail> rails, SprayConfig config = {}, uint64_t seed = 1)
      : rails_(std::move(rails)),
        free_(rails_.size()),
        carried_(rails_.size()),
        spray_(config),
        random_(seed) {
    for (size_t i = 0; i < rails_.size(); ++i)
      spray_.add({"l" + std::to_string(i), "r" + std::to_string(i), 1, true});
  }
  RailScheduler& spray() { return spray_; }
  double now() const { return now_; }
  const std::vector<Slice>& slices() const { return slices_; }
  uint64_t carried(size_t rail) const { return carried_[rail]; }
  bool failed() const { return failed_; }
  double last_done() const { return last_done_; }
  // Bytes finished within [from, to).
  uint64_t finished(double from, double to) const {
    uint64_t n = 0;
    for (const Slice& s : slices_)
      if (s.done >= from && s.done < to) n += s.bytes;
    return n;
  }
  void push(uint64_t bytes, uint64_t slice) {
    for (uint64_t sent = 0; sent < bytes; sent += slice) {
      slices_.push_back({std::min(slice, bytes - sent), now_});
      queue_.push_back(slices_.size() - 1);
      backlog_ += slices_.back().bytes;
    }
  }
  void later(double when, std::function<void()> run) { events_.push({when, order_++, run}); }

  void run_until(double end) {
    for (;;) {
      settle();
      double next = end;
      if (!events_.empty()) next = std::min(next, events_.top().when);
      // The transport's timer: a few milliseconds at most between two looks while work is queued.
      const Time check = spray_.next_check(at(now_));
      if (check < at(end)) next = std::min(next, std::max(now_ + 1e-4, to_s(check)));
      if (!queue_.empty()) next = std::min(next, now_ + 5e-3);
      if (next >= end) {
        now_ = end;
        return;
      }
      now_ = std::max(now_, next);
      while (!events_.empty() && events_.top().when <= now_) {
        auto run = events_.top().run;
        events_.pop();
        run();
      }
    }
  }
  // Until everything that was pushed is done; the time it took since `from`.
  double drain(double from, double limit = 1000) {
    while (!all_done() && now_ < limit) run_until(now_ + 1e-3);
    return last_done_ - from;
  }
  bool all_done() const {
    return std::all_of(slices_.begin(), slices_.end(), [](const Slice& s) { return s.done >= 0; });
  }
  // No attempt of a slice that was reported done is still moving bytes.
  bool fenced() const { return !unfenced_; }
  double quantile_latency(double q, double from) const {
    std::vector<double> v;
    for (const Slice& s : slices_)
      if (s.done >= from) v.push_back(s.done - std::max(s.pushed, 0.));
    std::sort(v.begin(), v.end());
    return v.empty()
               ? 0
               : v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
  }
  // Time on rails of the slices that finished in [from, to): from the first attempt on.
  std::vector<double> service(double from, double to) const {
    std::vector<double> v;
    for (size_t i = 0; i < slices_.size(); ++i)
      if (slices_[i].done >= from && slices_[i].done < to && first_sent_.contains(i))
        v.push_back(slices_[i].done - first_sent_.at(i));
    std::sort(v.begin(), v.end());
    return v;
  }

 private:
  struct Event {
    double when;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& o) const {
      return when != o.when ? when > o.when : order > o.order;
    }
  };
  struct Out {
    size_t slice;
    RailIndex rail;
    bool recalled = false;
  };
  static double to_s(Time t) { return static_cast<double>((t - Time{}).count()) / 1e9; }

  void settle() {
    const Time t = at(now_);
    for (const auto& late : spray_.late(t)) {
      auto it = out_.find(late.attempt);
      if (it == out_.end()) continue;
      const auto index = it->second.slice;
      Slice& s = slices_[index];
      if (late.late == RailScheduler::Late::kLost) {
        recall(it->first);
        s.avoid |= uint64_t{1} << late.rail;
        if (s.attempts_out == 0 && s.done < 0 && !s.queued) requeue(index);
      } else if (s.done < 0 && !s.queued && s.attempts_out == 1) {
        hedge(index, late.rail);
      }
    }
    for (RailIndex r : spray_.to_ping(t)) {
      const bool dead = rails_[r].dead(now_) || random_.chance(rails_[r].loss);
      later(now_ + (dead ? 0.2 : rails_[r].latency), [this, r, dead] {
        if (dead)
          spray_.pinged(r, fail(Code::kTimeout, "silent"), at(now_));
        else
          spray_.pinged(r, Duration(1000), at(now_));
      });
    }
    for (bool moved = true; moved && !queue_.empty();) {
      moved = false;
      for (RailIndex r = 0; r < rails_.size() && !queue_.empty(); ++r) {
        const size_t head = queue_.front();
        Slice& s = slices_[head];  // until slices_ grows
        const uint64_t part = std::min(s.bytes, spray_.max_slice_bytes(r));
        if (!spray_.takes(r, part, backlog_, s.avoid, t)) continue;
        queue_.erase(queue_.begin());
        if (s.bytes > part + part / 2) {
          Slice rest = s;
          rest.bytes -= part;
          s.bytes = part;
          slices_.push_back(rest);
          queue_.insert(queue_.begin(), slices_.size() - 1);
        }
        sent_from_queue(head, r);
        moved = true;
        continue;
      }
    }
  }
  void sent_from_queue(size_t slice, RailIndex r) {
    slices_[slice].queued = false;
    backlog_ -= slices_[slice].bytes;
    send(slice, r);
  }
  void hedge(size_t slice, RailIndex from) {
    const Slice& s = slices_[slice];
    for (RailIndex r = 0; r < rails_.size(); ++r)
      if (r != from && spray_.takes(r, s.bytes, s.bytes, s.avoid | uint64_t{1} << from, at(now_)))
        return send(slice, r);
  }
  void requeue(size_t slice) {
    Slice& s = slices_[slice];
    if (++s.retries > 50) failed_ = true;
    const uint64_t all = (uint64_t{1} << rails_.size()) - 1;
    if ((s.avoid & all) == all) s.avoid = 0;
    s.queued = true;
    backlog_ += s.bytes;
    queue_.insert(queue_.begin(), slice);
  }
  void send(size_t slice, RailIndex r) {
    const AttemptId id = ++next_;
    Slice& s = slices_[slice];
    ++s.attempts_out;
    first_sent_.try_emplace(slice, now_);
    out_[id] = {slice, r};
    spray_.sent(r, id, s.bytes, at(now_));
    const Rail& rail = rails_[r];
    const double start = std::max(now_, free_[r]);
    double left = static_cast<double>(s.bytes), t = start;
    while (left > 0) {  // rates change under way
      const auto next = rail.rates.upper_bound(t);
      const double until = next == rail.rates.end() ? 1e9 : next->first;
      const double could = rail.rate_at(t) * (until - t);
      if (could >= left) {
        t += left / rail.rate_at(t);
        left = 0;
      } else {
        left -= could;
        t = until;
      }
    }
    if (rail.dead_from < t && rail.dead_until > start) {  // swallowed
      free_[r] = std::max(free_[r], rail.dead_until);
      return;
    }
    free_[r] = t;
    const bool lost = random_.chance(rail.loss);
    later(t + rail.latency, [this, id, lost] { came(id, lost); });
  }
  void came(AttemptId id, bool lost) {
    const auto it = out_.find(id);
    if (it == out_.end()) return;
    const Out o = it->second;
    out_.erase(it);
    Slice& s = slices_[o.slice];
    --s.attempts_out;
    if (lost) {
      spray_.failed(o.rail, id, at(now_));
      s.avoid |= uint64_t{1} << o.rail;
      if (s.done < 0 && s.attempts_out == 0 && !s.queued) requeue(o.slice);
      return;
    }
    spray_.done(o.rail, id, at(now_));
    carried_[o.rail] += s.bytes;
    if (s.done >= 0) return;
    for (auto other = out_.begin(); other != out_.end();) {
      const AttemptId loser = (other++)->first;
      if (out_.at(loser).slice == o.slice) recall(loser);
    }
    if (s.attempts_out != 0) unfenced_ = true;
    s.done = now_;
    last_done_ = now_;
  }
  // The attempt ends at once, as on a connection that is shut down.
  void recall(AttemptId id) {
    const Out o = out_.at(id);
    out_.erase(id);
    spray_.recalled(o.rail, id, at(now_));
    --slices_[o.slice].attempts_out;
  }

  std::vector<Rail> rails_;
  std::vector<double> free_;
  std::vector<uint64_t> carried_;
  RailScheduler spray_;
  Random random_;
  std::vector<Slice> slices_;
  std::vector<size_t> queue_;
  std::map<AttemptId, Out> out_;
  std::map<size_t, double> first_sent_;
  std::priority_queue<Event> events_;
  uint64_t backlog_ = 0, order_ = 0;
  AttemptId next_ = 0;
  double now_ = 0, last_done_ = 0;
  bool failed_ = false, unfenced_ = false;
};

}  // namespace mc::xfer::sim
