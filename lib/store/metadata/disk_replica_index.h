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
// The copies of a lost node are found by no query from then on. They leave the index a bounded
// number at a time, so that nobody waits while a million of them go.
//
// Thread: owned by the master's loop. Pure: time is an argument.
// Source: ssd-offload-design, "Data Flow"; design, "SSD tier".
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "store/metadata/disk_objects.h"
#include "store/metadata/held_beats.h"

namespace mc::store {

class DiskReplicaIndex {
 public:
  struct Holder;
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
  // What it was to forget is done where the whole listing does not name it; else it is ordered
  // again. Returns: false if the page is of an earlier listing, or not the next one of its listing.
  bool mount(const TierMount& m, const NodeRef& node, const Refused& refused, Time now);
  // Returns: false if the node has not mounted its tier, or by another listing.
  bool beat(const TierHeartbeat& m, Time now, std::function<void(const Result<TierWork>&)> done);
  bool report(const TierReport& m, Time now);

  // ---- lost nodes
  void drop(const NodeId& node, Time now);
  // Gives up copies of lost nodes, `most` at most, those lost first. Returns: how many more it may.
  size_t go_on_dropping(size_t most);
  bool dropping(const NodeId& node) const;  // copies of a mount that was dropped are left
  // `left`: of each name that a dropped node held, or may have written. It may bring them back.
  // `lost`: an object's last copy went at `when`: with its node, or its disk has it no more.
  using Lost = std::function<void(const std::string& name, const DiskObjects::OnDisk&, Time when,
                                  bool with_node)>;
  void on_loss(std::function<void(const NodeId&, const std::string& name)> left, Lost lost) {
    left_ = std::move(left);
    lost_ = std::move(lost);
  }

  // ---- queries and orders of the master
  const DiskObjects& objects() const { return objects_; }
  // The node that serves the copy.
  const NodeRef& node_of(const DiskObjects::Copy& copy) const;
  // kFull: retry later; kNo: the node has no tier, or its disk has failed.
  enum class Queued : uint8_t { kYes, kFull, kNo };
  Queued ask(const NodeId& node, uint64_t bytes) const;  // what offload() would return
  Queued offload(const NodeId& node, TierJob job, Time now);
  bool offloading(const std::string& name) const { return offloads_.contains(name); }
  uint64_t offloading_bytes() const { return offloading_bytes_; }

  // ---- a draining node
  std::optional<uint32_t> number_of(const NodeId& node) const;  // of a holder, in objects()
  void turn(const NodeId& node);                                // DiskObjects::turn()
  std::vector<std::pair<std::string, Generation>> forgetting(const NodeId& node) const;
  bool empty(const NodeId& node) const;  // and no forget is pending
  bool bring(const NodeId& node, const std::string& name);
  void forget_copy(const NodeId& node, const std::string& name, Time now);
  using Brought = std::function<void(const NodeId&, const std::string& name, Code, Time now)>;
  void on_brought(Brought callback) { brought_ = std::move(callback); }

  // Removes it from all disks, or waits for removals under way. Calls `gone` once, later: when
  // no holder has it any more, or with kUnavailable when one could not remove it, and tries again.
  // Returns: false if no disk has it; then nothing is called.
  using Gone = std::function<void(const Result<>&)>;
  bool forget(const std::string& name, Gone gone);
  bool any() const { return !numbers_.empty(); }
  std::vector<HolderStat> stat() const;

  // Answers held heartbeats. Call it after anything that may have added jobs. `puts_wait`: holders
  // should write at once what they gathered, because puts wait for its memory. It looks only at
  // those with news, and at those whose time has come.
  void answer(Time now, uint64_t epoch, bool puts_wait);
  Time deadline() const { return beats_.deadline(); }

 private:
  struct Forgetting {
    size_t open = 0;
    Result<> outcome;
    Gone gone;
    void ended(const Result<>& of_holder);
  };
  Holder* holder_of(const NodeId& node) const;
  void add(Holder& holder, const TierObject& object, const Refused& refused);
  void push(Holder& holder, TierJob job);
  void release(Holder& holder, uint64_t epoch, bool hurry);
  void set_queued(Holder& holder, uint64_t bytes);
  void order_forget(Holder& holder, const std::string& name, Generation generation,
                    const std::shared_ptr<Forgetting>& forgetting);
  void end_offload(const NodeId& node, const std::string& name, Generation generation, bool stored,
                   Time now);

  const uint64_t queue_max_;
  DiskObjects objects_;
  HeldBeats beats_;                               // of holders, by their numbers
  std::vector<std::unique_ptr<Holder>> holders_;  // by number
  std::map<NodeId, uint32_t> numbers_;            // of those that are there
  std::unordered_map<std::string, std::pair<NodeId, TierObject>> offloads_;  // under way
  std::set<uint32_t> writing_;  // holders with pending offloads
  uint64_t offloading_bytes_ = 0;
  Offloaded offloaded_;
  Brought brought_;
  std::function<void(const NodeId&, const std::string&)> left_;
  Lost lost_;
};

}  // namespace mc::store
