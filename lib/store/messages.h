// What is said between the store's clients, its nodes and mc-master. The master only ever sees
// metadata. Batch calls take vectors and answer item by item, in order, in one round trip; an
// item's code 0 is success, otherwise a mc::Code.
//
//   writer  put-start   -> places and a generation   (then writes the bytes, one-sided)
//           put-end     -> published                 (the nodes have recorded it)
//   reader  get-replicas-> places and a lease        (then reads the bytes, one-sided)
//   node    mount, inventory, then heartbeats that the master holds until it has orders
//
// Every reply carries the master's epoch; nodes and clients refuse one older than they have seen.
// Source: Mooncake paper, section 3.2; docs/decisions/0007-store-directory.md.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "rpc/envelope.h"
#include "wire/codec.h"

namespace mc::store {

inline constexpr size_t kBatchMax = 16384;     // items of one call
inline constexpr size_t kInventoryMax = 4096;  // records of one inventory message
inline constexpr size_t kDeadMax = 32768;      // of what nodes remember of removals
inline constexpr size_t kOrdersMax = 1024;     // orders of one heartbeat's answer
inline constexpr uint32_t kListMax = 10000;    // objects of one page of ls
inline constexpr uint32_t kReplicasMax = 8;
inline constexpr size_t kExtentsMax = 16;      // pieces of one replica
inline constexpr size_t kTenantBytesMax = 64;  // of a tenant's name
inline constexpr size_t kGroupBytesMax = 256;  // of a group's name
inline constexpr uint64_t kPage = 4096;  // values start at multiples of it; one guard word a page

struct Outcome {  // of one item
  uint8_t code = 0;
  std::string what;
  static void fields(auto& a, auto& m) { a(m.code, m.what); }
  bool ok() const { return code == 0; }
  Result<> result() const {
    if (ok()) return {};
    return fail(Error{code_from_wire(code), what});
  }
  static Outcome of(const Error& e) { return {static_cast<uint8_t>(e.code), e.what}; }
  static Outcome of(const Result<>& r) { return r ? Outcome{} : of(r.error()); }
};

struct Outcomes {
  static constexpr const char* kName = "outcomes";
  uint64_t epoch = 0;
  std::vector<Outcome> items;
  static void fields(auto& a, auto& m) { a(m.epoch, m.items); }
};

struct NodeRef {
  NodeId name;
  std::string control;    // where its segment is described
  Generation generation;  // of its transfer engine: changes when it restarts
  static void fields(auto& a, auto& m) { a(m.name, m.control, m.generation); }
};

struct Extent {         // a further piece of a value that found no single range
  uint64_t offset = 0;  // in the node's segment
  uint64_t bytes = 0;
  uint64_t guard = 0;  // of its guard word
  static void fields(auto& a, auto& m) { a(m.offset, m.bytes, m.guard); }
};
struct Place {              // where a replica lies
  uint32_t node = 0;        // index into the reply's nodes
  uint64_t offset = 0;      // of the value's first byte, in the node's segment
  uint64_t guard = 0;       // of the guard word, which holds the replica's generation
  Generation generation{};  // where it is not the object's: of copies made later
  uint64_t bytes = 0;       // of the first piece, where there are more
  std::vector<Extent> more{};
  static void fields(auto& a, auto& m) {
    a(m.node, m.offset, m.guard, m.generation, m.bytes, m.more);
  }
};

// ---- writing

struct PutWant {
  ObjectKey key;
  uint64_t bytes = 0;
  static void fields(auto& a, auto& m) { a(m.key, m.bytes); }
};
struct PutGrant {
  Outcome outcome;  // kExists: stored already; kBusy: being written; kNoSpace: pool full;
                    // kDenied: not admitted, as its class has it
  Generation generation;
  std::vector<Place> places;
  static void fields(auto& a, auto& m) { a(m.outcome, m.generation, m.places); }
};
struct PutStarted {
  static constexpr const char* kName = "put-started";
  uint64_t epoch = 0;
  std::vector<NodeRef> nodes;
  std::vector<PutGrant> items;
  static void fields(auto& a, auto& m) { a(m.epoch, m.nodes, m.items); }
};
struct PutStart {
  static constexpr const char* kName = "put-start";
  using Reply = PutStarted;
  std::vector<PutWant> items;
  uint32_t replicas = 1;  // at least one is granted, at most this many
  std::string prefer;     // node to use when it has room
  uint32_t wait_ms = 0;   // how long a full pool may be waited for; 0: the master's --put-wait
  std::string tenant{};   // empty: "default"
  std::string host{};     // of the writer; with prefer_local, nodes there come next
  bool prefer_local = false;
  uint8_t cls = 0;       // ObjectClass
  uint8_t pin = 0;       // Pin
  uint64_t ttl_ms = 0;   // of a kContext, or of the pin; 0: for ever
  std::string group{};   // objects of a group are leased and evicted together
  bool promote = false;  // of what lies on a disk: that is no reason to refuse it
  static void fields(auto& a, auto& m) {
    a(m.items, m.replicas, m.prefer, m.wait_ms, m.tenant, m.host, m.prefer_local, m.cls, m.pin,
      m.ttl_ms, m.group, m.promote);
  }
};

struct PutClaim {  // an allocation the sender was granted
  ObjectKey key;
  Generation generation;
  uint64_t checksum = 0;  // XXH3-64 of the value
  static void fields(auto& a, auto& m) { a(m.key, m.generation, m.checksum); }
};
struct PutEnd {  // publishes; idempotent; kStale when the grant has expired
  static constexpr const char* kName = "put-end";
  using Reply = Outcomes;
  std::vector<PutClaim> items;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.items, m.tenant); }
};
struct PutRevoke {  // rolls back: the writer promises that it writes no more; idempotent
  static constexpr const char* kName = "put-revoke";
  using Reply = Outcomes;
  std::vector<PutClaim> items;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.items, m.tenant); }
};

