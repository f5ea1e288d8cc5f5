// Queues the slices for one peer; its rails pull attempts from it. It owns each slice until the
// slice is done. It cuts a slice to what suits the rail that takes it, hedges overdue attempts on
// a second rail, and retries failed ones on others. It fences the losers: a slice is completed
// only when no attempt of it can move another byte. It calls the engine exactly once for each
// slice. The transport's connections (threads, or pollers of a completion queue) pull attempts,
// move bytes, and complete the attempts.
//
// Errors: kUnavailable, kTimeout and kCorrupt count against the rail, and the part is retried
// elsewhere. Any other error, or one that the peer answers, is the request's own and ends the
// slice.
// Thread: any; one mutex, never held across a call into Sink or a connection's Recall.
// Source: TENT paper 3.3.1, 3.4.1; hedging and fencing are ours.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/path.h"
#include "xfer/core/transport.h"
#include "xfer/qos/nic_inflight.h"
#include "xfer/qos/priority_queue.h"
#include "xfer/rails/rail_scheduler.h"

namespace mc::xfer {

// A piece of a slice, on one rail.
struct Attempt {
  AttemptId id = 0;
  RailIndex rail = 0;
  NicIndex nic = 0;              // in NicInflight
  const Slice* slice = nullptr;  // valid until complete()
  std::byte* local = nullptr;    // what to move: instead of the slice's own
  Piece piece;
  std::atomic<bool> recalled{false};  // stop moving bytes and complete it soon
  bool reached = false;  // set by the connection: the peer had been reached when it failed
  bool refused = false;  // set by the connection: the error is the peer's answer, no rail's fault
  // Set by the connection: bytes of it may still land at the peer. The slice fails; nothing is
  // tried again, and no other attempt of it counts.
  bool unfenced = false;
  std::optional<uint64_t> digest;  // set by the connection, where the slice wants it
  void* carrier = nullptr;         // the connection's, which guards it
  struct Part;
  std::shared_ptr<Part> part;  // the queue's
};
using AttemptPtr = std::shared_ptr<Attempt>;

class RailQueue {
 public:
  struct Config {
    SprayConfig spray;
    QosConfig qos;
    Duration peer_timeout = std::chrono::seconds(3);
    uint32_t retries_max = 8;  // of a part, over all rails
    uint32_t resends_max = 2;  // over the same rails, where there are no others
    // What got lost on every rail of a peer that was reached is sent again too: for rails whose
    // own hardware tells when a peer is silent.
    bool resends_lost = false;
    // Of this process: what the classes may have in flight on the local NIC of each rail. Null: all
    // they want.
    NicInflight* nic_inflight = nullptr;
  };
  using Recall = std::function<void(const AttemptPtr&)>;

  RailQueue(Sink& sink, const Clock& clock, Config config, PeerPtr peer);
  ~RailQueue();  // requires: close() was called, and all attempts are complete
  // `cancel_attempt` is called when an attempt of this rail should stop. It wakes the connection,
  // which reads attempt->recalled. All rails are added before the first push.
  RailIndex add_rail(RailInfo info, Recall cancel_attempt);
  void push(SlicePtr slice) { push({&slice, 1}); }
  void push(std::span<SlicePtr> slices);
  // The same by a caller that has a free connection of `rail` and will carry the slice itself if
  // that rail takes it now: then no thread is woken. Null: it is queued.
  AttemptPtr push_or_carry(SlicePtr slice, RailIndex rail);

  // May a caller move a few bytes on `rail` itself, past the queue? Only while nothing is queued or
  // in flight.
  bool free_for(RailIndex rail, uint64_t bytes, Priority priority, const MemoryEnds& memory);
  // It did, in `took`: counts as a sample of the rail, and against the share of its class.
  void carried(RailIndex rail, uint64_t bytes, Priority priority, Duration took, Time now);
  // If that takes longer, it becomes an ordinary attempt, even if the queue is closed.
  AttemptPtr adopt(SlicePtr slice, RailIndex rail);

  enum class Wait : uint8_t { kNo, kYes };
  struct Limits {  // of the connection that asks
    bool reads = true, writes = true;
    bool reserved = false;  // while high-priority work is about, it carries nothing else
    ClassMask only = kAllClasses;
    const std::atomic<bool>* interrupted = nullptr;  // once true, kYes waits no longer; see wake()
  };
  // The next attempt for a connection of this rail; null when there is none now (kNo), the queue is
  // closed and empty, it was interrupted, or `until` passed.
  AttemptPtr pull(RailIndex rail, Limits limits, Wait wait, Time until = Time::max());
  // Makes connections that wait look at Limits::interrupted, which the caller has set.
  void wake();
  // What there is now, up to `most` attempts; none is begun after so many bytes.
  std::vector<AttemptPtr> pull_some(RailIndex rail, Limits limits, size_t most, uint64_t bytes);
  // The attempt moved all its bytes (ok), failed, or was recalled. Requires: no byte of it can move
  // any more, on either side.
  void complete(const AttemptPtr& attempt, Result<> outcome);
  struct Ended {
    AttemptPtr attempt;
    Result<> outcome;
  };
  void complete(std::span<Ended> all);  // the same for several, in turn
  void pinged(RailIndex rail, Result<Duration> round_trip);
  void connected(RailIndex rail, Duration round_trip);  // measured while connecting
  void down(RailIndex rail);                            // known dead: a port down, a device gone
  void up(RailIndex rail);                              // known back: it is probed now
  bool wanting() const;                                 // something is queued

