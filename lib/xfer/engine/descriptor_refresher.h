// Slices that wait for a newer descriptor of their peer, and the fetches that bring it. Peers are
// asked side by side, one call each for all slices that wait for it, so a peer that does not answer
// delays nobody else. A slice that is cancelled, or whose deadline passes, ends at once.
//
// Thread: any. Hooks run on a thread of its own, which starts with the first slice, without locks.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "io/loop.h"
#include "xfer/core/transport.h"

namespace mc::rpc {
class Client;
}

namespace mc::xfer {

class DescriptorRefresher {
 public:
  struct Waiting {
    SlicePtr slice;
    Error why;  // its outcome so far
  };
  struct Hooks {
    // A peer answered: opens its descriptor.
    std::function<Result<>(const SegmentDescriptor& descriptor, const std::string& control)> open;
    // The fetch is over, or none was needed: what waited for the segment.
    std::function<void(SegmentHandle segment, std::vector<Waiting> waiting, Result<> outcome)> over;
    // Of a slice that waited too long.
    std::function<void(SlicePtr slice, Error why)> give_up;
  };
  DescriptorRefresher(const Clock& clock, NodeId self, Hooks hooks);
  ~DescriptorRefresher();
  // `control`: where the peer's process answers; empty: its newest descriptor is known already.
  void wait(SegmentHandle segment, const std::string& control, Waiting waiting);
  // Gives up what waits. Later slices come back at once, inside wait().
  void stop();
  // The same happens, with that error, where the thread's loop fails: without files, or memory.

  static constexpr Duration kBudget = std::chrono::seconds(1);  // of a fetch

 private:
  struct Segment {
    std::vector<Waiting> waiting;
    bool fetching = false;
    std::string control;  // where to fetch; empty: no fetch is needed
  };
  Result<> start() MC_REQUIRES(mutex_);
  void run();
  void begin(SegmentHandle segment);
  void fetch(SegmentHandle segment, const std::string& control);
  void fetched(SegmentHandle segment, Result<> outcome);
  void look();  // for slices that wait too long
  std::vector<Waiting> take_overdue();

  const Clock& clock_;
  const NodeId self_;
  const Hooks hooks_;
  io::Loop loop_;
  // Of the loop's thread: the calls under way, those that were answered (until they have returned),
  // and what waits for one of them to end.
  std::map<SegmentHandle, std::unique_ptr<rpc::Client>> calls_;
  std::vector<std::unique_ptr<rpc::Client>> ended_;
  std::deque<std::pair<SegmentHandle, std::string>> queued_;
  io::Loop::Handle timer_ = 0;
  Mutex mutex_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::optional<Error> broken_ MC_GUARDED_BY(mutex_);                // why the loop ended
  std::map<SegmentHandle, Segment> segments_ MC_GUARDED_BY(mutex_);  // that are waited for
  std::thread thread_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer
