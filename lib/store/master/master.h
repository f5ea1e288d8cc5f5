// Manages the metadata of the KV store: objects, replicas, leases and eviction. It never sees a
// value's bytes.
//
// handle() takes a message and answers at once, or later through `done`. The owner calls tick() at
// deadline().
//
// Freed space (removed, evicted, rolled back) is reused only after its node acknowledged that it
// forgot the object and raised the guard word. A late reader or writer then meets another
// generation, never another object's bytes. An object is published only after its nodes recorded
// it, so a master that starts empty is complete again once its nodes have sent their inventories.
// Until then (store/metadata/rebuild.h) an unknown key is kUnavailable, not absent: the master
// holds such calls for a moment, in which the key may turn up, and then answers that the caller
// should retry.
//
// Thread: owned by the master's loop. Pure: no clock, no I/O, no locks.
// Source: Mooncake paper, section 3.2; design, "Master"; docs/decisions/0007-store-directory.md.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/options.h"
#include "store/master/due_objects.h"
#include "store/master/grants.h"
#include "store/master/replica_checks.h"
#include "store/metadata/disk_replica_index.h"
#include "store/metadata/events.h"
#include "store/metadata/leases.h"
#include "store/metadata/members.h"
#include "store/metadata/rebuild.h"
#include "store/metadata/removals.h"
#include "store/metadata/tenants.h"
#include "store/metadata/tombstones.h"

namespace mc::store {

std::string in_tenant(uint16_t tenant, std::string_view name);  // a key of both

// Upper bounds of the value size histogram, in bytes.
inline constexpr std::array<uint64_t, 7> kValueSizes = {4 * kKiB, 64 * kKiB, 256 * kKiB, 1 * kMiB,
                                                        4 * kMiB, 16 * kMiB, 64 * kMiB};

struct MasterOptions {
  Duration lease_ttl = std::chrono::seconds(10);
  Duration client_ttl = std::chrono::seconds(10);
  Duration suspect_after = std::chrono::seconds(3);
  Duration put_discard = std::chrono::seconds(30);
  Duration put_wait = std::chrono::milliseconds(100);
  // Longer than a node takes to notice a restart: its heartbeat plus 250 ms.
  Duration rebuild_wait = std::chrono::milliseconds(1500);
  double high_watermark = 0.95;
  double eviction_ratio = 0.05;
  std::string offload = "on-evict", on_slow_offload = "drop";
  Bytes offload_queue{512 * kMiB};  // per node
  std::string evict = "lru";
  std::string placement = "free-ratio";
  Duration slow_start = std::chrono::seconds(30);
  std::string ephemeral = "exclude";
  std::string tenant_quotas, tenant_disk_quotas;
  double pin_share = 0.75, tenant_pin_share = 0.5;
  uint64_t event_log = 16384;
  uint32_t hot_replicas = 1;
  double hot_rate = 50;
  Duration hot_window = std::chrono::seconds(10);
  uint32_t drain_parallel = 4;
  uint32_t tombstones = 262144;
  void describe(OptionList& v);
  Result<> check() const;
};

inline constexpr const char* kLostWithNode = "lost: its node is gone";  // of events

// In seconds, of the first: a clock 8 years ahead.
inline constexpr uint64_t kEpochsAheadMax = 1 << 28;

inline Id& recording_id(Object& object) { return object.queue.prev; }  // index in recording_

class Master {
 public:
  // `epoch` must not repeat: the wall clock in seconds at start. Nodes that saw a larger one from
  // an earlier master raise it when they mount, clients by Stat. `options` passed their check().
  Master(const MasterOptions& options, uint64_t epoch, uint64_t seed, Time started);
  Master(const Master&) = delete;
  Master& operator=(const Master&) = delete;

  // ---- clients
  void handle(const PutStart& m, Time now, Done<PutStarted> done);
  void handle(const PutEnd& m, Time now, Done<Outcomes> done);
  Result<Outcomes> handle(const PutRevoke& m, Time now);
  void handle(const GetReplicas& m, Time now, Done<Replicas> done);
  void handle(const Exists& m, Time now, Done<Existing> done);
  // Counts known objects; during a rebuild fewer than are stored.
  Result<Matched> handle(const MatchPrefix& m, Time now);
  Result<Matched> handle(const MatchBlocks& m, Time now);
  void handle(const Remove& m, Time now, Done<Outcomes> done);
  void handle(const List& m, Time now, Done<Listed> done);
  ClusterStat handle(const Stat& m, Time now);
  Result<Replayed> handle(const Replay& m, Time now) const;
  Result<Explained> handle(const Explain& m, Time now);
  Result<rpc::Empty> handle(const ReportNode& m, Time now);
  Result<rpc::Empty> handle(const ReportReplica& m, Time now);