  // The transport's timer calls this at next_check(), or sooner: hedges, timeouts, deadlines and
  // cancels. Returns the rails to ping.
  std::vector<RailIndex> tick();
  Time next_check() const;
  // Queued slices fail with `why`; in-flight attempts are recalled, or left to finish.
  void close(const Error& why, bool cancel_attempt);
  bool idle() const;  // nothing queued, nothing in flight
  std::vector<RailView> view() const;
  double predicted_seconds(RailIndex rail, uint64_t bytes) const;
  void describe(uint64_t bytes, Path& path) const;  // for status output; for memory at path.memory

 private:
  using PartPtr = std::shared_ptr<Attempt::Part>;
  struct Outbox;  // calls to make once the mutex is free
  bool waiting() const MC_REQUIRES(mutex_) { return !queue_.empty() || !hedges_.empty(); }
  Result<> cancelled_or_expired(const Attempt::Part& part, Time now) const;
  AttemptPtr start(RailIndex rail, PartPtr part, Time now) MC_REQUIRES(mutex_);
  AttemptPtr try_pull(RailIndex rail, Limits limits, Time now, Outbox& out) MC_REQUIRES(mutex_);
  // With a scheduler that binds: the first slice that is this rail's.
  AttemptPtr pull_bound(RailIndex rail, Limits limits, Time now, Outbox& out) MC_REQUIRES(mutex_);
  void bind(Attempt::Part& part) MC_REQUIRES(mutex_);
  AttemptPtr try_hedge(RailIndex rail, Limits limits, ClassMask may, Time now) MC_REQUIRES(mutex_);
  PartPtr take_head(uint64_t max_slice_bytes, ClassMask may, Time now) MC_REQUIRES(mutex_);
  // `more`: another one that moved its bytes follows, of the same answer.
  void ended(Ended one, bool more, Time now, Outbox& out) MC_REQUIRES(mutex_);
  void settle(const PartPtr& part, Time now, Outbox& out) MC_REQUIRES(mutex_);
  void end(const PartPtr& part, const Result<>& outcome, Outbox& out) MC_REQUIRES(mutex_);
  void cancel_attempt(const AttemptPtr& attempt, Outbox& out) MC_REQUIRES(mutex_);
  void expire_queued(Time now, Outbox& out) MC_REQUIRES(mutex_);
  void hedge_overdue(Time now, Outbox& out) MC_REQUIRES(mutex_);
  // What may start on the NIC of this rail, and how much of the head at once.
  ClassMask room(RailIndex rail, Limits limits, Time now) MC_REQUIRES(mutex_);
  uint64_t max_slice_bytes(RailIndex rail, Priority p, Time now) MC_REQUIRES(mutex_);
  bool any_usable(Time now, uint64_t avoid) MC_REQUIRES(mutex_);

  Sink& sink_;
  const Clock& clock_;
  const Config config_;
  const PeerPtr peer_;
  mutable Mutex mutex_;
  const std::shared_ptr<Condition> changed_ = std::make_shared<Condition>();  // NicInflight has it
  mutable RailScheduler scheduler_ MC_GUARDED_BY(mutex_);
  std::vector<Recall> recalls_ MC_GUARDED_BY(mutex_);
  std::vector<NicIndex> nics_ MC_GUARDED_BY(mutex_);  // by rail, when there is a NicInflight
  StaticBinding static_binding_ MC_GUARDED_BY(mutex_);
  PriorityQueue<PartPtr> queue_ MC_GUARDED_BY(mutex_);
  std::deque<PartPtr> hedges_ MC_GUARDED_BY(mutex_);         // overdue, wanted on another rail
  std::vector<AttemptPtr> in_flight_ MC_GUARDED_BY(mutex_);  // attempts out
  AttemptId next_id_ MC_GUARDED_BY(mutex_) = 1;
  struct Times {
    Time heard{};    // when a rail last did anything right
    Time look_at{};  // when to look at what is queued again
  };
  Times times_ MC_GUARDED_BY(mutex_);
  bool closed_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mc::xfer
