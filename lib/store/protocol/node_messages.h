// Messages between mc-master and its nodes: mounts, inventories, heartbeats and orders. The
// conventions are those of store/protocol/messages.h.
//
// Thread: values.
#pragma once
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "store/protocol/messages.h"
#include "wire/release.h"

namespace mc::store {

struct ObjectRecord {  // an object in its holder's directory
  ObjectKey key;
  uint64_t offset = 0;  // of the value, in the node's segment
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  std::string tenant{};  // empty: "default"
  uint8_t cls = 0, pin = 0;
  uint64_t keep_until_s = 0;  // of a kContext or a pin, in the master's seconds; 0: unlimited
  std::string group{};
  uint64_t first_bytes = 0;  // of the first piece, if there are more
  std::vector<Extent> more{};
  static void fields(auto& a, auto& m) {
    a.lean(m.key, m.offset, m.bytes, m.checksum, m.generation, m.tenant, m.cls, m.pin,
           m.keep_until_s, m.group, m.first_bytes, wire::at_most<kExtentsMax>(m.more));
  }
};

// A node's segment: values in [data, data + capacity), in whole pages; the guard word of the value
// at `offset` is the u64 at guards + (offset - data) / kPage * 8.
// A node with several segments has the others in `more`, by offset.
struct Region {
  uint64_t data = 0, capacity = 0, guards = 0;
  static void fields(auto& a, auto& m) { a(m.data, m.capacity, m.guards); }
  uint64_t end() const { return data + capacity; }
};
inline constexpr size_t kSegmentsMax = 64;  // of a node
struct Layout {
  uint64_t data = 0, capacity = 0, guards = 0;  // of the first
  std::vector<Region> more{};
  static void fields(auto& a, auto& m) {
    a(m.data, m.capacity, m.guards, wire::at_most<kSegmentsMax>(m.more));
  }
  Region region_of(uint64_t offset) const {  // the region that would contain it
    for (auto it = more.rbegin(); it != more.rend(); ++it)
      if (offset >= it->data) return *it;
    return {data, capacity, guards};
  }
  uint64_t guard_of(uint64_t offset) const {
    const Region r = region_of(offset);
    return r.guards + (offset - r.data) / kPage * 8;
  }
  // Whether `bytes` from there are whole pages of one segment.
  bool holds(uint64_t offset, uint64_t bytes) const {
    const Region r = region_of(offset);
    const uint64_t at = offset - r.data;
    return offset >= r.data && at % kPage == 0 && at < r.capacity && bytes <= r.capacity - at;
  }
  uint64_t span() const { return more.empty() ? capacity : more.back().end() - data; }
  uint64_t total() const {
    uint64_t bytes = capacity;
    for (const Region& r : more) bytes += r.capacity;
    return bytes;
  }
};

struct Mounted {
  static constexpr const char* kName = "mounted";
  uint64_t epoch = 0;
  uint64_t nodes = 0;  // as in HeartbeatReply
  // Newer than every grant so far: the master does not know those that are still being written. No
  // two mounts have the same one: what a node says later names the mount by it. What was under way
  // when the node mounted again is refused; it would acknowledge orders that nobody carried out.
  Generation fence{};
  // The master's seconds now, in which records say how long objects are kept; 0: not said.
  uint64_t now_s = 0;
  wire::Release release{};  // of the master; in the answer to a mount
  static void fields(auto& a, auto& m) { a(m.epoch, m.nodes, m.fence, m.now_s, m.release); }
};
struct Mount {  // inventory messages follow, the last of them with `last`
  static constexpr const char* kName = "mount";
  using Reply = Mounted;
  NodeRef node;
  Layout layout;
  uint64_t epoch_seen = 0;  // the largest of any master; a new master exceeds it
  uint64_t nodes_seen = 0;  // as its last master reported; 0: it had none
  std::string host{};       // writers name it with prefer_local
  std::string domain{};     // failure domain: replicas of an object go to different ones
  wire::Release release{};  // of the node
  static void fields(auto& a, auto& m) {
    a(m.node, m.layout, m.epoch_seen, m.nodes_seen, m.host, m.domain, m.release);
  }
};
struct Inventory {
  static constexpr const char* kName = "inventory";
  using Reply = Mounted;
  NodeId node;
  Generation generation;
  std::vector<ObjectRecord> records;
  bool last = false;
  bool tier = false;  // a tier-mount will follow the last
  // With the last: tombstones that this node remembers, for a master that lacks them: hashes of
  // names (store/metadata/tombstones.h), and for each the generation before which copies are void.
  std::vector<uint64_t> dead{}, before{};
  // With the last: ranges of no record into which a late writer may still write, kUnfencedMax at
  // most. The master keeps them out of use: it orders the node to forget them.
  std::vector<Extent> unfenced{};
  Generation mount{};  // Mounted::fence; 0: not said
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, wire::at_most<kInventoryMax>(m.records), m.last, m.tier,
      wire::at_most<kDeadMax>(m.dead), wire::at_most<kDeadMax>(m.before),
      wire::at_most<kUnfencedMax>(m.unfenced), m.mount);
  }
};
struct Unmount {
  static constexpr const char* kName = "unmount";
  using Reply = Mounted;
  NodeId node;
  Generation generation;
  bool lasting = false;  // its memory's content may return after a restart
  static void fields(auto& a, auto& m) { a(m.node, m.generation, m.lasting); }
};

