// The master's table of objects in memory: 104 bytes each, plus the key. Rare attributes are kept
// apart (store/metadata/object.h).
//
// Thread: one owner. Pure.
#pragma once
#include <string_view>

#include "base/time.h"
#include "store/metadata/allocator.h"
#include "store/metadata/ordered_table.h"

namespace mc::store {

struct Member;

enum class ObjectState : uint8_t {
  kWriting,    // reserved for a writer
  kRecording,  // put_end came; the nodes have not acknowledged
  kComplete,   // readable
};

// Order of eviction: kEphemeral, then kNormal, then objects with a soft pin. A kContext stays until
// its time to live ends.
enum class ObjectClass : uint8_t { kNormal = 0, kEphemeral = 1, kContext = 2 };
enum class Pin : uint8_t { kNone = 0, kSoft = 1, kHard = 2 };

struct Replica {
  Member* node = nullptr;
  Id range = kNoId;  // the first of its pieces
  Generation generation;
};

struct Object {
  Generation generation;  // of the first replica
  uint64_t bytes = 0;
  uint64_t checksum = 0;     // in kWriting the nonce of its put
  Time until = Time::min();  // the end of its lease; during a put, when its client asked
  char* key_data = nullptr;  // the table's
  Member* node = nullptr;    // the first replica
  Id range = kNoId;
  Id self = kNoId;
  Link queue;                      // the eviction queue; during a put, that of puts by age
  Link leases;                     // by end; in kWriting the time of its first grant
  Id left = kNoId, right = kNoId;  // in the order by key; while it waits for sort(), its neighbours
  Id chain = kNoId;                // of its bucket
  uint32_t hash = 0;
  uint16_t key_bytes = 0;
  uint16_t tenant = 0;
  ObjectState state : 2 = ObjectState::kWriting;
  bool due : 1 = false;  // it is to be on a disk, and none took it
  ObjectClass cls = ObjectClass::kNormal;
  Pin pin = Pin::kNone;
  bool queued : 1 = false, leased : 1 = false, visited : 1 = false;
  bool more_replicas : 1 = false, extras : 1 = false, promoted : 1 = false;
  bool waits : 1 = false, ordered : 1 = false;  // for, or in, the order by key

  std::string_view key() const { return {key_data, key_bytes}; }
  Id& spare() { return chain; }
};
static_assert(sizeof(Object) <= 112, "the memory of every object there is");

using Table = OrderedTable<Object>;

}  // namespace mc::store
