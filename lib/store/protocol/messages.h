// Messages between the store's clients, its nodes and mc-master. The master only sees metadata.
// Batch calls take vectors and answer item by item, in order, in one round trip. An item's code is
// 0 for success, otherwise a mc::Code.
//
//   writer  put-start   -> places and a generation   (then writes the bytes, one-sided)
//           put-end     -> published                 (the nodes have recorded it)
//   reader  get-replicas-> places and a lease        (then reads the bytes, one-sided)
//   node    mount, inventory, then heartbeats that the master holds until it has orders
//
// Every reply carries the master's epoch; nodes and clients refuse one older than they have seen.
//
// Thread: values.
// Source: Mooncake paper, section 3.2; docs/decisions/0007-store-directory.md.
#pragma once
#include <compare>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "rpc/envelope.h"
#include "wire/codec.h"

namespace mc::store {

inline constexpr size_t kBatchMax = 16384;     // items of one call
inline constexpr size_t kInventoryMax = 4096;  // records of one inventory message
inline constexpr size_t kDeadMax = 32768;      // removals that a node remembers
inline constexpr size_t kOrdersMax = 1024;     // orders of one heartbeat's answer
inline constexpr uint32_t kListMax = 10000;    // objects of one page of ls
inline constexpr size_t kNodesMax = 65536;     // named in one message
inline constexpr size_t kAvoidMax = 64;        // nodes that a put names as out of its reach
inline constexpr uint32_t kReplicasMax = 8;
inline constexpr size_t kPlacesMax = 2 * kReplicasMax;  // of an object, while one moves
inline constexpr size_t kUnfencedMax = 16384;           // ranges of a node that nobody may have yet
inline constexpr size_t kExtentsMax = 16;               // pieces of one replica
inline constexpr size_t kTenantBytesMax = 64;           // of a tenant's name
inline constexpr size_t kGroupBytesMax = 256;           // of a group's name
inline constexpr size_t kPrefixesMax = 256;             // of one match-blocks
inline constexpr size_t kHashBytesMax = 64;             // of a block's hash
inline constexpr uint64_t kPage = 4096;  // values start at multiples of it; one guard word a page

struct Outcome {  // of one item
  uint8_t code = 0;
  std::string what;
  static void fields(auto& a, auto& m) { a.lean(m.code, m.what); }
  bool ok() const { return code == 0; }
  bool empty() const { return code == 0 && what.empty(); }
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
  static void fields(auto& a, auto& m) { a(m.epoch, wire::at_most<kBatchMax>(m.items)); }
};

struct NodeRef {
  NodeId name;
  std::string control;    // serves the description of its segment
  Generation generation;  // of its transfer engine; a restart changes it
  static void fields(auto& a, auto& m) { a(m.name, m.control, m.generation); }
  bool empty() const { return name.empty() && control.empty() && !generation; }
};

struct Extent {         // a further piece of a value in several ranges
  uint64_t offset = 0;  // in the node's segment
  uint64_t bytes = 0;
  uint64_t guard = 0;  // offset of its guard word
  static void fields(auto& a, auto& m) { a(m.offset, m.bytes, m.guard); }
};
struct ReplicaLocation {    // where a replica lies
  uint32_t node = 0;        // index into the reply's nodes
  uint64_t offset = 0;      // of the value's first byte, in the node's segment
  uint64_t guard = 0;       // offset of the guard word, which holds the replica's generation
  Generation generation{};  // if not the object's: that of a later copy
  uint64_t bytes = 0;       // of the first piece, if there are more
  std::vector<Extent> more{};
  static void fields(auto& a, auto& m) {
    a.lean(m.node, m.offset, m.guard, m.generation, m.bytes, wire::at_most<kExtentsMax>(m.more));
  }
  bool empty() const {
    return node == 0 && offset == 0 && guard == 0 && !generation && bytes == 0 && more.empty();
  }
};

// ---- puts

struct PutWant {
  ObjectKey key;
  uint64_t bytes = 0;
  Generation tried{};  // of an earlier grant of this put whose put-end got no answer; 0: none
  static void fields(auto& a, auto& m) { a.lean(m.key, m.bytes, m.tried); }
};
struct PutGrant {
  Outcome outcome;  // kExists: stored already; kBusy: being written; kNoSpace: pool full;
                    // kDenied: not admitted, as its class has it
  Generation generation;
  std::vector<ReplicaLocation> places;
  static void fields(auto& a, auto& m) {
    a(m.outcome, m.generation, wire::at_most<kPlacesMax>(m.places));
  }
};
struct PutStarted {
  static constexpr const char* kName = "put-started";
  uint64_t epoch = 0;
  std::vector<NodeRef> nodes;
  std::vector<PutGrant> items;
  bool rebuilding = false;  // retry unavailable items: the nodes are not back yet
  static void fields(auto& a, auto& m) {
    a(m.epoch, wire::at_most<kNodesMax>(m.nodes), wire::at_most<kBatchMax>(m.items), m.rebuilding);
  }
};
struct PutStart {
  static constexpr const char* kName = "put-start";
  using Reply = PutStarted;
  std::vector<PutWant> items;
  uint32_t replicas = 1;  // the master grants one to this many
  std::string prefer;     // node to use if it has space
  uint32_t wait_ms = 0;   // how long to wait for a full pool; 0: the master's --put-wait
  std::string tenant{};   // empty: "default"
  std::string host{};     // of the writer; with prefer_local, nodes there come next
  bool prefer_local = false;
  uint8_t cls = 0;       // ObjectClass
  uint8_t pin = 0;       // Pin
  uint64_t ttl_ms = 0;   // of a kContext, or of the pin; 0: unlimited
  std::string group{};   // objects of a group are leased and evicted together
  bool promote = false;  // a copy on a disk does not refuse it
  // 64 random bits, the same when this message is sent again because its answer did not come. What
  // the first one was granted is then granted again. What was given back is refused (kStale): its
  // writer promised to write no more. 0: none.
  uint64_t nonce = 0;
  std::vector<std::string> avoid{};  // nodes that the writer did not reach lately
  static void fields(auto& a, auto& m) {
    a(wire::at_most<kBatchMax>(m.items), m.replicas, m.prefer, m.wait_ms, m.tenant, m.host,
      m.prefer_local, m.cls, m.pin, m.ttl_ms, m.group, m.promote, m.nonce,
      wire::at_most<kAvoidMax>(m.avoid));
  }
};

struct PutClaim {  // an allocation granted to the sender
  ObjectKey key;
  Generation generation;
  uint64_t checksum = 0;  // XXH3-64 of the value
  static void fields(auto& a, auto& m) { a(m.key, m.generation, m.checksum); }
};
struct PutEnd {  // publishes; idempotent; kStale if the grant has expired
  static constexpr const char* kName = "put-end";
  using Reply = Outcomes;
  std::vector<PutClaim> items;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(wire::at_most<kBatchMax>(m.items), m.tenant); }
};
struct PutRevoke {  // rolls back; the writer promises not to write any more; idempotent
  static constexpr const char* kName = "put-revoke";
  using Reply = Outcomes;
  std::vector<PutClaim> items;
  std::string tenant{};
  // If not 0: that of a put-start whose sender got no answer. `items` has its keys, in order, and
  // no generations. One that comes later is refused (kStale), as tables remember it.
  uint64_t nonce = 0;
  static void fields(auto& a, auto& m) { a(wire::at_most<kBatchMax>(m.items), m.tenant, m.nonce); }
};

