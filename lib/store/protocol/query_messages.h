// Queries of the store: listings, the cluster's state, and object events. The conventions are those
// of store/protocol/messages.h.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "store/protocol/messages.h"

namespace mc::store {

struct ObjectInfo {
  ObjectKey key;
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  uint32_t replicas = 0;
  bool leased = false;
  uint8_t cls = 0, pin = 0;
  uint32_t disks = 0;  // copies on disks
  NodeId node{};       // the only one that has it in memory, or else on a disk; empty: several
  static void fields(auto& a, auto& m) {
    a(m.key, m.bytes, m.checksum, m.generation, m.replicas, m.leased, m.cls, m.pin, m.disks,
      m.node);
  }
};
struct Listed {
  static constexpr const char* kName = "listed";
  uint64_t epoch = 0;
  std::vector<ObjectInfo> items;  // by key
  bool more = false;              // ask again with `after` = the last key
  uint64_t next_event = 0;        // the list does not reflect events from this number on
  static void fields(auto& a, auto& m) {
    a(m.epoch, wire::at_most<kListMax>(m.items), m.more, m.next_event);
  }
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
  double heard_ms = 0;       // since it was last heard
  double fragmentation = 0;  // fraction of the free bytes that a single value cannot use
  std::string host{}, domain{};
  std::string release{};  // its build
  static void fields(auto& a, auto& m) {
    a(m.name, m.control, m.state, m.generation, m.capacity, m.used, m.releasing, m.objects,
      m.heard_ms, m.fragmentation, m.host, m.domain, m.release);
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
  std::string rebuilding;  // why the pool is incomplete after a restart; empty if complete
  uint64_t memory = 0;     // of the master's tables, keys excluded
  std::vector<TenantStat> tenants{};
  uint64_t disk_objects = 0, disk_bytes = 0, offloading = 0;
  std::vector<TierStat> tiers{};
  // Since the master started.
  uint64_t puts = 0, puts_waited = 0, put_no_space = 0, hits = 0, misses = 0, removed = 0;
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.capacity, m.used, m.objects, m.object_bytes, m.leased, m.writing,
      m.evicted_objects, m.evicted_bytes, wire::at_most<kNodesMax>(m.nodes), m.rebuilding, m.memory,
      wire::at_most<kNodesMax>(m.tenants), m.disk_objects, m.disk_bytes, m.offloading,
      wire::at_most<kNodesMax>(m.tiers), m.puts, m.puts_waited, m.put_no_space, m.hits, m.misses,
      m.removed);
  }
};
struct Stat {
  static constexpr const char* kName = "stat";
  using Reply = ClusterStat;
  uint64_t epoch_seen = 0;  // by the asker, of any master: this one's becomes larger
  static void fields(auto& a, auto& m) { a(m.epoch_seen); }
};

// ---- events

// kJoined: a node brought objects that have no events of their own, and the event has no key; take
// a snapshot by list.
enum class EventKind : uint8_t { kStored = 1, kRemoved = 2, kMoved = 3, kJoined = 4 };
enum class EventTier : uint8_t { kUntold = 0, kMemory = 1, kDisk = 2 };
struct Event {
  uint64_t seq = 0;
  uint8_t kind = 0;
  ObjectKey key{};
  std::string tenant{};
  uint64_t bytes = 0, checksum = 0;
  std::string nodes{};   // current or last holders of that tier, separated by commas
  std::string reason{};  // of a removal: "evicted: the pool is above its watermark"
  uint64_t at_ms = 0;    // by the wall clock
  uint8_t tier = 0;      // EventTier: the fastest that has the object after this
  static void fields(auto& a, auto& m) {
    a(m.seq, m.kind, m.key, m.tenant, m.bytes, m.checksum, m.nodes, m.reason, m.at_ms, m.tier);
  }
};
struct Replayed {
  static constexpr const char* kName = "replayed";
  uint64_t epoch = 0;
  uint64_t next = 0;  // number of the next event
  bool gap = false;   // some requested events are no longer kept: take a snapshot by list
  std::vector<Event> events{};
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.next, m.gap, wire::at_most<kListMax>(m.events));
  }
};
struct Replay {  // events from a number on
  static constexpr const char* kName = "replay";
  using Reply = Replayed;
  uint64_t from = 0;
  uint32_t limit = 1000;
  static void fields(auto& a, auto& m) { a(m.from, m.limit); }
};

inline constexpr size_t kFactsMax = 1024;
struct Explained {  // a key's state in words
  static constexpr const char* kName = "explained";
  uint64_t epoch = 0;
  std::string state{};  // "stored", "being written", "not stored"
  std::vector<std::string> facts{};
  std::vector<Event> events{};  // the newest first
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.state, wire::at_most<kFactsMax>(m.facts), wire::at_most<kFactsMax>(m.events));
  }
};
struct Explain {
  static constexpr const char* kName = "why";
  using Reply = Explained;
  ObjectKey key{};
  std::string tenant{};
  static void fields(auto& a, auto& m) { a(m.key, m.tenant); }
};

struct ReportNode {  // a reader could not reach it: it is suspect until it is heard again
  static constexpr const char* kName = "report-node";
  using Reply = rpc::Empty;
  NodeId node;
  Generation generation;
  static void fields(auto& a, auto& m) { a(m.node, m.generation); }
};

// A reader got other bytes than were put. The master believes only the node itself, which it orders
// to check.
struct ReportReplica {
  static constexpr const char* kName = "report-replica";
  using Reply = rpc::Empty;
  ObjectKey key;
  std::string tenant;
  NodeId node;
  Generation generation;  // of the replica
  static void fields(auto& a, auto& m) { a(m.key, m.tenant, m.node, m.generation); }
};

}  // namespace mc::store
