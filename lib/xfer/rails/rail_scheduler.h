// Pure: decides which rail takes the next slice, and when (slice spraying). Slices bind late: a
// rail with room asks for the head of the queue, and gets it only if the whole queue then finishes
// sooner:
//
//   predicted(r) = (latency_r + (inflight_r + slice) / bandwidth_r) x tier penalty,
//                  but never less than what its oldest overdue attempt already took;
//                  the tier is that of the end that is farther from its memory
//   r takes it when predicted(r) <= max(least of the others, backlog / sum of bandwidths),
//   or when it would be through with the whole backlog first
//
// The last is for progress: each rail asks for a slice of the size that suits it, so each may find
// another better at its own size. The backlog is the same for all, and one of them is the first.
//
// So an idle slow rail helps with a long queue, and stays away from the last slices of a short
// one. Bandwidth and latency are moving averages of time on the wire (not of time in our own
// queue) and start unknown: no nominal line rate. Windows follow bandwidth x delay. One slice in a
// hundred probes the usable rail that was idle longest; one in ten does while there is a rail whose
// bandwidth one sample or two speak for, since it began or since it collapsed: a stall that met a
// slice is soon forgotten. late() names overdue attempts, to be hedged on another rail, and lost
// ones, which count as errors.
//
// Thread: one at a time (its owner's mutex). Bytes and Time everywhere.
// Source: TENT paper 3.3.1, without its submit-time binding and its nominal bandwidth.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "xfer/core/rail_view.h"
#include "xfer/rails/rail_health.h"
#include "xfer/rails/static_binding.h"

namespace mc::xfer {

using AttemptId = uint64_t;

struct SprayConfig {
  Scheduler scheduler = Scheduler::kSpray;  // others: of the queue's slices, for comparison
  double tier_penalty[3] = {1, 3, 10};
  uint64_t window_min = 128 * 1024, window_max = 16u << 20;
  Duration window_time = std::chrono::milliseconds(8);  // of work kept in flight beyond the latency
  Duration portion_time = std::chrono::milliseconds(4);
  uint64_t portion_min = 64 * 1024, portion_unknown = 256 * 1024;
  uint32_t probe_every = 100;         // slices
  uint32_t probe_guessed_every = 10;  // the same, for rails with few samples
  double overdue_factor = 2;          // times what was predicted
  Duration overdue_floor = std::chrono::milliseconds(20);
  double lost_factor = 10;  // overdue by this much is an error of the rail
  Duration lost_floor = std::chrono::milliseconds(100);
  HealthConfig health = {};
};

class RailScheduler {
 public:
  explicit RailScheduler(SprayConfig config = {});
  RailIndex add(RailInfo info);
  size_t rails() const { return rails_.size(); }

  // May rail r start an attempt of `bytes` now? `backlog`: bytes waiting, these included. `avoid`:
  // a bit for each rail that already failed this slice (then unmapped rails may serve too).
  // `memory`: where the bytes lie, here and there. Unmapped rails serve too if they are nearer than
  // all that are mapped, seen from both ends.
  bool takes(RailIndex r, uint64_t bytes, uint64_t backlog, uint64_t avoid, Time now,
             const MemoryEnds& memory = {});
  // The most a slice on this rail should hold: a few milliseconds of its rate, so that no slice is
  // long on a slow rail. No limit while it is the only rail.
  uint64_t max_slice_bytes(RailIndex r) const;
  // The share of the NIC this process may use just now, 0 < share <= 1; scales the window.
  void limit(RailIndex r, double share);

  void sent(RailIndex r, AttemptId attempt, uint64_t bytes, Time now);
  // Learned from. `more`: others that were answered together with it follow, with the same `now`:
  // they are one answer.
  void done(RailIndex r, AttemptId attempt, Time now, bool more = false);
  void failed(RailIndex r, AttemptId attempt, Time now);    // held against the rail
  void recalled(RailIndex r, AttemptId attempt, Time now);  // neither: hedge lost, cancelled
  void unwanted(RailIndex r, AttemptId attempt);  // it is to be recalled, which may take a while
  void pinged(RailIndex r, Result<Duration> answer, Time now);  // of a resting or probing rail
  void round_trip(RailIndex r, Duration took);  // of a few bytes, perhaps with others in flight
  // A few bytes that were no attempt, and met an empty rail: sent `took` ago, and there.
  void carried(RailIndex r, uint64_t bytes, Duration took, Time now);
  void down(RailIndex r, Time now);
  void up(RailIndex r, Time now);

  enum class Late : uint8_t { kOverdue, kLost };
  struct LateAttempt {
    RailIndex rail;
    AttemptId attempt;
    Late late;
  };
  // Attempts that take too long; each is named once per kind. kOverdue: start a second attempt
  // elsewhere. kLost: recall it; it has been held against its rail already.
  std::vector<LateAttempt> late(Time now);
  Time next_check(Time now) const;           // when to call late() and to_ping() next
  std::vector<RailIndex> to_ping(Time now);  // resting rails whose time has come, once each

  RailView view(RailIndex r, Time now, const MemoryEnds& memory = {});
  double predicted_seconds(RailIndex r, uint64_t bytes, Time now,
                           const MemoryEnds& memory = {}) const;

 private:
  struct Attempt {
    AttemptId id;
    uint64_t bytes;
    Time sent;
    Duration predicted;
    bool named_overdue = false, named_lost = false;
  };
  struct Rail {
    RailInfo info;
    RailHealth health;
    double bandwidth = 0, latency = 0, share = 1;  // bytes/s, s
    double lateness = 0;                           // s beyond what was predicted, an average
    uint32_t samples = 0;                          // of the bandwidth, since it collapsed
    bool knows_latency = false, pinging = false;
    bool guessed() const { return samples == 1 || samples == 2; }
    uint64_t inflight = 0, slices = 0, bytes = 0, errors = 0, hedged = 0;
    Time last_used{};
    std::vector<Attempt> attempts;  // oldest first
    // Bytes completed since the sample began; it restarts after the rail was idle.
    Time sample_start{};
    uint64_t sample_bytes = 0;
    bool sample_whole = false;       // all of its bytes were sent since it began
    AttemptId alone = 0;             // the last attempt that was sent while nothing was in flight
    uint64_t together = 0;           // bytes of the answer that is being told
    std::optional<Time> alone_sent;  // `alone` is part of it
  };
  enum class Fitness : uint8_t { kNone, kLastResort, kSpare, kFull };
  // `near`: unmapped rails of a lower tier than this are as good as mapped ones.
  Fitness fitness(RailIndex r, uint64_t avoid, Time now, const MemoryEnds& memory, uint32_t near);
  bool first_through(RailIndex r, uint64_t backlog, uint64_t avoid, Time now,
                     const MemoryEnds& memory, uint32_t near);
  uint32_t nearest_mapped(const MemoryEnds& memory) const;
  double rate(const Rail& r) const;
  uint64_t window(const Rail& r) const;
  double predicted(const Rail& r, uint64_t bytes, Time now, const MemoryEnds& memory) const;
  static std::optional<Attempt> take(Rail& r, AttemptId id);
  void learn(Rail& r, Time now);
  static void learn_from_few(Rail& r, uint64_t bytes, Duration took);
  static void learn_latency(Rail& r, double latency, double weight);
  void judge_speed(Time now);  // which rails are slow, compared with the others
  Duration overdue_after(const Rail& r, const Attempt& a) const;
  Duration lost_after(const Rail& r, const Attempt& a) const;

  SprayConfig config_;
  std::vector<Rail> rails_;
  struct Probe {
    RailIndex rail;
    bool ordinary;  // the one in a hundred
  };
  uint64_t slices_ = 0, last_probe_ = 0, last_guess_ = 0;
  std::optional<Probe> probe_;  // takes() said yes to it for this reason alone
};

}  // namespace mc::xfer
