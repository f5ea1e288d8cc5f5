// Messages of the SSD tier between mc-master, holders and readers.
//
//   node    tier-mount    -> what lies on its disk, page by page
//           tier-beat     -> jobs: write this to the disk, forget that (held until there are some)
//           tier-report   -> what became of them, and what was evicted
//   reader  load-objects  -> slots of staging memory, leased for a while (then reads, one-sided)
//           release-slots
//
// Thread: values.
// Source: ssd-offload-design, "Data Flow".
#pragma once
#include <string>
#include <vector>

#include "store/protocol/node_messages.h"

namespace mc::store {

inline constexpr size_t kLoadMax = 1024;      // objects of one load-objects
inline constexpr size_t kTierJobsMax = 1024;  // of one answer
inline constexpr size_t kTierPageMax = 4096;  // objects of one tier-mount

struct TierObject {  // an object on a disk, or to be written there
  std::string name;  // the key, or tenant, NUL, key
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  uint64_t keep_until_s = 0;
  uint8_t cls = 0;
  static void fields(auto& a, auto& m) {
    a(m.name, m.bytes, m.checksum, m.generation, m.keep_until_s, m.cls);
  }
};

struct TierPiece {  // part of a value in the node's segment
  uint64_t offset = 0, bytes = 0;
  uint64_t guard = 0;  // offset of the guard word, which holds `guard_generation`
  static void fields(auto& a, auto& m) { a(m.offset, m.bytes, m.guard); }
};

struct TierAck {
  static constexpr const char* kName = "tier-ack";
  uint64_t epoch = 0;
  uint8_t status = 0;  // BeatStatus
  static void fields(auto& a, auto& m) { a(m.epoch, m.status); }
};
// A message belongs to a mount of its node and to a listing of its disk. If one of an earlier
// listing came late, it would acknowledge jobs that nobody has seen, or list again what is gone.
// Older nodes do not say.
struct TierListing {
  Generation mount{};   // Mounted::fence
  uint64_t number = 0;  // of the listing, larger than those before
  static void fields(auto& a, auto& m) { a(m.mount, m.number); }
};
// Requires: the node has mounted. The first page of a listing replaces all that was listed before.
struct TierMount {
  static constexpr const char* kName = "tier-mount";
  using Reply = TierAck;
  NodeId node;
  Generation generation;
  uint64_t capacity = 0;
  bool first = false, last = false;
  std::vector<TierObject> objects;
  uint64_t value_max = 0;  // the largest value it can load; 0: any
  TierListing listing{};
  uint64_t page = 0;  // of the listing, in order
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, m.capacity, m.first, m.last, wire::at_most<kTierPageMax>(m.objects),
      m.value_max, m.listing, m.page);
  }
};

enum class TierJobKind : uint8_t {
  kOffload = 1,  // write the value in these pieces of the segment
  kForget = 2,   // remove it from the disk
  kBring = 3,    // put it into memory of the pool, because this node drains
};
struct TierJob {
  uint64_t seq = 0;
  uint8_t kind = 0;
  TierObject object;
  Generation guard_generation;
  std::vector<TierPiece> pieces;
  static void fields(auto& a, auto& m) {
    a(m.seq, m.kind, m.object, m.guard_generation, wire::at_most<kExtentsMax>(m.pieces));
  }
};
struct TierWork {
  static constexpr const char* kName = "tier-work";
  uint64_t epoch = 0;
  uint8_t status = 0;  // BeatStatus; kRemount: send the tier-mount again
  std::vector<TierJob> jobs;
  bool hurry = false;  // puts wait for memory: write at once what has gathered
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.status, wire::at_most<kTierJobsMax>(m.jobs), m.hurry);
  }
};
// Acknowledges the jobs up to `taken`. The answer comes with newer jobs, or after hold_ms.
struct TierHeartbeat {
  static constexpr const char* kName = "tier-beat";
  using Reply = TierWork;
  NodeId node;
  Generation generation;
  uint64_t taken = 0;
  uint32_t hold_ms = 0;
  uint64_t used = 0, objects = 0;
  std::string trouble;  // why it takes no jobs: its disk is full or read-only
  TierListing listing{};
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, m.taken, m.hold_ms, m.used, m.objects, m.trouble, m.listing);
  }
};

enum class TierEvent : uint8_t {
  kStored = 1,     // it is on the disk
  kNotStored = 2,  // the write failed; `code` says why
  kGone = 3,       // evicted or damaged; removed once this is acknowledged
  kBrought = 4,    // memory of the pool holds it
  kNotBrought = 5,
  kNotGone = 6,  // ordered to be forgotten, yet still on the disk; `code` says why; tried again
};
struct TierResult {
  uint8_t event = 0;
  uint8_t code = 0;
  std::string name;
  Generation generation;
  static void fields(auto& a, auto& m) { a(m.event, m.code, m.name, m.generation); }
};
struct TierReport {
  static constexpr const char* kName = "tier-report";
  using Reply = TierAck;
  NodeId node;
  Generation generation;
  std::vector<TierResult> results;
  TierListing listing{};
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, wire::at_most<kTierJobsMax>(m.results), m.listing);
  }
};

// ---- loading

struct LoadedSlot {
  Outcome outcome;
  uint64_t bytes = 0, checksum = 0;
  uint64_t offset = 0;    // of the value, in the holder's segment
  uint64_t guard = 0;     // offset of the guard word
  Generation generation;  // of the slot: the guard word's value while it is leased
  static void fields(auto& a, auto& m) {
    a(m.outcome, m.bytes, m.checksum, m.offset, m.guard, m.generation);
  }
};
struct Loaded {
  static constexpr const char* kName = "loaded";
  uint64_t batch = 0;
  uint32_t ttl_ms = 0;    // counted from before the call
  Generation generation;  // of the holder's segment
  std::vector<LoadedSlot> items;
  static void fields(auto& a, auto& m) {
    a(m.batch, m.ttl_ms, m.generation, wire::at_most<kLoadMax>(m.items));
  }
};
struct LoadObjects {  // to the holder
  static constexpr const char* kName = "load-objects";
  using Reply = Loaded;
  std::vector<std::string> names;
  bool promote_only = false;  // a hint: promote into memory, lease no slots
  static void fields(auto& a, auto& m) { a(wire::at_most<kLoadMax>(m.names), m.promote_only); }
};
struct ReleaseSlots {  // idempotent
  static constexpr const char* kName = "release-slots";
  using Reply = rpc::Empty;
  uint64_t batch = 0;
  static void fields(auto& a, auto& m) { a(m.batch); }
};

}  // namespace mc::store
