// Counts what this process has in flight on each NIC, over all peers, and limits it. Each NIC has
// a FairShare, joined with the other processes of this machine through a ShmUsageTable. If the
// table cannot be opened (View::problem says why), this process is not limited by the others' use.
//
//   const NicIndex nic = inflight.nic("eth0");
//   inflight.on_room(nic, waker, [w = waker.get()] { w->changed.notify_all(); });
//   ...   queue.head(now, inflight.room(nic, now)), cut to inflight.slice_max(nic, priority, now)
//   inflight.sent(nic, priority, bytes, now);
//   ...   inflight.done(nic, priority, bytes, moved, now);
//
// Thread: any; a mutex for each NIC, never held across a callback.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "xfer/qos/fair_share.h"
#include "xfer/qos/shm_usage_table.h"

namespace mc::xfer {

using NicIndex = uint32_t;

class NicInflight {
 public:
  struct Config {
    NicConfig nic{};
    bool shared = true;                  // take part in the table of this machine
    std::string directory = "/dev/shm";  // where it lies
  };
  explicit NicInflight(Config config);
  ~NicInflight();

  const QosConfig& qos() const { return config_.nic.qos; }
  NicIndex nic(const std::string& name);  // the same for the same name, made on demand

  void wants(NicIndex nic, Priority p, Time now);
  // The classes that may start an attempt of slice_max() now. If a class may not, on_room callbacks
  // run when that may have changed.
  ClassMask room(NicIndex nic, Time now);
  bool guarded(NicIndex nic, Time now);  // high-priority work was seen lately
  uint64_t slice_max(NicIndex nic, Priority p, Time now);
  uint64_t window(NicIndex nic, Priority p, Time now);
  double share(NicIndex nic, Priority p, Time now);
  void sent(NicIndex nic, Priority p, uint64_t bytes, Time now);
  void done(NicIndex nic, Priority p, uint64_t bytes, uint64_t moved, Time now);
  // sent() and done() at once, for bytes that have arrived already.
  void carried(NicIndex nic, Priority p, uint64_t bytes, Time now);
  void round_trip(NicIndex nic, Duration least);

  // `call` runs on the thread of done(), after it, for as long as `owner` lives. The last reference
  // to `owner` may be dropped there: its destruction must not wait.
  void on_room(NicIndex nic, std::weak_ptr<void> owner, std::function<void()> call);

  struct View {  // for `paths`, metrics
    std::string nic;
    std::array<uint64_t, kPriorities> inflight{};
    std::array<uint32_t, kPriorities> others{};
    double share = 1, capacity = 0;  // share: of medium
    bool guarded = false;
    std::string problem;  // why there is no table; "" when there is
  };
  std::vector<View> view(Time now);

 private:
  static constexpr Duration kUsageEvery = std::chrono::milliseconds(1);
  struct Entry;
  Entry& entry(NicIndex nic);

  const Config config_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_ MC_GUARDED_BY(mutex_);
  std::map<std::string, NicIndex> by_name_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer
