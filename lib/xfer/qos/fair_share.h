// Pure: limits this process's bytes in flight on one NIC, by class. The limit depends on what the
// other processes do on that NIC.
//
//   share(c)  = weight_c / weights of all active classes / processes active in c
//   window(c) = share(c) x capacity x window_time   while another process works on this NIC
//             = a few small slices                  while c is below high, and high-priority work
//                                                     was seen lately
//             = no limit                            otherwise
//
// A process gets the part of a link that it has in flight there, so equal windows are equal
// shares, whatever the number of threads. It is work-conserving: a process without work for
// `idle_after` does not count, and a process that is alone is not limited.
//
// A high-priority request queues behind what lower classes have in flight, and those bytes cannot
// be recalled. So for `guard_time` after such work was seen, lower classes keep only what a full
// link needs: capacity x (round trip + turnaround) and one small slice, at least `guarded_bytes`
// in all.
//
// `capacity` is the most that all processes together moved lately: measured, never a nominal rate.
// Processes use the largest capacity and the shortest round trip that one of them knows. Otherwise
// a process that starts while the link is full would measure a longer round trip than the others,
// and take more.
//
// Thread: one at a time (its owner's mutex). Bytes, and bytes a second.
// Source: TENT paper 3.3.2 (two layers of quotas); its time slots, which leave an idle link idle,
// are not taken over.
#pragma once
#include <array>
#include <cstdint>

#include "xfer/qos/priority_queue.h"

namespace mc::xfer {

struct NicConfig {
  QosConfig qos;
  Duration idle_after = std::chrono::milliseconds(20);
  // A process with work in flight counts for so long after it was last heard.
  Duration silent_after = std::chrono::seconds(1);
  Duration guard_time = std::chrono::milliseconds(250);
  uint64_t guarded_bytes = 64 * 1024;
  uint64_t guarded_slice_min = 16 * 1024, guarded_slice = 32 * 1024;
  Duration turnaround = std::chrono::microseconds(300);  // from an answer to the next request
  Duration window_time = std::chrono::milliseconds(4);
  uint64_t window_min = 128 * 1024, slice_min = 64 * 1024;
  Duration rate_time = std::chrono::milliseconds(50);  // over which a rate is measured
  Duration capacity_half_life = std::chrono::seconds(2);
};

inline constexpr Time kLongAgo{Duration(INT64_MIN / 4)};  // differences to it do not overflow

// What a process publishes: until when each class counts as active, and its rate.
struct NicDemand {
  std::array<Time, kPriorities> active_until{};
  double rate = 0, capacity = 0;  // the latter: its estimate for all processes together
  Duration round_trip{};          // zero: not known
};

// What the other processes published, summed up.
struct NicUsage {
  std::array<uint32_t, kPriorities> active{};  // processes, without this one
  Time high_until = kLongAgo;                  // the latest of them
  double rate = 0;                             // of the active ones
  double capacity = 0;                         // the largest estimate
  Duration round_trip{};                       // the least of theirs; zero: not known
};

class FairShare {
 public:
  static constexpr uint64_t kNoLimit = UINT64_MAX;

  explicit FairShare(NicConfig config = {});
  void wants(Priority p, Time now);  // work of this class waits
  void sent(Priority p, uint64_t bytes, Time now);
  // The bytes are no longer in flight; `moved` of its bytes arrived (0: failed or recalled).
  void done(Priority p, uint64_t bytes, uint64_t moved, Time now);
  void round_trip(Duration least);  // of the NIC's quickest path, unloaded; the least counts
  void others(const NicUsage& usage) { others_ = usage; }
  const std::array<uint32_t, kPriorities>& others() const { return others_.active; }

  NicDemand demand(Time now) const;
  double share(Priority p, Time now) const;  // 0 < share <= 1
  uint64_t window(Priority p, Time now) const;
  uint64_t slice_max(Priority p, Time now) const;  // cut larger work to this
  // May an attempt of so many bytes start? One always may, where none of its class is in flight.
  bool admits(Priority p, uint64_t bytes, Time now) const;
  bool guarded(Time now) const;  // high-priority work was seen lately
  uint64_t inflight(Priority p) const { return inflight_[static_cast<size_t>(p)]; }
  double capacity(Time now) const;

 private:
  bool active(size_t c, Time now) const;
  void measure(Time now);
  double full(Duration time, Time now) const;  // what the link moves in a round trip and `time`
  uint64_t guarded_window(Priority p, Time now) const;

  NicConfig config_;
  std::array<uint64_t, kPriorities> inflight_{};
  std::array<Time, kPriorities> seen_{};
  NicUsage others_;
  Duration round_trip_{};
  double rate_ = 0, capacity_ = 0;  // the latter as of capacity_at_
  Time capacity_at_{}, measured_at_{};
  uint64_t moved_ = 0;  // since measured_at_
};

}  // namespace mc::xfer