  // ---- pins and copies
  void handle(const RemovePrefix& m, Time now, Done<RemovePrefixed> done);
  Result<Outcomes> handle(const PinKeys& m, Time now);
  Result<TaskInfo> handle(const CopyKey& m, Time now);
  Result<TaskInfo> handle(const ChangeReplicas& m, Time now);
  Result<TaskInfo> handle(const QueryTask& m, Time now) const;
  Result<DrainInfo> handle(const Drain& m, Time now);

  // ---- nodes
  Result<rpc::Empty> handle(const TaskDone& m, Time now);
  Result<Mounted> handle(const Mount& m, Time now);
  Result<Mounted> handle(const Inventory& m, Time now);
  Result<Mounted> handle(const Unmount& m, Time now);
  void handle(const Heartbeat& m, Time now, Done<HeartbeatReply> done);

  // ---- the SSD tier
  Result<TierAck> handle(const TierMount& m, Time now);
  void handle(const TierHeartbeat& m, Time now, std::function<void(const Result<TierWork>&)> done);
  Result<TierAck> handle(const TierReport& m, Time now);

  void tick(Time now);
  Time deadline() const;

  uint64_t epoch() const { return epoch_; }
  const Members& members() const { return members_; }
  const EventLog& events() const { return events_; }
  uint64_t memory() const;  // of its tables, keys excluded
  struct Totals {           // since start, except the gauges
    uint64_t puts = 0, put_no_space = 0, puts_discarded = 0, puts_waited = 0, not_admitted = 0;
    uint64_t hits = 0, misses = 0, removed = 0, evictions = 0;
    uint64_t disk_hits = 0;  // of `hits`, those that only disks held
    uint64_t made_room = 0;  // evictions that freed something
    uint64_t evicted_objects = 0, evicted_bytes = 0, nodes_expired = 0, records_refused = 0;
    uint64_t copies_done = 0, copies_failed = 0, hot_copies = 0;
    uint64_t checks = 0, corrupt = 0;  // replicas that nodes were to check; that they found corrupt
    uint64_t offloaded = 0;
    uint64_t fewer_replicas = 0, quarantine_expired = 0;
    // Promotions from disk to memory: begun, succeeded, failed; refused for lack of space.
    uint64_t promotions = 0, promoted = 0, promotions_failed = 0, promotions_no_room = 0;
    uint64_t promoting() const { return promotions - promoted - promotions_failed; }  // a gauge
    // Published values by size: up to each of kValueSizes, and larger.
    std::array<uint64_t, kValueSizes.size() + 1> values{}, value_bytes{};
  };
  const Totals& totals() const { return totals_; }
  const Tenants& tenants() const { return tenants_; }
  uint64_t soft_pinned() const { return soft_pinned_; }  // objects
  uint64_t quarantined_bytes() const;                    // of unfinished puts