// ---- reading

struct Located {
  Outcome outcome;
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  std::vector<Place> places;      // healthy nodes first
  std::vector<uint32_t> disks{};  // nodes that can load it from their disk (tier_messages.h)
  static void fields(auto& a, auto& m) {
    a(m.outcome, m.bytes, m.checksum, m.generation, m.places, m.disks);
  }
};
struct Replicas {
  static constexpr const char* kName = "replicas";
  uint64_t epoch = 0;
  uint32_t lease_ms = 0;  // counted from before the call
  std::vector<NodeRef> nodes;
  std::vector<Located> items;
  static void fields(auto& a, auto& m) { a(m.epoch, m.lease_ms, m.nodes, m.items); }
};
struct GetReplicas {
  static constexpr const char* kName = "get-replicas";
  using Reply = Replicas;
  std::vector<ObjectKey> keys;
  uint32_t wait_ms = 0;  // answered when all keys are stored, or after this
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.keys, m.wait_ms, m.tenant); }
};

struct Existing {
  static constexpr const char* kName = "existing";
  uint64_t epoch = 0;
  std::vector<uint8_t> items;
  static void fields(auto& a, auto& m) { a(m.epoch, m.items); }
};
struct Exists {
  static constexpr const char* kName = "exists";
  using Reply = Existing;
  std::vector<ObjectKey> keys;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.keys, m.tenant); }
};

struct Matched {
  static constexpr const char* kName = "matched";
  uint64_t epoch = 0;
  uint64_t hits = 0;  // the length of the run of stored keys from the first; they are leased
  static void fields(auto& a, auto& m) { a(m.epoch, m.hits); }
};
struct MatchPrefix {
  static constexpr const char* kName = "match-prefix";
  using Reply = Matched;
  std::vector<ObjectKey> keys;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.keys, m.tenant); }
};

struct Remove {  // answered when the holders have forgotten it too
  static constexpr const char* kName = "remove";
  using Reply = Outcomes;
  std::vector<ObjectKey> keys;
  bool force = false;  // although leased or pinned
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.keys, m.force, m.tenant); }
};

struct RemovePrefixed {
  static constexpr const char* kName = "remove-prefixed";
  uint64_t epoch = 0;
  uint64_t removed = 0, refused = 0;
  std::string last{};  // key looked at: ask again with `after` = it while there is more
  bool more = false;
  std::string why{};  // of the first refusal
  static void fields(auto& a, auto& m) { a(m.epoch, m.removed, m.refused, m.last, m.more, m.why); }
};
struct RemovePrefix {  // some of the keys that start with it, in order; the empty one: all
  static constexpr const char* kName = "remove-prefix";
  using Reply = RemovePrefixed;
  std::string prefix{}, after{};
  bool force = false;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.prefix, m.after, m.force, m.tenant); }
};

// ---- keeping and moving

