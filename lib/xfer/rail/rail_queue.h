// The slices on their way to one peer over one multi-rail transport, and the rails that pull them.
// It owns each slice until the slice is done: hedges it, retries it on other rails, fences the
// losers (a slice is given back only when no attempt of it can move another byte), and answers to
// the engine exactly once. The transport's connections (threads, or pollers of a completion queue)
// pull attempts, move bytes, and return the attempts.
//
// Thread: any; one mutex, never held across a call into Sink or a connection's callback.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "xfer/qos/priority_queue.h"
#include "xfer/rail/sprayer.h"
#include "xfer/transport.h"

namespace mc::xfer {

struct Attempt {
  AttemptId id = 0;
  RailIndex rail = 0;
  const Slice* slice = nullptr;       // valid until the attempt is returned
  std::atomic<bool> recalled{false};  // stop moving bytes and return it soon
};
using AttemptPtr = std::shared_ptr<Attempt>;

class RailQueue {
 public:
  struct Config {
    SprayConfig spray;
    Duration peer_timeout = std::chrono::seconds(3);
    uint32_t retries_max = 8;  // of a slice, over all rails
  };
  RailQueue(Sink& sink, const Clock& clock, Config config, PeerPtr peer);
  ~RailQueue();  // close() first

  // `recall` is called (without the mutex) when an attempt of this rail should stop: wake its
  // connection, which sees attempt->recalled.
  RailIndex add_rail(RailInfo info, std::function<void(const AttemptPtr&)> recall);
  void push(SlicePtr slice);

  enum class Wait : uint8_t { kNo, kYes };
  struct Limits {  // of the connection that asks
    bool reads = true, writes = true;
  };
  // The next attempt for a connection of this rail; null when there is none now (kNo), or the queue
  // is closing, or `until` passed.
  AttemptPtr pull(RailIndex rail, Limits limits, Wait wait, Time until = Time::max());
  // The attempt moved all its bytes (ok), the rail or peer failed, or it was recalled. No byte of
  // it moves any more, on either side, when this is called.
  void returned(const AttemptPtr& attempt, Result<> outcome);
  void pinged(RailIndex rail, Result<Duration> round_trip);

  // Called by the transport's timer, at most every few milliseconds while work is in flight:
  // hedges, timeouts, deadlines, cancels. Returns rails to ping. next_check(): when to call again.
  std::vector<RailIndex> tick();
  Time next_check() const;
  void close(Error why);  // wakes all pulls; queued slices fail; in-flight ones when returned
  std::vector<RailView> view() const;
};

}  // namespace mc::xfer
