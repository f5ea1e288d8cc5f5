// The metadata of the KV store: which objects exist, where their bytes lie, who may read, write
// and evict them. It never sees a byte of them.
//
// handle() takes a message and answers at once, or later through `done`; tick() must be called at
// deadline(). Space given back (removed, evicted, rolled back) is used again only after its node
// acknowledged that it forgot the object and raised the guard word, so a reader or writer that is
// late meets another generation, never another object's bytes; and an object is published only
// after its nodes recorded it, so that a master that starts empty is whole again when its nodes
// have sent their inventories. Until then (store/rebuild.h) a key that it does not know is
// kUnavailable, not absent: such calls are held for a moment, in which the key may turn up, and
// then told to retry.
//
// Thread: owned by the master's loop. Pure: no clock, no I/O, no locks.
// Source: Mooncake paper, section 3.2; design, "Master"; docs/decisions/0007-store-directory.md.
#pragma once
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/options.h"
#include "store/members.h"
#include "store/rebuild.h"

namespace mc::store {

struct MasterOptions {
  Duration lease_ttl = std::chrono::seconds(10);
  Duration client_ttl = std::chrono::seconds(10);
  Duration suspect_after = std::chrono::seconds(3);
  Duration put_discard = std::chrono::seconds(30);
  Duration put_wait = std::chrono::milliseconds(100);
  // Longer than a node takes to notice a restart: its heartbeat and a quarter of a second.
  Duration rebuild_wait = std::chrono::milliseconds(1500);
  double high_watermark = 0.95;
  double eviction_ratio = 0.05;
  void describe(OptionList& v);
  Result<> check() const;
};

class Master {
 public:
  // `epoch` must not repeat: the wall clock in seconds at start. Nodes that saw a larger one from
  // an earlier master raise it when they mount.
  Master(const MasterOptions& options, uint64_t epoch, uint64_t seed, Time started);
  Master(const Master&) = delete;
  Master& operator=(const Master&) = delete;

  // ---- clients
  void handle(const PutStart& m, Time now, Done<PutStarted> done);
  void handle(const PutEnd& m, Time now, Done<Outcomes> done);
  Result<Outcomes> handle(const PutRevoke& m, Time now);
  void handle(const GetReplicas& m, Time now, Done<Replicas> done);
  void handle(const Exists& m, Time now, Done<Existing> done);
  // Of what is known: while it rebuilds, fewer than are stored.
  Result<Matched> handle(const MatchPrefix& m, Time now);
  void handle(const Remove& m, Time now, Done<Outcomes> done);
  void handle(const List& m, Time now, Done<Listed> done);
  ClusterStat handle(const Stat& m, Time now) const;
  Result<rpc::Empty> handle(const ReportNode& m, Time now);

  // ---- nodes
  Result<Mounted> handle(const Mount& m, Time now);
  Result<Mounted> handle(const Inventory& m, Time now);
  Result<Mounted> handle(const Unmount& m, Time now);
  void handle(const Heartbeat& m, Time now, Done<Beat> done);

  void tick(Time now);
  Time deadline() const;

  uint64_t epoch() const { return epoch_; }
  const Members& members() const { return members_; }
  struct Totals {  // since start, but for the gauges
    uint64_t puts = 0, put_no_space = 0, puts_discarded = 0, hits = 0, misses = 0, removed = 0;
    uint64_t evicted_objects = 0, evicted_bytes = 0, nodes_expired = 0, records_refused = 0;
  };
  const Totals& totals() const { return totals_; }

 private:
  struct ParkedPut {
    PutStart message;
    PutStarted reply;
    std::vector<size_t> open;  // items without an answer
    Time deadline;
    Done<PutStarted> done;
  };
  struct ParkedLook {
    std::vector<ObjectKey> keys;
    size_t missing = 0;
    std::function<void(Time now)> answer;
    std::multimap<Time, ParkedLook>::iterator self;
  };
  struct Discard {  // a grant that expires, or an abandoned writer's range that becomes free
    Time when;
    ObjectKey key;
    Generation generation;
    NodeId node = {};
    uint64_t mount = 0, offset = 0, bytes = 0;
  };

  Generation next_generation();
  Object* find(const ObjectKey& key) const;
  Object* find_complete(const ObjectKey& key) const;
  Object& insert(const ObjectKey& key, uint64_t bytes, Generation generation, Time now);
  // Takes the object out of every table. Its ranges are the caller's concern.
  std::unique_ptr<Object> take(Object& object);
  void forget_range(Member& node, const Record& record, std::function<void()> done);
  // Takes it out and gives its ranges back; `each_forgotten` runs once a replica.
  void release(Object& object, const std::function<void()>& each_forgotten);
  void abandon(Object& object, Time now);
  void publish(Object& object);
  void recorded(const ObjectKey& key, Generation generation, Time now);
  void drop_node(const NodeId& name, Time now);
  void adopt(Member& node, const Record& record, Time now);

  bool start_put(const PutStart& m, size_t i, PutStarted& reply, bool last_try, Time now);
  Outcome no_room(uint64_t bytes) const;
  void end_put(const PutClaim& claim, Time now, const std::function<void(Outcome)>& decided);
  void retry_puts(Time now);
  void expire_parked(Time now);
  void make_room(Time now);
  void evict(uint64_t bytes, size_t keep, Time now);
  Replicas locate(const GetReplicas& m, Time now);
  Listed list(const List& m, Time now) const;
  size_t missing(const std::vector<ObjectKey>& keys) const;
  Result<> sure(size_t missing, Time now) const;
  void look(const std::vector<ObjectKey>& keys, Duration wait, Time now,
            std::function<void(Time now)> answer);
  void answer_look(ParkedLook& look, Time now);
  void wake_looks(const ObjectKey& key, Time now);
  void expire_leases(Time now);
  void expire_grants(Time now);
  uint64_t nodes(Time now) const;  // what the next master should expect
  bool on_healthy_node(const Object& object, Time now) const;
  void finish(Time now);  // after every message: room, parked calls, orders

  const MasterOptions options_;
  uint64_t epoch_;
  uint64_t counter_ = 0;
  Members members_;
  Rebuild rebuild_;
  Leases leases_;
  Lru lru_;
  std::unordered_map<ObjectKey, std::unique_ptr<Object>> objects_;
  std::set<std::string_view> stored_;  // keys of complete objects, for ls
  uint64_t object_bytes_ = 0;          // of complete objects
  std::deque<Discard> writing_;        // grants by age
  std::deque<Discard> quarantine_;     // ranges of abandoned writers, by when they may be reused
  std::list<ParkedPut> parked_puts_;
  std::multimap<Time, ParkedLook> parked_looks_;  // by deadline
  std::unordered_map<ObjectKey, std::vector<ParkedLook*>> awaited_;
  bool room_changed_ = false;  // since parked puts were last tried
  bool filled_ = false;        // something was granted since room was last made
  Totals totals_;
};

}  // namespace mc::store