struct PinKeys {
  static constexpr const char* kName = "pin";
  using Reply = Outcomes;
  std::vector<ObjectKey> keys{};
  uint8_t pin = 0;      // Pin; kNone unpins
  uint64_t ttl_ms = 0;  // 0: for ever
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.keys, m.pin, m.ttl_ms, m.tenant); }
};

struct TaskInfo {
  static constexpr const char* kName = "task-info";
  uint64_t epoch = 0;
  uint64_t task = 0;    // 0: there was nothing to do
  std::string state{};  // "running", "done", "failed"
  std::string what{};   // why it failed
  static void fields(auto& a, auto& m) { a(m.epoch, m.task, m.state, m.what); }
};
struct CopyKey {  // one more replica of it; or, to move, instead of one
  static constexpr const char* kName = "copy";
  using Reply = TaskInfo;
  ObjectKey key{};
  NodeId to{};    // empty: where placement has it
  NodeId from{};  // of a move: the replica to give up; empty: any
  bool move = false;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.key, m.to, m.from, m.move, m.tenant); }
};
struct ChangeReplicas {  // to so many; answered with the last task, if any is needed
  static constexpr const char* kName = "change-replicas";
  using Reply = TaskInfo;
  ObjectKey key{};
  uint32_t replicas = 1;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.key, m.replicas, m.tenant); }
};
struct QueryTask {
  static constexpr const char* kName = "query-task";
  using Reply = TaskInfo;
  uint64_t task = 0;
  static void fields(auto& a, auto& m) { a(m.task); }
};

struct DrainInfo {
  static constexpr const char* kName = "drain-info";
  uint64_t epoch = 0;
  NodeId node{};
  std::string state{};  // "none", "running", "blocked", "drained"
  std::string why{};    // it is blocked
  uint64_t objects_left = 0, bytes_left = 0, moved = 0, moved_bytes = 0, active = 0;
  uint64_t eta_ms = 0;  // by the speed so far; 0: not known
  uint64_t others = 0;  // nodes that could take what it holds
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.node, m.state, m.why, m.objects_left, m.bytes_left, m.moved, m.moved_bytes,
      m.active, m.eta_ms, m.others);
  }
};
enum class DrainAction : uint8_t { kQuery = 0, kStart = 1, kCancel = 2 };
struct Drain {  // empties a node: what it holds goes to others
  static constexpr const char* kName = "drain";
  using Reply = DrainInfo;
  NodeId node{};
  uint8_t action = 0;
  static void fields(auto& a, auto& m) { a(m.node, m.action); }
};

// ---- looking

struct ObjectInfo {
  ObjectKey key;
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  uint32_t replicas = 0;
  bool leased = false;
  uint8_t cls = 0, pin = 0;
  uint32_t disks = 0;  // copies on disks
  static void fields(auto& a, auto& m) {
    a(m.key, m.bytes, m.checksum, m.generation, m.replicas, m.leased, m.cls, m.pin, m.disks);
  }
};
struct Listed {
  static constexpr const char* kName = "listed";
  uint64_t epoch = 0;
  std::vector<ObjectInfo> items;  // by key
  bool more = false;              // ask again with `after` = the last key
  uint64_t next_event = 0;        // events from this number on are not in it
  static void fields(auto& a, auto& m) { a(m.epoch, m.items, m.more, m.next_event); }
};
struct List {
  static constexpr const char* kName = "list";
  using Reply = Listed;
  std::string prefix, after;
  uint32_t limit = 1000;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.prefix, m.after, m.limit, m.tenant); }
};

