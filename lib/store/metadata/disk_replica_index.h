// Tracks disk replicas: which node's disk holds which object, and pending work. Pending work is
// what a node has still to write or forget. The index is independent of the table of objects in
// memory: an object may be in either or in both.
//
// The content of a key never changes while it is stored, so its copies agree in size and checksum.
// If a returning node brings another content, the newer generation wins and the older is forgotten.
// A holder gets its jobs in the answers to its heartbeats, which the master holds until there are
// jobs, and reports their results. A forget counts as done only after that report: until then a
// restarted holder would serve the object.
//
// Thread: owned by the master's loop. Pure: time is an argument.
// Source: ssd-offload-design, "Data Flow"; design, "SSD tier".
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "store/protocol/tier_messages.h"

namespace mc::store {

class DiskReplicaIndex {
 public:
  struct Holder;
  struct Copy {
    Holder* holder = nullptr;
    Generation generation;  // as the holder knows it
  };
  struct OnDisk {
    uint64_t bytes = 0, checksum = 0;
    uint64_t keep_until_s = 0;
    uint8_t cls = 0;
    uint64_t arrived = 0;  // grows
    std::vector<Copy> copies;
    Generation newest() const;
  };
  struct HolderStat {
    NodeId node;
    uint64_t capacity = 0, used = 0, objects = 0, queued = 0;
    std::string trouble;
  };
  // Called when an offload of that name and generation ended; `stored`: with success.
  using Offloaded = std::function<void(const std::string& name, Generation, bool stored, Time now)>;

  explicit DiskReplicaIndex(uint64_t queue_max);  // bytes of a holder's pending offloads
  ~DiskReplicaIndex();
  DiskReplicaIndex(const DiskReplicaIndex&) = delete;
  DiskReplicaIndex& operator=(const DiskReplicaIndex&) = delete;
  void on_offloaded(Offloaded callback) { offloaded_ = std::move(callback); }

  // ---- messages of nodes. Requires: `node` is mounted with that generation
  // The holder must forget an object for which `refused` is true: memory stores another content
  // under its name, or it was removed while its node was away.
  using Refused = std::function<bool(const TierObject&)>;
  void mount(const TierMount& m, const NodeRef& node, const Refused& refused, Time now);
  // Returns: false if the node has not mounted its tier.
  bool beat(const TierHeartbeat& m, Time now, std::function<void(const Result<TierWork>&)> done);
  bool report(const TierReport& m, Time now);
  void drop(const NodeId& node, Time now);

  // ---- queries and orders of the master
  const OnDisk* find(const std::string& name) const;
  const std::map<std::string, OnDisk>& objects() const { return objects_; }  // by name
  uint64_t bytes() const { return bytes_; }
  // The node that serves the copy.
  static const NodeRef& node_of(const Copy& copy);
  // kFull: retry later; kNo: the node has no tier, or its disk has failed.
  enum class Queued : uint8_t { kYes, kFull, kNo };
  Queued ask(const NodeId& node, uint64_t bytes) const;  // what offload() would return
  Queued offload(const NodeId& node, TierJob job, Time now);
  bool offloading(const std::string& name) const { return offloads_.contains(name); }
  uint64_t offloading_bytes() const { return offloading_bytes_; }
  // ---- tenants: names that start with `space`, the tenant's name and NUL, or nothing
  uint64_t used_by(const std::string& space) const;  // all copies, and pending writes
  // The oldest object for which `may_go` holds.
  std::optional<std::string> oldest_of(const std::string& space,
                                       const std::function<bool(const OnDisk&)>& may_go) const;

  // ---- a draining node
  std::vector<std::string> names_after(const NodeId& node, const std::string& after,
                                       size_t limit) const;         // objects on its disk, in order
  std::pair<uint64_t, uint64_t> held_by(const NodeId& node) const;  // objects and bytes
  // Names of all objects on its disk, pending writes included.
  void each_name(const NodeId& node, const std::function<void(const std::string&)>& f) const;
  std::vector<std::pair<std::string, Generation>> forgetting(const NodeId& node) const;
  bool empty(const NodeId& node) const;  // and no forget is pending
  bool bring(const NodeId& node, const std::string& name);
  void forget_copy(const NodeId& node, const std::string& name);
  // Called when an object's last copy was lost with its node.
  using Lost = std::function<void(const std::string& name, const OnDisk&, Time now)>;
  void on_lost(Lost callback) { lost_ = std::move(callback); }
  using Brought = std::function<void(const NodeId&, const std::string& name, Code, Time now)>;
  void on_brought(Brought callback) { brought_ = std::move(callback); }

  // Removes it from all disks. Calls `gone` once, when no holder has it any more.
  void forget(const std::string& name, std::function<void()> gone);
  bool any() const { return !holders_.empty(); }
  std::vector<HolderStat> stat() const;

  // Answers held heartbeats. Call it after anything that may have added jobs. `puts_wait`: holders
  // should write at once what they gathered, because puts wait for its memory.
  void answer(Time now, uint64_t epoch, bool puts_wait);
  Time deadline() const;

 private:
  struct Offload {
    NodeId node;
    TierObject object;
  };
  struct Forgetting {
    size_t open = 0;
    std::function<void()> gone;
  };
  struct Space {  // of a tenant
    uint64_t used = 0;
    std::map<uint64_t, const std::string*> arrivals;
  };
  void count(const std::string& name, uint64_t bytes, bool more);
  void erase(std::map<std::string, OnDisk>::iterator object);  // its last copy is gone
  void add(Holder& holder, const TierObject& object, const Refused& refused);
  void remove(Holder& holder, const std::string& name, Generation generation);
  void order_forget(const Copy& copy, const std::string& name,
                    const std::shared_ptr<Forgetting>& forgetting);
  void end_offload(const NodeId& node, const std::string& name, Generation generation, bool stored,
                   Time now);
  void end_forget(Holder& holder, const std::string& name, Generation generation);

  const uint64_t queue_max_;
  std::map<NodeId, std::unique_ptr<Holder>> holders_;
  std::map<std::string, OnDisk> objects_;
  std::unordered_map<std::string, Offload> offloads_;  // under way
  uint64_t bytes_ = 0, offloading_bytes_ = 0, arrivals_ = 0;
  std::unordered_map<std::string, Space> spaces_;
  Offloaded offloaded_;
  Brought brought_;
  Lost lost_;
};

}  // namespace mc::store