// ---- gets

struct Located {
  Outcome outcome;
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  std::vector<ReplicaLocation> places;  // healthy nodes first
  std::vector<uint32_t> disks{};        // nodes that can load it from their disk (tier_messages.h)
  uint32_t healthy = 0;                 // places on nodes that are not suspect
  static void fields(auto& a, auto& m) {
    a(m.outcome, m.bytes, m.checksum, m.generation, wire::at_most<kPlacesMax>(m.places),
      wire::at_most<kNodesMax>(m.disks), m.healthy);
  }
};
struct Replicas {
  static constexpr const char* kName = "replicas";
  uint64_t epoch = 0;
  uint32_t lease_ms = 0;  // counted from before the call
  std::vector<NodeRef> nodes;
  std::vector<Located> items;
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.lease_ms, wire::at_most<kNodesMax>(m.nodes), wire::at_most<kBatchMax>(m.items));
  }
};
struct GetReplicas {
  static constexpr const char* kName = "get-replicas";
  using Reply = Replicas;
  std::vector<ObjectKey> keys;
  uint32_t wait_ms = 0;  // the answer comes when all keys are stored, or after this
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(wire::at_most<kBatchMax>(m.keys), m.wait_ms, m.tenant); }
};

struct Existing {
  static constexpr const char* kName = "existing";
  uint64_t epoch = 0;
  std::vector<uint8_t> items;
  static void fields(auto& a, auto& m) { a(m.epoch, wire::at_most<kBatchMax>(m.items)); }
};
struct Exists {
  static constexpr const char* kName = "exists";
  using Reply = Existing;
  std::vector<ObjectKey> keys;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(wire::at_most<kBatchMax>(m.keys), m.tenant); }
};

// The best place of a stored value, for one who reads it.
enum class StoredAt : uint8_t {
  kHost = 0,    // memory of the reader's host
  kMemory = 1,  // of another host, or it is not known
  kDisk = 2,    // no memory has it
};
inline constexpr size_t kStoredAts = 3;
inline constexpr size_t kHoldersMax = 255;  // nodes that one answer names

struct StoredPlace {
  StoredAt at = StoredAt::kMemory;
  uint32_t node = 0;  // stands for the name of the only one that has it; 0: not told
  auto operator<=>(const StoredPlace&) const = default;
};

struct Matched {
  static constexpr const char* kName = "matched";
  uint64_t epoch = 0;
  uint64_t hits = 0;    // number of stored keys before the first gap; they are leased
  wire::Blob places{};  // if asked for: a StoredAt for each of them
  // Then too: the number in `nodes`, from 1 on, of the only one that has it; 0: several, or none.
  wire::Blob holders{};
  std::vector<NodeId> nodes{};
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.hits, m.places, m.holders, wire::at_most<kHoldersMax>(m.nodes));
  }
};
struct MatchPrefix {
  static constexpr const char* kName = "match-prefix";
  using Reply = Matched;
  std::vector<ObjectKey> keys;
  std::string tenant{};
  bool places = false;  // the answer says where they are
  std::string host{};   // then: the reader's, as nodes have it; may be empty
  static void fields(auto& a, auto& m) {
    a(wire::at_most<kBatchMax>(m.keys), m.tenant, m.places, m.host);
  }
};

// As match-prefix, for blocks that several prefixes have, one for each tensor-parallel rank: a
// block counts if it is stored under each. Its keys are prefix + block hash in lower-case hex.
struct MatchBlocks {
  static constexpr const char* kName = "match-blocks";
  using Reply = Matched;
  std::vector<std::string> prefixes;  // prefixes x hashes: kBatchMax at most
  wire::Blob hashes;                  // one after another
  uint32_t hash_bytes = 0;            // of each
  std::string tenant{};
  static void fields(auto& a, auto& m) {
    a(wire::at_most<kPrefixesMax>(m.prefixes), m.hashes, m.hash_bytes, m.tenant);
  }
};

struct Remove {  // the answer comes after the holders forgot it
  static constexpr const char* kName = "remove";
  using Reply = Outcomes;
  std::vector<ObjectKey> keys;
  bool force = false;  // even if leased or pinned
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(wire::at_most<kBatchMax>(m.keys), m.force, m.tenant); }
};

struct RemovePrefixed {
  static constexpr const char* kName = "remove-prefixed";
  uint64_t epoch = 0;
  uint64_t removed = 0, refused = 0;
  std::string last{};  // last key examined; if `more`, ask again with it as `after`
  bool more = false;
  std::string why{};  // reason of the first refusal
  static void fields(auto& a, auto& m) { a(m.epoch, m.removed, m.refused, m.last, m.more, m.why); }
};
// Removes some keys with the prefix, in order; empty prefix: all keys. The answer comes after the
// holders forgot them, and all that earlier calls removed of the prefix.
struct RemovePrefix {
  static constexpr const char* kName = "remove-prefix";
  using Reply = RemovePrefixed;
  std::string prefix{}, after{};
  bool force = false;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.prefix, m.after, m.force, m.tenant); }
};

// ---- pins, copies and drains

struct PinKeys {
  static constexpr const char* kName = "pin";
  using Reply = Outcomes;
  std::vector<ObjectKey> keys{};
  uint8_t pin = 0;      // Pin; kNone unpins
  uint64_t ttl_ms = 0;  // 0: unlimited
  std::string tenant{};
  static void fields(auto& a, auto& m) {
    a(wire::at_most<kBatchMax>(m.keys), m.pin, m.ttl_ms, m.tenant);
  }
};

struct TaskInfo {
  static constexpr const char* kName = "task-info";
  uint64_t epoch = 0;
  uint64_t task = 0;    // 0: nothing to do
  std::string state{};  // "running", "done", "failed"
  std::string what{};   // why it failed
  static void fields(auto& a, auto& m) { a(m.epoch, m.task, m.state, m.what); }
};
struct CopyKey {  // adds a replica; with `move`, replaces one
  static constexpr const char* kName = "copy";
  using Reply = TaskInfo;
  ObjectKey key{};
  NodeId to{};    // empty: placement chooses
  NodeId from{};  // of a move: the replica to drop; empty: any
  bool move = false;
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.key, m.to, m.from, m.move, m.tenant); }
};
struct ChangeReplicas {  // sets the number; the reply has the last task, if any was needed
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
  std::string why{};    // if blocked
  uint64_t objects_left = 0, bytes_left = 0, moved = 0, moved_bytes = 0, active = 0;
  uint64_t eta_ms = 0;  // from the speed so far; 0: unknown
  uint64_t others = 0;  // nodes that could take its objects
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.node, m.state, m.why, m.objects_left, m.bytes_left, m.moved, m.moved_bytes,
      m.active, m.eta_ms, m.others);
  }
};
enum class DrainAction : uint8_t { kQuery = 0, kStart = 1, kCancel = 2 };
struct Drain {  // moves a node's objects to others
  static constexpr const char* kName = "drain";
  using Reply = DrainInfo;
  NodeId node{};
  uint8_t action = 0;
  static void fields(auto& a, auto& m) { a(m.node, m.action); }
};

}  // namespace mc::store