enum class OrderKind : uint8_t {
  kRecord = 1,  // the value at record.offset is complete: record it
  kForget = 2,  // drop it and raise its guard word to `fence`; a copy to there ends first
  kCopy = 3,    // copy the value from `source` on `from` to record.offset, then send task-done
  // Remember that of record.key all before `fence` is void, whether or not this node holds it.
  kAddTombstone = 4,
  kCheck = 5,  // hash the value at record.offset, then send task-done: kCorrupt if it differs
};
struct Order {
  uint64_t seq = 0;
  uint8_t kind = 0;
  ObjectRecord record;
  Generation fence;
  uint64_t task = 0;  // of a kCopy or kCheck
  NodeRef from{};
  ReplicaLocation source{};
  bool removed = false;    // of a kForget: the object was removed, not only this replica
  bool abandoned = false;  // of a kForget: its writer never said that it had ended
  static void fields(auto& a, auto& m) {
    a.lean(m.seq, m.kind, m.record, m.fence, m.task, m.from, m.source, m.removed, m.abandoned);
  }
};

// An order, shared by the answers that carry it and by the queue that keeps it until it is
// acknowledged.
struct OrderRef {
  std::shared_ptr<Order> order;
  operator const Order&() const { return *order; }
  const Order* operator->() const { return order.get(); }
  static void fields(auto& a, auto& m) {  // encoded as the order itself
    if constexpr (!std::is_const_v<std::remove_reference_t<decltype(m)>>)
      if (m.order == nullptr || m.order.use_count() > 1) m.order = std::make_shared<Order>();
    Order::fields(a, *m.order);
  }
};

// From the target of a copy, or from the node of a check: the bytes are complete and match their
// checksum.
struct TaskDone {
  static constexpr const char* kName = "task-done";
  using Reply = rpc::Empty;
  NodeId node{};
  Generation generation{};
  uint64_t task = 0;
  Outcome outcome{};
  Generation mount{};  // in which the order came: Mounted::fence; 0: not said
  static void fields(auto& a, auto& m) { a(m.node, m.generation, m.task, m.outcome, m.mount); }
};

enum class BeatStatus : uint8_t { kOk = 0, kRemount = 1 };
struct HeartbeatReply {
  static constexpr const char* kName = "beat";
  uint64_t epoch = 0;
  uint8_t status = 0;
  std::vector<OrderRef> orders;  // by seq; carry them out, in order, then acknowledge the last
  uint64_t nodes = 0;            // of the pool; the next master waits for as many
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.status, wire::at_most<kOrdersMax>(m.orders), m.nodes);
  }
};
// Acknowledges the orders up to `done`. The answer comes with new orders, or after hold_ms. So one
// heartbeat of each node always waits at the master. `unfenced`: orders up to `done` to forget a
// range into which a late writer may still write (xfer::Engine::fence): carried out, but the range
// stays out of use until a later heartbeat no longer names them.
struct Heartbeat {
  static constexpr const char* kName = "heartbeat";
  using Reply = HeartbeatReply;
  NodeId node;
  Generation generation;
  uint64_t done = 0;
  uint32_t hold_ms = 0;
  std::vector<uint64_t> unfenced{};  // ascending, kUnfencedMax at most
  Generation mount{};                // Mounted::fence; 0: not said
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, m.done, m.hold_ms, wire::at_most<kUnfencedMax>(m.unfenced), m.mount);
  }
};

}  // namespace mc::store