struct NodeStat {
  NodeId name;
  std::string control{}, state{};  // "mounting", "ready", "suspect", "draining", "drained"
  Generation generation;
  uint64_t capacity = 0, used = 0, releasing = 0, objects = 0;
  double heard_ms = 0;       // ago
  double fragmentation = 0;  // the part of the free bytes that a single value could not have
  std::string host{}, domain{};
  static void fields(auto& a, auto& m) {
    a(m.name, m.control, m.state, m.generation, m.capacity, m.used, m.releasing, m.objects,
      m.heard_ms, m.fragmentation, m.host, m.domain);
  }
};
struct TenantStat {
  std::string name{};
  uint64_t objects = 0, used = 0, quota = 0;  // quota 0: none
  uint64_t disk_used = 0, disk_quota = 0;
  static void fields(auto& a, auto& m) {
    a(m.name, m.objects, m.used, m.quota, m.disk_used, m.disk_quota);
  }
};
struct TierStat {  // the disk of a node
  NodeId name;
  uint64_t capacity = 0, used = 0, objects = 0, queued = 0;
  std::string trouble{};
  static void fields(auto& a, auto& m) {
    a(m.name, m.capacity, m.used, m.objects, m.queued, m.trouble);
  }
};
struct ClusterStat {
  static constexpr const char* kName = "cluster-stat";
  uint64_t epoch = 0;
  uint64_t capacity = 0, used = 0, objects = 0, object_bytes = 0, leased = 0, writing = 0;
  uint64_t evicted_objects = 0, evicted_bytes = 0;
  std::vector<NodeStat> nodes;
  std::string rebuilding;  // why the pool is not whole yet after a restart; empty when it is
  uint64_t memory = 0;     // of the master's tables, keys excluded
  std::vector<TenantStat> tenants{};
  uint64_t disk_objects = 0, disk_bytes = 0, offloading = 0;
  std::vector<TierStat> tiers{};
  // Since the master started.
  uint64_t puts = 0, puts_waited = 0, put_no_space = 0, hits = 0, misses = 0, removed = 0;
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.capacity, m.used, m.objects, m.object_bytes, m.leased, m.writing,
      m.evicted_objects, m.evicted_bytes, m.nodes, m.rebuilding, m.memory, m.tenants,
      m.disk_objects, m.disk_bytes, m.offloading, m.tiers, m.puts, m.puts_waited, m.put_no_space,
      m.hits, m.misses, m.removed);
  }
};
struct Stat {
  static constexpr const char* kName = "stat";
  using Reply = ClusterStat;
  static void fields(auto& a, auto&) { a(); }
};

// ---- what happened

enum class EventKind : uint8_t { kStored = 1, kRemoved = 2, kMoved = 3 };
struct Event {
  uint64_t seq = 0;
  uint8_t kind = 0;
  ObjectKey key{};
  std::string tenant{};
  uint64_t bytes = 0, checksum = 0;
  std::string nodes{};   // where it lies, or lay: names, separated by commas
  std::string reason{};  // of a removal: "evicted: the pool is above its watermark"
  uint64_t at_ms = 0;    // by the wall clock
  static void fields(auto& a, auto& m) {
    a(m.seq, m.kind, m.key, m.tenant, m.bytes, m.checksum, m.nodes, m.reason, m.at_ms);
  }
};
struct Replayed {
  static constexpr const char* kName = "replayed";
  uint64_t epoch = 0;
  uint64_t next = 0;  // number of the event that has not happened yet
  bool gap = false;   // older ones were asked for than are kept: take a snapshot by list
  std::vector<Event> events{};
  static void fields(auto& a, auto& m) { a(m.epoch, m.next, m.gap, m.events); }
};
struct Replay {  // events from a number on
  static constexpr const char* kName = "replay";
  using Reply = Replayed;
  uint64_t from = 0;
  uint32_t limit = 1000;
  static void fields(auto& a, auto& m) { a(m.from, m.limit); }
};

struct Explained {  // what is known of a key, for people
  static constexpr const char* kName = "explained";
  uint64_t epoch = 0;
  std::string state{};  // "stored", "being written", "not stored"
  std::vector<std::string> facts{};
  std::vector<Event> events{};  // the newest first
  static void fields(auto& a, auto& m) { a(m.epoch, m.state, m.facts, m.events); }
};
struct Why {
  static constexpr const char* kName = "why";
  using Reply = Explained;
  ObjectKey key{};
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.key, m.tenant); }
};

struct ReportNode {  // a reader could not reach it: suspect until it is heard again
  static constexpr const char* kName = "report-node";
  using Reply = rpc::Empty;
  NodeId node;
  Generation generation;
  static void fields(auto& a, auto& m) { a(m.node, m.generation); }
};

// ---- nodes

struct Record {  // an object as its holder knows it
  ObjectKey key;
  uint64_t offset = 0;  // of the value, in the node's segment
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  std::string tenant{};  // empty: "default"
  uint8_t cls = 0, pin = 0;
  uint64_t keep_until_s = 0;  // of a kContext or a pin, by the wall clock; 0: for ever
  std::string group{};
  uint64_t first_bytes = 0;  // of the first piece, where there are more
  std::vector<Extent> more{};
  static void fields(auto& a, auto& m) {
    a(m.key, m.offset, m.bytes, m.checksum, m.generation, m.tenant, m.cls, m.pin, m.keep_until_s,
      m.group, m.first_bytes, m.more);
  }
};