 private:
  struct ParkedPut {
    PutStart message;
    PutStarted reply;
    std::vector<const Member*> named;  // of reply.nodes
    std::vector<size_t> open;          // items without a result
    uint64_t demand = 0;               // bytes they wait for; 0 for items over quota
    uint64_t kept = 0;                 // bytes of this call, about
    bool late = false;                 // half of its wait is over: victims are dropped for it
    bool extended = false;             // its wait, once, as nodes were giving back memory
    Done<PutStarted> done;
    std::optional<std::multimap<Time, ParkedPut*>::iterator> half{};
  };
  struct Parking {  // puts that wait for space
    // What calls that wait may take of the master's memory; those beyond are answered at once.
    static constexpr uint64_t kKeptMax = 64 * kMiB;
    std::multimap<Time, ParkedPut> puts;     // by deadline
    std::multimap<Time, ParkedPut*> halves;  // by the time at which they become late
    uint64_t demand = 0, late_demand = 0;    // of all, and of the late ones
    uint64_t kept = 0;                       // bytes of all calls that wait, looks too
    void count(const ParkedPut& put, bool in);
  };
  struct Evicting {  // victims that a disk is to have before their memory is free
    struct Victim {
      uint64_t bytes = 0;
      Tenant* tenant = nullptr;
    };
    std::unordered_map<std::string, Victim> victims;  // by name on disks
    uint64_t bytes = 0;                               // that they will free
    void add(std::string name, uint64_t frees, Tenant& tenant);
    bool end(const std::string& name);  // false: it was none
  };
  struct ParkedLook {
    uint16_t tenant = 0;
    std::vector<ObjectKey> keys;
    size_t missing = 0;
    std::function<void(Time now)> answer;
    std::multimap<Time, ParkedLook>::iterator self;
    uint64_t kept = 0;  // bytes of this call, about
  };
  struct QuarantinedRange {  // a range that a late client may still write or read
    NodeId node;
    uint64_t mount = 0;
    Id range = kNoId;
    ObjectRecord record;
  };
  struct Task {  // a running copy
    uint16_t tenant = 0;
    ObjectKey key;
    uint64_t bytes = 0, checksum = 0;
    NodeId target, source;  // a move gives up the source
    uint64_t target_mount = 0, source_mount = 0;
    Id range = kNoId;  // at the target
    Generation generation;
    bool move = false;
    Time leased;   // until when, for the copy alone
    NodeId drain;  // the drain job it belongs to
    std::string error;
    enum class State : uint8_t { kRunning, kDone, kFailed } state = State::kRunning;
  };
  struct Tasks {
    std::map<uint64_t, Task> all;  // by number
    std::deque<uint64_t> ended;
    uint64_t next = 1;
  };
  struct Leaving {  // a lost node that objects still refer to
    std::unique_ptr<Member> node;
    Id at = kNoId;  // the next of its ranges to examine
    Generation since;
    Time when;
    bool may_return = true;
    std::vector<uint64_t> held;  // hashes not yet passed to Tombstones
  };
  struct DrainJob {
    uint64_t mount = 0;
    Time started, next_scan;
    std::vector<std::pair<Id, Generation>> todo;
    uint64_t active = 0, moved = 0, moved_bytes = 0;
    uint64_t demand = 0;             // space it waits for
    std::string why;                 // why it is blocked
    std::set<std::string> bringing;  // being promoted into other nodes' memory
    uint64_t disk_left = 0;          // of this pass over its disk
    Time next_disk;
  };
  struct Heat {
    std::unordered_map<Id, uint32_t> counts;                    // sampled reads since `since`
    std::map<std::pair<uint16_t, ObjectKey>, uint32_t> heated;  // hot objects: replicas before
    Time since;
    uint64_t reads = 0;
  };
  // Ranges of a lost node per step: with ten million objects each costs some 10 us.
  static constexpr size_t kLeaveMax = 64;
  enum class Tried : uint8_t { kAnswered, kNoRoom, kOverQuota };

  // ---- tables
  Generation next_generation();
  uint64_t wall_ms(Time now) const;
  Object* find(uint16_t tenant, std::string_view key);
  Object* find_complete(uint16_t tenant, const ObjectKey& key);
  size_t replica_count(const Object& object) const;
  template <class F>
  void each_replica(const Object& object, const F& f) const;
  void add_replica(Object& object, const Replica& replica);
  Replica take_replica(Object& object, const Member& node);  // no node: it has no replica there
  void set_config(Object& object, ObjectClass cls, Pin pin, Time keep_until,
                  const std::string& group);
  ObjectRecord record_of(const Object& object, const Replica& replica) const;
  void record_of(const Object& object, const Replica& replica, ObjectRecord& empty) const;
  template <class Pieces>
  void each_piece(const Replica& replica, uint64_t bytes, const Pieces& f) const;
  ReplicaLocation place_of(const Object& object, const Replica& replica,
                           std::vector<NodeRef>& nodes, std::vector<const Member*>& named) const;
  void enqueue(Object& object);
  void dequeue(Object& object);
  void grant(Object& object, Time now);  // leases all of its group
  Group* group_of(const Object& object) const;
  std::span<const Id> together_with(const Object& object) const;
  void count_pinned(const Object& object, bool in);
  // Orders the replica's node to forget it. `removal`: expects that. Returns: the order, whose
  // record the caller fills in; nullptr if the node is gone.
  Order* forget(const Replica& replica, RemovalRef removal);
  void forget(const Replica& replica, ObjectRecord record, bool abandoned = false);
  // Frees the object's ranges and erases it. `removal`, if any: expects an order of each replica.
  void release(Object& object, const RemovalRef& removal);
  void erase(Object& object);  // requires: it has no replicas
  void abandon(Object& object, Time now);
  void publish(Object& object, Time now, bool anew);
  // `tier`: the fastest that has the object after the event.
  void note(EventKind kind, const Object& object, Time now, const char* reason = "",
            EventTier tier = EventTier::kMemory);
  // Notes the removal of an object from all disks. Returns: false, and does nothing, if memory has
  // it.
  bool note_disk(const std::string& name, const DiskObjects::OnDisk& disk, Time now,
                 const char* reason);
  void order_done(Member& node, PendingOrder& pending, bool ok, Time now);
  Object* recording_of(const PendingOrder& pending);
  void recorded(const PendingOrder& pending, Time now);
  void drop_node(const NodeId& name, Time now, bool may_return = true);
  bool drop_gone_replicas(Object& object);
  bool only_gone(const Object& object) const;
  bool leaves(const NodeId& name) const;
  void go_on_leaving(size_t most);
  void adopt(Member& node, const ObjectRecord& record, Time now);
  Id reserve(Member& node, const ObjectRecord& record);

  // ---- room
  Tried start_put(const PutStart& m, ParkedPut& put, uint16_t tenant, size_t i, bool last_try,
                  Time now);
  Outcome no_room(uint64_t bytes, Time now) const;
  std::string in_the_way(Time now) const;
  void tell_grant(const Object& object, ParkedPut& put, PutGrant& answer) const;
  Outcome may_begin(const PutStart& m, const PutWant& want, uint16_t tenant, Time now);
  bool still_true(const Object& object) const;
  Result<> may_stay(const PutStart& m, uint16_t tenant, uint64_t bytes, size_t copies) const;
  bool within_quota(uint16_t tenant, uint64_t bytes, bool late, Time now);
  void try_items(const PutStart& m, ParkedPut& put, uint16_t tenant, bool last_try, Time now);
  Outcome removable(const Object& object, bool force, Time now) const;
  // `gone`: what became of it on disks. `ended`: nobody has it, and some remember that.
  void remove(Object& object, const DiskReplicaIndex::Gone& gone, Removal::Ended ended, Time now);
  bool forget_on_disks(const std::string& disk_name, const DiskReplicaIndex::Gone& gone);
  void end_put(uint16_t tenant, const PutClaim& claim, const Outcoming& acks, size_t item);
  void retry_puts(Time now);
  void expire_parked(Time now);
  void make_room(Time now);
  struct Need {
    uint64_t bytes = 0;
    const char* reason = "";
    bool ahead = false;      // background eviction: no call waits
    size_t most = SIZE_MAX;  // victims per step
    bool draining = true;    // space on draining nodes counts too
    bool at_once = false;    // drop victims that no disk has
  };
  struct Evicted {
    uint64_t bytes = 0;
    bool all = false;  // more is needed, and no victim is left
  };
  Evicted evict(Need need, Time now);
  uint64_t evict_from(Tenant& tenant, size_t queue, Need& need, Time now);
  void work_ahead(Time now);
  uint64_t evict_one(Object& object, const Need& need, Time now);
  void drop_for_late_puts(Time now);
  void drop_offloads(const Tenant* of, const Need& need, Time now);
  uint64_t drop(Object& object, const char* reason, Time now);
  bool may_go(const Object& object, const Need& need, Time now) const;

  // ---- tasks
  Result<uint64_t> start_copy(Object& object, const PlacementRequest& request,
                              const Member* move_from, Time now);
  void end_task(uint64_t id, Task& task, Error error);  // keeps its state for task-info
  void give_back(const Task& task, const Replica& at);
  void copied(uint64_t id, Time now);  // the target recorded the copy
  void retire(Object& object, const Member& node, Time now);
  void drain_on(const NodeId& name, DrainJob& job, Time now);
  void drain_memory(const NodeId& name, Member& node, DrainJob& job, Time now);
  void drain_disk(const NodeId& node, DrainJob& job, Time now);
  bool drained_off_disk(const NodeId& node, DrainJob& job, const std::string& name, Time now);
  void brought(const NodeId& node, const std::string& name, Code code, Time now);
  bool drained(const Member& node) const;
  bool stays_in_memory(const Object& object, Time now) const;
  bool drain_one(const NodeId& name, Member& node, DrainJob& job, Object& object, Time now);
  void drain_all(Time now);
  DrainInfo drain_info(const NodeId& name) const;
  void check_replica(const Object& object, const NodeId& node, Generation generation, Time now);
  Result<rpc::Empty> checked(const TaskDone& m, Time now);
  void drop_corrupt(Object& object, const Replica& replica, Time now);
  void note_heat(Object& object, Time now);
  void cool_down(Time now);

  // ---- queries
  void warm(uint16_t tenant, std::span<const ObjectKey> keys) const;
  const Result<Replicas>& locate(const GetReplicas& m, uint16_t tenant,
                                 Time now);  // valid until the next call
  Listed list(const List& m, uint16_t tenant, Time now) const;
  size_t missing(uint16_t tenant, const std::vector<ObjectKey>& keys);
  Result<> sure(size_t missing, Time now) const;
  void look(uint16_t tenant, const std::vector<ObjectKey>& keys, Duration wait, Time now,
            std::function<void(Time now)> answer);
  void answer_look(ParkedLook& look, Time now);
  void wake_looks(const std::string& in_tenant, Time now);
  void go_on_listing(Time now);