// A node's segment: values in [data, data + capacity), in whole pages; the guard word of the value
// at `offset` is the u64 at guards + (offset - data) / kPage * 8.
struct Layout {
  uint64_t data = 0, capacity = 0, guards = 0;
  static void fields(auto& a, auto& m) { a(m.data, m.capacity, m.guards); }
  uint64_t guard_of(uint64_t offset) const { return guards + (offset - data) / kPage * 8; }
};

struct Mounted {
  static constexpr const char* kName = "mounted";
  uint64_t epoch = 0;
  uint64_t nodes = 0;  // as in Beat
  static void fields(auto& a, auto& m) { a(m.epoch, m.nodes); }
};
struct Mount {  // then inventory messages, the last of them with `last`
  static constexpr const char* kName = "mount";
  using Reply = Mounted;
  NodeRef node;
  Layout layout;
  uint64_t epoch_seen = 0;  // the largest of any master: a new master goes beyond it
  uint64_t nodes_seen = 0;  // of its last master; 0: it had none
  std::string host{};       // which writers ask for with prefer_local
  std::string domain{};     // replicas of an object go to different ones
  static void fields(auto& a, auto& m) {
    a(m.node, m.layout, m.epoch_seen, m.nodes_seen, m.host, m.domain);
  }
};
struct Inventory {
  static constexpr const char* kName = "inventory";
  using Reply = Mounted;
  NodeId node;
  Generation generation;
  std::vector<Record> records;
  bool last = false;
  bool tier = false;  // a tier-mount will follow the last
  // With the last: what this node was told is dead, for a master that does not know it: hashes
  // of names (store/graves.h), and for each the generation before which.
  std::vector<uint64_t> dead{}, before{};
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, m.records, m.last, m.tier, m.dead, m.before);
  }
};
struct Unmount {
  static constexpr const char* kName = "unmount";
  using Reply = Mounted;
  NodeId node;
  Generation generation;
  static void fields(auto& a, auto& m) { a(m.node, m.generation); }
};

enum class OrderKind : uint8_t {
  kRecord = 1,  // the value at record.offset is complete: keep it in the directory
  kForget = 2,  // drop it, and raise its guard word to `fence`; a copy to there ends first
  kCopy = 3,    // read the value from `source` on `from` to record.offset, then say task-done
  kBury = 4,    // remember that of record.key all before `fence` is dead; it need not lie here
};
struct Order {
  uint64_t seq = 0;
  uint8_t kind = 0;
  Record record;
  Generation fence;
  uint64_t task = 0;  // of a kCopy
  NodeRef from{};
  Place source{};
  bool removed = false;  // a kForget: the object is gone, not only this replica
  static void fields(auto& a, auto& m) {
    a(m.seq, m.kind, m.record, m.fence, m.task, m.from, m.source, m.removed);
  }
};

struct TaskDone {  // by the node that copied: the bytes are there and their checksum is right
  static constexpr const char* kName = "task-done";
  using Reply = rpc::Empty;
  NodeId node{};
  Generation generation{};
  uint64_t task = 0;
  Outcome outcome{};
  static void fields(auto& a, auto& m) { a(m.node, m.generation, m.task, m.outcome); }
};

enum class BeatStatus : uint8_t { kOk = 0, kRemount = 1 };
struct Beat {
  static constexpr const char* kName = "beat";
  uint64_t epoch = 0;
  uint8_t status = 0;
  std::vector<Order> orders;  // by seq; carry them out, in order, then acknowledge the last
  uint64_t nodes = 0;         // of the pool: those that the next master should wait for
  static void fields(auto& a, auto& m) { a(m.epoch, m.status, m.orders, m.nodes); }
};
// A sign of life, acknowledging the orders up to `done`. Answered when there are new orders, or
// after hold_ms: a node always has one waiting at the master.
struct Heartbeat {
  static constexpr const char* kName = "heartbeat";
  using Reply = Beat;
  NodeId node;
  Generation generation;
  uint64_t done = 0;
  uint32_t hold_ms = 0;
  static void fields(auto& a, auto& m) { a(m.node, m.generation, m.done, m.hold_ms); }
};

}  // namespace mc::store