  // ---- disks
  std::string disk_name(uint16_t tenant, std::string_view key) const;
  bool stays_on_disk(uint16_t tenant, std::string_view key) const;
  bool refused(const NodeId& node, const TierObject& object);
  bool may_come_back(const std::string& disk_name, Time now) const;
  void replicate_tombstone(const std::string& disk_name, Generation before, Time now);
  void add_tombstone(const std::string& disk_name, const Object* written, Time now);
  void track_departure(const Member& node, Time now);
  bool unknown_nodes_away(Time now) const;
  bool on_disk(uint16_t tenant, std::string_view key) const;
  bool stored(uint16_t tenant, const ObjectKey& key) {
    return find_complete(tenant, key) != nullptr || on_disk(tenant, key);
  }
  bool locate_on_disk(const std::optional<DiskObjects::OnDisk>& disk, Replicas& reply,
                      std::vector<const Member*>& named, Located& item);
  enum class Offload : uint8_t { kDrop, kStarted, kLater };
  Offload offload(Object& object, Time now);
  bool within_disk_quota(const Object& object, Time now);
  bool disks_behind(const Object& object) const;
  void offload_early(Object& object, Time now, bool failed = false);
  void offloaded(const std::string& name, Generation generation, bool stored, Time now);
  bool older_than_disk(const ObjectRecord& record, uint16_t tenant);
  void list_disks(Listed& reply, const List& m, uint16_t tenant, uint32_t limit) const;
  void remove_disks(RemovePrefixed& reply, const RemovePrefix& m, uint16_t tenant,
                    const DiskReplicaIndex::Gone& gone, Time now);

  void expire_leases(Time now);
  void expire_grants(Time now);
  void expire_keeps(Time now);
  uint64_t nodes(Time now) const;  // that the next master should wait for
  void finish(Time now);           // after every message: eviction, parked calls, orders

  const MasterOptions options_;
  const Time started_;
  const uint64_t started_s_;      // by the wall clock
  uint64_t epoch_, counter_ = 0;  // of the last generation
  Table table_;
  Tenants tenants_;
  Members members_;
  Rebuild rebuild_;
  Leases leases_;
  EventLog events_;
  std::unordered_map<Id, Extras> extras_;
  Slab<Recording> recording_;
  std::set<std::pair<Time, Id>> keeps_;          // ends of pins and times to live
  uint64_t object_bytes_ = 0, soft_pinned_ = 0;  // of complete objects; objects
  Grants grants_;
  std::multimap<Time, QuarantinedRange> quarantined_;
  Parking parked_;
  std::multimap<Time, ParkedLook> parked_looks_;  // by deadline
  std::unordered_map<std::string, std::vector<ParkedLook*>> awaited_;
  std::vector<std::pair<List, Done<Listed>>> listing_;  // listings that wait for the order by key
  bool room_changed_ = false;                           // since parked puts were tried
  // Bytes of background eviction to do; objects, and their bytes, placed since its last step.
  uint64_t ahead_ = 0, placed_ = 0, placed_bytes_ = 0;
  Id newest_ = kNoId;  // published last: background eviction spares it
  Tasks tasks_;
  std::map<NodeId, DrainJob> drains_;
  std::deque<Leaving> leaving_;
  ReplicaChecks checks_;
  Heat heat_;
  DiskReplicaIndex tier_;
  Tombstones tombstones_;
  Removals removals_;
  Evicting evicting_;
  DueObjects due_;
  Totals totals_;
  Result<Replicas> located_;  // the last answers, kept for their memory
  PutStarted granted_;
};

template <class F>
void Master::each_replica(const Object& object, const F& f) const {
  if (object.node != nullptr) f(Replica{object.node, object.range, object.generation});
  if (!object.more_replicas) return;
  for (const Replica& r : extras_.at(object.self).replicas) f(r);
}

template <class Pieces>
void Master::each_piece(const Replica& replica, uint64_t bytes, const Pieces& f) const {
  const Member& node = *replica.node;
  for (Id range = replica.range; range != kNoId; range = node.space.next(range)) {
    const uint64_t n = std::min(bytes, node.space.bytes(range));
    const uint64_t offset = node.layout.data + node.space.offset(range);
    f(Extent{offset, n, node.layout.guard_of(offset)});
    bytes -= n;
  }
}

}  // namespace mc::store
